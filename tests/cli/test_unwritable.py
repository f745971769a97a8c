"""What the user's own disk refuses: a full one below the output, a folder that cannot be made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.types import Phase
from tests.cli.simdesk import SimDesk
from tests.cli.test_runs import with_artifact

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


def to_full_disk(sim: SimDesk, *args: str, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    with FULL.open("w") as full:
        return subprocess.run(
            sim._argv(args), env=sim.environment, stdin=subprocess.DEVNULL, stdout=full, stderr=stderr,
            text=True, timeout=120, cwd="/", check=False,
        )  # fmt: skip


@needs_full
@pytest.mark.parametrize("args", [("schema",), ("ls",), ("--json", "ls")])
def test_an_answer_that_cannot_be_written_is_no_success_and_no_bug(sim: SimDesk, args: tuple[str, ...]) -> None:
    done = to_full_disk(sim, *args)
    assert done.returncode == 18, done.stderr
    assert "cannot write the output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@needs_full
def test_a_full_disk_below_the_log_does_not_end_what_drives_a_run(sim: SimDesk) -> None:
    sim.a_run("night")
    done = to_full_disk(sim, "resume", "night", stderr=subprocess.STDOUT)
    assert done.returncode == 18
    assert sim.run("night").phase is Phase.SUCCEEDED
    assert sim.instances() == []


@pytest.mark.parametrize("folder", ["a-file/below", "x" * 300, "/proc/nowhere"])
def test_a_folder_that_cannot_be_made_is_named_and_is_no_bug(sim: SimDesk, folder: str) -> None:
    with_artifact(sim)
    (sim.root / "a-file").write_text("mine")
    done = sim.tune("pull", "night", str(sim.root / folder))
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert "name another DIR" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_folder_name_is_not_the_folder_one_is_in(sim: SimDesk) -> None:
    """What a script's unset variable leaves."""
    done = sim.tune("pull", "night", "")
    assert done.returncode == 2
    assert "DIR is empty" in done.stderr
