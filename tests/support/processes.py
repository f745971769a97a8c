"""Who is still running for a test: the other half of "nothing is left behind"."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

from orchestrator.processes import HOST_MARKER, MARKER

MARKERS = (MARKER, HOST_MARKER, "TUNE_HOME", "TUNE_REMOTE_COMMAND")


def living(under: Path) -> list[psutil.Process]:
    """Every process that carries one of tune's marks, or is a host, and belongs to `under` (a test's own tmp_path).

    By path and not by mark alone, because other tests run on this machine at the same time.
    """
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            env = process.environ()
            text = "\0".join([env.get("TUNE_HOME", ""), *process.cmdline(), process.cwd()])
            if any(name in env for name in MARKERS) and str(under) in text and process.status() != "zombie":
                found.append(process)
    return found


def mark(process: psutil.Process, name: str) -> str:
    """A mark in the environment of a process; empty when there is none, or the process is gone by now."""
    try:
        return process.environ().get(name, "")
    except (psutil.Error, OSError):
        return ""


def describe(processes: list[psutil.Process]) -> list[str]:
    """For a message that says what was left."""
    lines = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            lines.append(f"{process.pid} {' '.join(process.cmdline())[:200]!r}")
    return lines


def assert_nothing_left(under: Path) -> None:
    """Fails with a list of what still runs, and ends it all the same, so that one failure does not breed others."""
    left = living(under)
    lines = describe(left)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    assert lines == []
