"""A host that is not what was paid for is given back before anything is downloaded to it, and told apart from our own faults."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import keys
from orchestrator.agent import probe
from orchestrator.agent.ending import AttemptEnds
from orchestrator.errors import ObjectNotFound, StorageDenied, StorageUnavailable
from orchestrator.handover import Expected
from orchestrator.types import Outcome
from tests.agent.bench import Bench
from tests.agent.stage import RUN_ID
from tests.cloud import nvidia_smi
from tests.cloud.nvidia_smi import Gpu

PAID = Expected(gpu_count=2, gpu_name="RTX4090", vram_gib=24.0, min_cuda=12.8, disk_gb=100.0)
PLENTY = 500 * 10**9
WHERE = keys.probe(RUN_ID, 1)

Plug = Callable[..., None]


@pytest.fixture
def plug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plug:
    """GPUs, as the driver's own program tells of them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(*gpus: Gpu, fails: str = "") -> None:
        from dataclasses import asdict

        told = folder / "gpus.json"
        told.write_text(json.dumps({"gpus": [asdict(gpu) for gpu in gpus], "fails": fails}))
        words = [sys.executable, nvidia_smi.__file__, str(told)]
        program = folder / "nvidia-smi"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        program.chmod(0o755)

    return put


def look(bench: Bench, expect: Expected = PAID, *, free: int = PLENTY) -> bool | None:
    return probe.probe(
        bench.home, expect, bench.bucket, clock=bench.clock, note=bench.notes.append, free=lambda _: free
    )


def test_what_was_paid_for_is_taken_without_a_word(bench: Bench, plug: Plug) -> None:
    plug(Gpu(), Gpu())
    assert look(bench) is False, "this computer has no farewell command"
    assert [n for n in bench.notes if "cannot see itself" not in n] == []
    assert list(bench.store.scan(f"runs/{RUN_ID}/a1/")) == [], "nothing is left of the question"
    assert not (bench.home.state / "probe.tmp").exists()


@pytest.mark.parametrize(
    ("gpus", "sentence"),
    [
        ((Gpu(),), "2 GPUs expected, 1 found"),
        ((Gpu(), Gpu(name="NVIDIA GeForce RTX 3090")), "GPU 1: RTX4090 expected, NVIDIA GeForce RTX 3090 found"),
        ((Gpu(memory_mib=12282), Gpu()), "GPU 0: 24 GiB of memory expected, 12.0 found"),
        ((Gpu(used_mib=501), Gpu()), "GPU 0: 501 MiB are in use by somebody else"),
        ((Gpu(cuda="12.4"), Gpu()), "a driver for CUDA 12.8 expected, this one takes 12.4 at most"),
        ((), "2 GPUs expected, but nvidia-smi says: No devices were found"),
    ],
)
def test_less_than_that_is_the_host_s_fault_and_said_with_both_numbers(
    bench: Bench, plug: Plug, gpus: tuple[Gpu, ...], sentence: str
) -> None:
    plug(*gpus)
    with pytest.raises(AttemptEnds) as ended:
        look(bench)
    ending = ended.value.ending
    assert (ending.outcome, ending.code) == (Outcome.HOST_FAULT, 1)
    assert sentence in ending.reason


def test_a_driver_in_trouble_is_the_host_s_fault(bench: Bench, plug: Plug) -> None:
    plug(Gpu(), Gpu(), fails="Failed to initialize NVML: Driver/library version mismatch")
    with pytest.raises(AttemptEnds, match="Driver/library version mismatch"):
        look(bench)


def test_no_driver_at_all(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AttemptEnds, match="there is no nvidia-smi"):
        look(bench)


def test_a_driver_that_hangs_is_not_waited_for(plug: Plug, tmp_path: Path) -> None:
    plug(Gpu(), Gpu())
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 1000\n")
    assert probe.gpus(PAID, timeout_s=0.3).faults == ["2 GPUs expected, but nvidia-smi says: no answer within 0.3 s"]


def test_cuda_versions_are_numbers_not_text(bench: Bench, plug: Plug) -> None:
    plug(Gpu(cuda="13.0"), Gpu(cuda="13.0"))
    look(bench)


def test_a_run_without_gpus_asks_for_none(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    look(bench, Expected())


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("RTX4090", "NVIDIA GeForce RTX 4090"),
        ("RTX4080SUPER", "NVIDIA GeForce RTX 4080 SUPER"),
        ("RTX3080Ti", "NVIDIA GeForce RTX 3080 Ti"),
        ("A6000", "NVIDIA RTX A6000"),
        ("RTX6000Ada", "NVIDIA RTX 6000 Ada Generation"),
        ("RTX4000Ada", "NVIDIA RTX 4000 SFF Ada Generation"),
        ("RTXPRO6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        ("A100-80GB", "NVIDIA A100-SXM4-80GB"),
        ("H100-SXM", "NVIDIA H100 80GB HBM3"),
        ("H100NVL", "NVIDIA H100 NVL"),
        ("GH200", "NVIDIA GH200 480GB"),
        ("V100", "Tesla V100-SXM2-32GB"),
        ("L40S", "NVIDIA L40S"),
        ("T4", "Tesla T4"),
    ],
)
def test_the_driver_s_names_are_known_for_what_they_are(ours: str, theirs: str) -> None:
    assert probe.is_named(theirs, ours)


