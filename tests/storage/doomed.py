"""Run as a program: kills writers at every call that changes the disk, and at drawn moments, and reports what is left.

A fresh process would take longer to start than to die, so writers are forked from this one, which does nothing else.
The calls are those of the operating system; the store itself knows nothing of this.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.errors import RunNotFound
from orchestrator.storage.local import LocalStore
from orchestrator.storage.runs import RunStore
from orchestrator.types import Namespace, Phase, Run, RunId

CALLS = ("open", "write", "fsync", "replace", "rename", "link", "unlink", "utime", "mkdir", "rmdir", "close")
RUN_ID = RunId("0123456789")
BORN = Run(RUN_ID, "doomed", Namespace("abcdef"), datetime(2026, 1, 1, tzinfo=UTC), "r", "d", "sim")
DRAWN_KILLS = 120


def die_at(number: int, *, after: bool) -> None:
    """SIGKILL this process at its `number`-th call, before it is made or right after."""
    left = [number]

    def wrapped(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            left[0] -= 1
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return real(*args, **kwargs)
            finally:
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call

    for name in CALLS:
        setattr(os, name, wrapped(getattr(os, name)))


def in_a_child(act: Callable[[], None]) -> int:
    """The signal that ended it, or 0 when it came to its end."""
    child = os.fork()
    if child == 0:
        act()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) * -1


def enumerate_kills(root: Path, prepare: Callable[[RunStore], None], act: Callable[[RunStore], None]) -> dict[str, int]:
    """Kill at each call in turn, until one child lives to the end; after each death, look at what is left."""
    killed = old = new = 0
    for number in range(1, 200):
        for after in (False, True):
            folder = root / f"{number}{'-after' if after else ''}"
            runs = RunStore(LocalStore(folder))
            prepare(runs)
            before = state(runs)

            def doomed(folder: Path = folder, number: int = number, *, after: bool = after) -> None:
                store = RunStore(LocalStore(folder))
                die_at(number, after=after)
                act(store)

            ended = in_a_child(doomed)
            now = state(RunStore(LocalStore(folder)))
            if ended == 0:
                return {"killed": killed, "old": old, "new": new}
            assert ended == signal.SIGKILL, ended
            killed += 1
            old += now == before
            new += now != before
            assert_whole(folder)
    raise AssertionError("it never came to its end")


def state(runs: RunStore) -> str:
    """What a reader sees of the run; raises when the record is torn."""
    try:
        run = runs.load(RUN_ID).run
    except RunNotFound:
        return "none"
    assert run.reason in ("", "first", "second"), run.reason
    assert run.phase.is_terminal or RUN_ID in runs.active(), "an active run without its marker would be forgotten"
    return f"{run.phase}/{run.reason}"


def assert_whole(folder: Path) -> None:
    """The next process works at once, and clears away what the dead one left."""
    runs = RunStore(LocalStore(folder))
    try:
        found = runs.load(RUN_ID)
    except RunNotFound:
        runs.create(BORN)
        found = runs.load(RUN_ID)
    runs.save(replace(found.run, phase=Phase.RUNNING, reason="second"), expect=found.version)
    assert runs.load(RUN_ID).run.reason == "second"
    assert list((folder / "%tune" / "unfinished").iterdir()) == []
    assert {info.key for info in runs.store.scan("")} == {f"active/{RUN_ID}", f"runs/{RUN_ID}/run.json"}


def drawn_kills(folder: Path) -> dict[str, int]:
    """A writer counts up and is killed at a drawn moment: what it had reported as saved is never lost."""
    draw = random.Random(20260301)
    runs = RunStore(LocalStore(folder))
    runs.create(replace(BORN, resumes=0))
    moved = 0
    for _ in range(DRAWN_KILLS):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            mine = RunStore(LocalStore(folder))
            while True:
                found = mine.load(RUN_ID)
                count = found.run.resumes + 1
                mine.save(replace(found.run, resumes=count), expect=found.version)
                os.write(writer, b"%d\n" % count)
        os.close(writer)
        time.sleep(draw.uniform(0.001, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reader, "rb") as pipe:
            reported = [int(line) for line in pipe.read().splitlines()]
        count = runs.load(RUN_ID).run.resumes
        last = reported[-1] if reported else count
        assert last <= count <= last + 1, (reported, count)
        moved += len(reported)
    return {"killed": DRAWN_KILLS, "saved": moved}


def main(root: Path) -> None:
    def born(runs: RunStore) -> None:
        runs.create(replace(BORN, reason="first"))

    def ended(runs: RunStore) -> None:
        born(runs)
        save(runs, Phase.FAILED, "first")

    def save(runs: RunStore, phase: Phase, reason: str) -> None:
        found = runs.load(RUN_ID)
        runs.save(replace(found.run, phase=phase, reason=reason), expect=found.version)

    report = {
        "create": enumerate_kills(root / "create", lambda _: None, born),
        "save": enumerate_kills(root / "save", born, lambda runs: save(runs, Phase.RUNNING, "second")),
        "end": enumerate_kills(root / "end", born, lambda runs: save(runs, Phase.SUCCEEDED, "second")),
        "reopen": enumerate_kills(root / "reopen", ended, lambda runs: save(runs, Phase.PENDING, "second")),
        "drawn": drawn_kills(root / "drawn"),
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
