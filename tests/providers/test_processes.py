"""Telling processes apart, and ending all that belong together."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import processes
from orchestrator.clock import SystemClock


@pytest.fixture
def sleeper():
    child = subprocess.Popen(["sleep", "1000"], env={"TUNE_INSTANCE": "mark-1", "PATH": os.environ["PATH"]})
    yield child
    child.kill()
    child.wait()


def test_a_process_is_itself_and_nobody_else(sleeper) -> None:
    who = processes.identify(sleeper.pid)
    assert who is not None
    assert processes.is_alive(who)
    assert not processes.is_alive(replace(who, since_boot_s=who.since_boot_s - 1)), "an earlier owner of the number"
    assert not processes.is_alive(replace(who, boot="another")), "a process of the boot before"
    assert processes.identify(os.getpid()) != who


def test_a_corpse_is_not_alive(sleeper) -> None:
    who = processes.identify(sleeper.pid)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # dead, not collected
    assert processes.identify(sleeper.pid) is None
    assert not processes.is_alive(who)


@pytest.mark.parametrize("plain", [{}, {"pid": "x", "since_boot_s": 1, "boot": ""}, {"pid": 1}, {"pid": None}])
def test_what_is_not_an_identity_is_none(plain: dict[str, object]) -> None:
    assert processes.identity_from(plain) is None


def test_a_mark_is_compared_whole(sleeper) -> None:
    assert [p.pid for p in processes.marked("mark-1")] == [sleeper.pid]
    assert processes.marked("mark-") == []
    assert processes.marked("mark-1", name="TUNE_INSTANCE_HOST") == []


def test_ending_all_ends_what_forks_faster_than_one_looks() -> None:
    breeder = subprocess.Popen(
        ["sh", "-c", "while :; do setsid sleep 30 & sleep 0.005; done"],
        env={"TUNE_INSTANCE": "mark-2", "PATH": os.environ["PATH"]},
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        breeder.wait(0.2)
    assert processes.end_all(lambda: processes.marked("mark-2"), clock=SystemClock())
    assert processes.marked("mark-2") == []
    breeder.wait()


def test_somebody_who_cannot_be_killed_is_reported_and_not_waited_for_for_ever(sleeper) -> None:
    class Unkillable:
        pid = sleeper.pid

    class Quick(SystemClock):
        now_s = 0.0

        def monotonic(self) -> float:
            return self.now_s

        def sleep(self, seconds: float) -> None:
            self.now_s += 1

    import psutil

    immune = psutil.Process(sleeper.pid)
    looks = []

    def members():
        looks.append(1)
        return [psutil.Process(os.getpid()), *([immune] if len(looks) < 100 else [])]

    assert not processes.end_all(members, clock=Quick(), patience_s=5)
    assert len(looks) < 20


def test_a_lock_falls_with_its_holder(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert not processes.lock_is_held(lock), "no file, no holder"
    lock.touch()
    assert not processes.lock_is_held(lock)
    code = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"1\n"
    assert processes.lock_is_held(lock)
    holder.kill()
    holder.communicate()
    assert not processes.lock_is_held(lock)
    with lock.open() as mine:
        fcntl.flock(mine, fcntl.LOCK_SH)
        assert not processes.lock_is_held(lock), "two that only look do not see each other"