def test_a_card_that_is_only_spelled_in_another_way_is_no_fault(bench: Bench, plug: Plug) -> None:
    plug(Gpu(name="NVIDIA Graphics Device 4090"), Gpu())
    look(bench)
    assert any("RTX4090 expected" in note for note in bench.notes)


def test_a_disk_that_is_too_small_is_found_where_the_tune_home_lies(bench: Bench, plug: Plug) -> None:
    plug(Gpu(), Gpu())
    with pytest.raises(AttemptEnds, match=r"100 GB of disk expected, 60\.0 GB free"):
        look(bench, free=60 * 10**9)


class SlowBench(Bench):
    """Each call to the store takes its time on the stepped clock."""

    def slow(self, seconds: float, *operations: str) -> None:
        def wait(operation: str, _key: str) -> None:
            if operation in operations:
                self.clock.sleep(seconds)

        self.store.fault = wait


@pytest.mark.parametrize(("seconds", "is_fault"), [(0.01, False), (10.0, False), (60.0, True)])
def test_a_line_that_cannot_carry_a_model_is_a_fault_and_a_slow_one_a_note(
    tmp_path: Path, plug: Plug, seconds: float, is_fault: bool
) -> None:
    bench = SlowBench(tmp_path)
    plug(Gpu(), Gpu())
    bench.slow(seconds, *_operations(bench, "get"))
    if is_fault:
        with pytest.raises(AttemptEnds, match="the bucket is read at 0"):
            look(bench)
    else:
        look(bench)
        assert any("a slow line" in note for note in bench.notes) == (seconds > 1)


def _operations(bench: Bench, word: str) -> list[str]:
    """As the store calls them before it does them."""
    seen: list[str] = []
    bench.store.fault = lambda operation, _key: seen.append(operation)
    bench.store.put("x", b"y")
    bench.store.get("x")
    bench.store.fault = None
    return [operation for operation in seen if word in operation][:1]


def _refuse(bench: Bench, error: Exception) -> None:
    def fault(_operation: str, key: str) -> None:
        if key == WHERE:
            bench.clock.sleep(50)
            raise error

    bench.store.fault = fault


def test_keys_that_the_bucket_refuses_are_our_fault_not_the_host_s(bench: Bench, plug: Plug) -> None:
    plug(Gpu(), Gpu())
    _refuse(bench, StorageDenied("403 on put"))
    with pytest.raises(AttemptEnds) as ended:
        look(bench)
    assert ended.value.ending.outcome is Outcome.SETUP_FAILED
    assert "refuses this instance's keys: 403 on put" in ended.value.ending.reason


def test_keys_that_may_not_delete_are_good_enough(bench: Bench, plug: Plug) -> None:
    plug(Gpu(), Gpu())

    def fault(operation: str, key: str) -> None:
        if key == WHERE and "delete" in operation:
            raise StorageDenied("403 on delete")

    bench.store.fault = fault
    look(bench)
    assert bench.store.head(WHERE).size > 0


def test_a_bucket_that_is_away_is_nobody_s_fault_yet(bench: Bench, plug: Plug) -> None:
    plug(Gpu(), Gpu())
    _refuse(bench, StorageUnavailable("503"))
    look(bench)
    assert any("does not answer yet" in note for note in bench.notes)


def test_a_bucket_that_forgets_is_found_out(bench: Bench, plug: Plug) -> None:
    plug(Gpu(), Gpu())

    def fault(operation: str, key: str) -> None:
        if key == WHERE and "get" in operation:
            raise ObjectNotFound(key)

    bench.store.fault = fault
    with pytest.raises(AttemptEnds, match="does not keep what is written"):
        look(bench)


@pytest.mark.parametrize(("code", "can"), [(0, True), (1, False)])
def test_whether_it_can_end_itself_is_tried_out(
    bench: Bench, plug: Plug, monkeypatch: pytest.MonkeyPatch, code: int, can: bool
) -> None:
    plug(Gpu(), Gpu())
    (bench.home.root / "farewell.sh").write_text(f'[ "$1" = look ] && exit {code}; exit 9\n')
    monkeypatch.setenv("TUNE_FAREWELL", "sh farewell.sh end")
    assert look(bench) is can
    assert any("only the computers that started it" in note for note in bench.notes) is not can


def test_a_restarted_agent_does_not_ask_again(bench: Bench, plug: Plug) -> None:
    plug(Gpu(), Gpu())
    first = look(bench)
    plug(Gpu(used_mib=20000), Gpu(used_mib=20000))  # its own trainer is at work by now
    assert look(bench) is first


def test_what_does_not_return_is_left_behind() -> None:
    import threading

    never = threading.Event()
    with pytest.raises(TimeoutError):
        probe.within(0.05, never.wait)
    never.set()
    with pytest.raises(ZeroDivisionError):
        probe.within(5, lambda: 1 / 0)


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    return Bench(tmp_path)
