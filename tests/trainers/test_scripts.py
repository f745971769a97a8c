"""The parts of the training program that need no torch: events, snapshots, packing, order, and what a resume must find."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import codec
from orchestrator.handover import EXIT_OOM, EXIT_SAVED, Snapshot
from orchestrator.recipe import steps


@pytest.fixture
def events(scripts: Path) -> Any:
    return import_module("tune_events")


@pytest.fixture
def tune_data(scripts: Path) -> Any:
    return import_module("tune_data")


@pytest.fixture
def train(scripts: Path) -> Any:
    return import_module("train_trl")


def test_numbers_that_json_has_no_word_for_are_spelled_out(events: Any, tmp_path: Path) -> None:
    log = events.Events(tmp_path / "new folder" / "events.jsonl")
    log.emit("log", step=3, loss=float("nan"), grad_norm=float("inf"), learning_rate=float("-inf"))
    said = json.loads((tmp_path / "new folder" / "events.jsonl").read_text())
    assert (said["loss"], said["grad_norm"], said["learning_rate"]) == ("nan", "inf", "-inf")


def test_the_exit_codes_are_those_that_the_agent_knows(events: Any, train: Any) -> None:
    assert (events.EXIT_SAVED, train.EXIT_OOM) == (EXIT_SAVED, EXIT_OOM)


class TestSnapshots:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        folder = tmp_path / "out" / "checkpoint-4"
        (folder / "inner").mkdir(parents=True)
        (folder / "weights.safetensors").write_bytes(b"w" * 100)
        (folder / "inner" / "part").write_bytes(b"p")
        (folder / "training_args.bin").write_bytes(b"a pickle")
        return folder

    def test_a_snapshot_outlives_the_folder_it_was_taken_from(self, events: Any, tmp_path: Path, source: Path) -> None:
        snapshots = events.Snapshots(tmp_path / "snapshots")
        snapshots.publish(4, source, {"max_steps": 9, "loss": 1.5}, {"memory.json": "{}"})
        assert (source / "weights.safetensors").stat().st_nlink == 2  # a link, so it took no room
        for path in [*source.rglob("*")]:
            if path.is_file():
                path.unlink()
        record = codec.load(Snapshot, (tmp_path / "snapshots/4.json").read_bytes(), where="4.json")
        assert (record.step, record.max_steps, record.loss) == (4, 9, 1.5)
        assert dict(record.files) == {"weights.safetensors": 100, "inner/part": 1, "memory.json": 2}
        assert (tmp_path / "snapshots/4/weights.safetensors").read_bytes() == b"w" * 100

    def test_one_that_is_vouched_for_is_never_written_again(self, events: Any, tmp_path: Path, source: Path) -> None:
        snapshots = events.Snapshots(tmp_path / "snapshots")
        snapshots.publish(4, source, {"max_steps": 9}, {"memory.json": "1"})
        snapshots.publish(4, source, {"max_steps": 9}, {"memory.json": "2"})
        assert (tmp_path / "snapshots/4/memory.json").read_text() == "1"

    def test_one_that_lost_a_file_is_made_afresh(self, events: Any, tmp_path: Path, source: Path) -> None:
        snapshots = events.Snapshots(tmp_path / "snapshots")
        snapshots.publish(4, source, {"max_steps": 9}, {})
        (tmp_path / "snapshots/4/inner/part").unlink()
        snapshots.publish(4, source, {"max_steps": 9}, {})
        assert (tmp_path / "snapshots/4/inner/part").exists()
        assert events.is_vouched(tmp_path / "snapshots/4.json", tmp_path / "snapshots/4")

    def test_what_a_killed_trainer_left_half_made_is_removed(self, events: Any, tmp_path: Path, source: Path) -> None:
        snapshots = events.Snapshots(tmp_path / "snapshots")
        snapshots.publish(4, source, {"max_steps": 9}, {})
        (tmp_path / "snapshots/5").mkdir()
        (tmp_path / "snapshots/5/weights.safetensors").write_bytes(b"half")
        (tmp_path / "snapshots/.5.json.draft").write_text("{")
        assert sorted(snapshots.discard_unfinished()) == [".5.json.draft", "5"]
        assert sorted(p.name for p in (tmp_path / "snapshots").iterdir()) == ["4", "4.json"]


class TestPacking:
    @given(lengths=st.lists(st.integers(1, 64), max_size=200), capacity=st.integers(64, 256))
    @settings(max_examples=60, deadline=None)
    def test_every_row_is_packed_once_and_none_overflows(
        self, scripts: Path, lengths: list[int], capacity: int
    ) -> None:
        groups = import_module("tune_data").pack(lengths, capacity)
        assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
        assert all(0 < sum(lengths[i] for i in group) <= capacity for group in groups)

    @given(lengths=st.lists(st.integers(1, 128), max_size=2500))
    @settings(max_examples=20, deadline=None)
    def test_it_makes_as_many_sequences_as_the_data_check_foretold(self, scripts: Path, lengths: list[int]) -> None:
        assert len(import_module("tune_data").pack(lengths, 128)) == steps.packed(lengths, 128)


class TestOrder:
    @given(count=st.integers(1, 300), seed=st.integers(0, 9), by_length=st.booleans())
    @settings(max_examples=40, deadline=None)
    def test_each_epoch_has_every_row_once_and_can_be_repeated(
        self, scripts: Path, count: int, seed: int, by_length: bool
    ) -> None:
        sampler = import_module("tune_data").EpochSampler
        lengths = [(i * 37) % 101 for i in range(count)] if by_length else None

        def order(epoch: int) -> list[int]:
            made = sampler(count, seed=seed, lengths=lengths, batch=4)
            made.set_epoch(epoch)
            return list(made)

        assert sorted(order(0)) == sorted(order(1)) == list(range(count))
        assert order(1) == order(1)
        if count > 20:
            assert order(0) != order(1)

    def test_rows_of_a_batch_are_of_a_length_when_asked(self, tune_data: Any) -> None:
        lengths = [(i * 37) % 101 for i in range(200)]
        order = list(tune_data.EpochSampler(200, seed=1, lengths=lengths, batch=4))
        spreads = [max(part) - min(part) for part in ([lengths[i] for i in order[k : k + 4]] for k in range(0, 200, 4))]
        assert max(spreads) <= 4


def test_the_fingerprint_of_the_data_sees_every_token_label_and_border(tune_data: Any) -> None:
    def mark(*lines: tuple[list[int], list[int], list[int]]) -> str:
        return str(tune_data.fingerprint([tune_data.Line(*line) for line in lines]))

    base = mark(([1, 2, 3], [-100, 2, 3], [3]))
    others = [
        mark(([1, 2, 4], [-100, 2, 3], [3])),
        mark(([1, 2, 3], [-100, -100, 3], [3])),
        mark(([1, 2, 3], [-100, 2, 3], [1, 2])),
        mark(([1, 2, 3], [-100, 2, 3], [3]), ([1], [1], [1])),
    ]
    assert len({base, *others}) == 5
    assert base == mark(([1, 2, 3], [-100, 2, 3], [3]))


class TestWhatAResumeMustFind:
    IDENTITY = {"effective_batch": 4, "data": "abc", "seed": 7}  # noqa: RUF012

    def checkpoint(self, tmp_path: Path, *, without: tuple[str, ...] = (), **changes: Any) -> Path:
        folder = tmp_path / "checkpoint-5"
        folder.mkdir()
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"):
            if name not in without:
                (folder / name).write_bytes(b"x")
        (folder / "tune_state.json").write_text(json.dumps({**self.IDENTITY, "train_s": 3.5, "loss": 2.0, **changes}))
        return folder

    def before(self, train: Any, tmp_path: Path, folder: Path | None, **tune: Any) -> dict[str, Any]:
        log = import_module("tune_events").Events(tmp_path / "events.jsonl")
        config = {"resume_from": str(folder) if folder else None, "settings": {"tune": tune}}
        found: dict[str, Any] = train._before(config, self.IDENTITY, log)
        return found

    def test_a_fresh_start_has_nothing_before_it(self, train: Any, tmp_path: Path) -> None:
        assert self.before(train, tmp_path, None) == {}

    def test_time_and_loss_are_carried_over(self, train: Any, tmp_path: Path) -> None:
        found = self.before(train, tmp_path, self.checkpoint(tmp_path))
        assert (found["train_s"], found["loss"]) == (3.5, 2.0)

    @pytest.mark.parametrize("missing", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
    def test_an_optimizer_is_never_reset_in_silence(self, train: Any, tmp_path: Path, missing: str) -> None:
        folder = self.checkpoint(tmp_path, without=(missing,))
        with pytest.raises(RuntimeError, match=missing):
            self.before(train, tmp_path, folder)
        assert self.before(train, tmp_path, folder, allow_optimizer_reset=True)["loss"] == 2.0
        assert missing in json.loads((tmp_path / "events.jsonl").read_text())["text"]

    def test_nothing_allows_to_go_on_without_the_state(self, train: Any, tmp_path: Path) -> None:
        folder = self.checkpoint(tmp_path, without=("trainer_state.json",))
        with pytest.raises(RuntimeError, match=r"trainer_state\.json"):
            self.before(train, tmp_path, folder, allow_optimizer_reset=True)

    def test_a_checkpoint_of_another_torch_is_refused_before_anything_is_loaded(
        self, train: Any, tmp_path: Path
    ) -> None:
        with pytest.raises(RuntimeError, match=r"made with torch 1\.13\.1 and this is torch"):
            self.before(train, tmp_path, self.checkpoint(tmp_path, torch="1.13.1"))

    def test_another_patch_of_the_same_torch_is_no_matter(self, train: Any, tmp_path: Path) -> None:
        major, minor, *_ = train._versions()["torch"].split(".")
        assert self.before(train, tmp_path, self.checkpoint(tmp_path, torch=f"{major}.{minor}.99+cpu"))["loss"] == 2.0

    @pytest.mark.parametrize(("key", "other"), [("effective_batch", 8), ("data", "xyz"), ("seed", 8)])
    def test_what_would_repeat_and_skip_rows_is_refused(self, train: Any, tmp_path: Path, key: str, other: Any) -> None:
        with pytest.raises(RuntimeError, match="repeat some rows and skip others"):
            self.before(train, tmp_path, self.checkpoint(tmp_path, **{key: other}))


def test_a_loss_that_was_logged_twice_around_a_resume_counts_once(train: Any) -> None:
    history = [
        {"step": 1, "loss": 3.0},
        {"step": 2, "loss": 9.0},
        {"step": 2, "loss": 2.0},
        {"step": 2, "eval_loss": 5.0},
    ]
    assert list(train._losses(history, "loss")) == [(1, 3.0), (2, 2.0)]
