"""Damage of every kind is seen before a trainer, or a user, meets it. Nothing is ever unpickled."""

import json
import math
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.agent import inspection
from tests.agent.stub_trainer import safetensors, write_weights

CODES = {"F32": "f", "F64": "d", "F16": "e"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "7"
    write_weights(made, 7)
    (made / "trainer_state.json").write_text('{"global_step": 7}')
    return made


def sizes(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_size for p in folder.iterdir()}


def problems(folder: Path, **changes) -> list[str]:
    return inspection.checkpoint_problems(
        folder, changes.pop("files", None) or sizes(folder), **{"step": 7, "world_size": 1, **changes}
    )


def test_a_whole_checkpoint_has_no_problems(folder: Path) -> None:
    assert problems(folder) == []


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "trainer_state.json", "optimizer.pt"])
def test_a_missing_or_shorter_file_is_named(folder: Path, name: str) -> None:
    files = sizes(folder)
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    assert [p for p in problems(folder, files=files) if p.startswith(name) and "instead of" in p]
    (folder / name).unlink()
    assert problems(folder, files=files) == [f"{name} is missing"]


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_checkpoint_without_what_would_silently_restart_is_refused_unless_allowed(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert problems(folder) == [f"{name} is missing"]
    assert problems(folder, allow_optimizer_reset=True) == []


def test_every_rank_needs_its_own_random_state(folder: Path) -> None:
    assert problems(folder, world_size=2) == ["rng_state_0.pth is missing", "rng_state_1.pth is missing"]


@pytest.mark.parametrize("text", ['{"global_step": 6}', "{}", "[]", "{"])
def test_a_state_file_of_another_step_is_refused(folder: Path, text: str) -> None:
    (folder / "trainer_state.json").write_text(text)
    assert any(p.startswith("trainer_state.json") for p in problems(folder))


def test_a_flipped_byte_in_an_archive_is_seen(folder: Path) -> None:
    data = bytearray((folder / "optimizer.pt").read_bytes())
    data[60] ^= 0xFF
    (folder / "optimizer.pt").write_bytes(data)
    assert any(p.startswith("optimizer.pt") for p in problems(folder))


def test_a_pickle_that_would_run_code_is_never_loaded(folder: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    with zipfile.ZipFile(folder / "optimizer.pt", "w") as archive:
        archive.writestr("data.pkl", pickle.dumps(Bomb()))
    assert problems(folder) == []
    (folder / "scheduler.pt").write_bytes(pickle.dumps(Bomb()))
    assert any("scheduler.pt: not a complete archive" in p for p in problems(folder))
    assert not (tmp_path / "exploded").exists()


def written(tmp_path: Path, data: bytes) -> list[str]:
    path = tmp_path / "w.safetensors"
    path.write_bytes(data)
    return inspection.safetensors_problems(path)


WHOLE = safetensors([1.0, 2.0])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut short"),
        (b"\0" * 40, "not"),
        (WHOLE[:-1], "cut short or padded"),
        (WHOLE + b"x", "cut short or padded"),
        (WHOLE[:30], "cut short"),
        (struct.pack("<Q", 2) + b"{}" + b"\0" * 30, "no tensors"),
        (struct.pack("<Q", 1 << 60) + b"{}", "cut short"),
        (safetensors([], shape=[0, 16]), "it is empty"),
        (safetensors([1.0, 2.0], shape=[3]), "does not fit"),
        (struct.pack("<Q", 9) + b'{"a": 1} ', "nothing usable about a"),
        (struct.pack("<Q", 2) + b"[]", "no tensors"),
    ],
)
def test_a_weights_file_that_is_not_whole_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    found = written(tmp_path, data)
    assert found
    if words != "not":
        assert words in found[0]


@pytest.mark.parametrize("dtype", ["F32", "F64", "F16"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 3, 6])
def test_one_number_that_is_none_spoils_the_file(tmp_path: Path, dtype: str, bad: float, at: int) -> None:
    values = [0.5, -0.25, 3.0, 65504.0, -65504.0, 0.0, 1e-7]
    assert written(tmp_path, safetensors(values, dtype=dtype)) == []
    values[at] = bad
    assert "holds NaN or infinity" in written(tmp_path, safetensors(values, dtype=dtype))[0]


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_single_precision_is_judged_as_python_does(values: list[float]) -> None:
    data = struct.pack(f"<{len(values)}f", *values)
    assert inspection.is_finite(data, inspection.float_kind("F32")) == all(map(math.isfinite, values))
    top = b"".join(struct.pack("<f", v)[2:] for v in values)  # bfloat16: the upper half
    rounded = [struct.unpack("<f", b"\0\0" + top[i : i + 2])[0] for i in range(0, len(top), 2)]
    assert inspection.is_finite(top, inspection.float_kind("BF16")) == all(map(math.isfinite, rounded))


@given(st.lists(st.floats(), min_size=1, max_size=40))
def test_double_precision_is_judged_as_python_does(values: list[float]) -> None:
    data = struct.pack(f"<{len(values)}d", *values)
    assert inspection.is_finite(data, inspection.float_kind("F64")) == all(map(math.isfinite, values))


@given(st.lists(st.floats(width=16), min_size=1, max_size=40))
def test_half_precision_is_judged_as_python_does(values: list[float]) -> None:
    data = struct.pack(f"<{len(values)}e", *values)
    assert inspection.is_finite(data, inspection.float_kind("F16")) == all(map(math.isfinite, values))


def test_an_adapter_that_learned_nothing_is_no_result(tmp_path: Path) -> None:
    final = tmp_path / "final"
    final.mkdir()
    (final / "adapter_model.safetensors").write_bytes(safetensors([0.0, 0.0]))
    assert inspection.artifact_problems(final, sizes(final)) == ["every lora_B is zero: the adapter learned nothing"]
    (final / "adapter_model.safetensors").write_bytes(safetensors([0.0, 1e-30]))
    assert inspection.artifact_problems(final, sizes(final)) == []


def test_a_result_without_weights_is_no_result(tmp_path: Path) -> None:
    final = tmp_path / "final"
    final.mkdir()
    (final / "adapter_config.json").write_text("{}")
    assert inspection.artifact_problems(final, sizes(final)) == ["no weights (*.safetensors)"]
    assert inspection.artifact_problems(final, {}) == ["it names no files"]


@pytest.mark.parametrize(
    ("place", "step"),
    [("/old/out/checkpoint-50", 50), ("/old/out/checkpoint-50/", 50), (None, None), ("best", None), (7, None)],
)
def test_the_best_checkpoint_is_found_in_the_state_file(tmp_path: Path, place, step) -> None:
    (tmp_path / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": place}))
    assert inspection.best_step(tmp_path) == step
