"""Which processes belong together, and how to end every one of them.

A process group is not enough: a daemon leaves its group and its session. So the members of a tree are found twice over:
by a marker in the environment that children inherit, and by descent. Killing is repeated until two looks in a row
find nobody, because a process may fork and leave between two lines of one look.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil

    from orchestrator.clock import Clock

MARKER = "TUNE_INSTANCE"  # in the environment of everything that runs inside a local instance
HOST_MARKER = "TUNE_INSTANCE_HOST"  # in the environment of the process that plays the machine around it

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOOK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, for good: a process id alone is given to somebody else sooner or later."""

    pid: int
    since_boot_s: float  # hundredths; unlike a start time of day it does not move when the clock is set
    boot: str  # empty where the system has no boot id


def boot_id() -> str:
    """Changes with every boot; empty where the system does not tell."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def identify(pid: int) -> Identity | None:
    """Who has this process id now; None for nobody, and for a corpse that waits to be collected."""
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return Identity(pid, round(process.create_time() - psutil.boot_time(), 2), boot_id())
    except psutil.Error:
        return None


def is_alive(who: Identity) -> bool:
    """Whether this very process lives, and not another one with its number."""
    return identify(who.pid) == who


def identity_from(plain: Mapping[str, Any]) -> Identity | None:
    """From JSON; None for anything that is not an identity."""
    try:
        return Identity(int(plain["pid"]), float(plain["since_boot_s"]), str(plain["boot"]))
    except (KeyError, TypeError, ValueError):
        return None


def marked(value: str, *, name: str = MARKER) -> list[psutil.Process]:
    """Every living process that was started with `name=value` in its environment."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # gone meanwhile, or another user's: not ours to touch either way
    return found


def descendants(pid: int) -> list[psutil.Process]:
    """Living children, grandchildren and so on, without `pid` itself."""
    import psutil

    with contextlib.suppress(psutil.Error):
        return [p for p in psutil.Process(pid).children(recursive=True) if _lives(p)]
    return []


def with_descendants(roots: Iterable[Identity]) -> list[psutil.Process]:
    """Those of `roots` that still live, and whatever they have started."""
    import psutil

    found = []
    for who in roots:
        if is_alive(who):
            with contextlib.suppress(psutil.Error):
                found += [psutil.Process(who.pid), *descendants(who.pid)]
    return found


def end_all(members: Callable[[], Iterable[psutil.Process]], *, clock: Clock, patience_s: float = 10) -> bool:
    """Kill whatever `members` finds until it finds nobody twice running. False: somebody is still there.

    Everyone is halted before anyone is killed, so that nobody forks faster than we look. The caller is never a member.
    """
    import psutil

    give_up = clock.monotonic() + patience_s
    empty_looks = 0
    while empty_looks < 2:
        found = [p for p in members() if p.pid != os.getpid()]
        empty_looks = 0 if found else empty_looks + 1
        for act in (psutil.Process.suspend, psutil.Process.kill):
            for process in found:
                with contextlib.suppress(psutil.Error):
                    act(process)
        if found:
            if clock.monotonic() > give_up:
                return False
            clock.sleep(_LOOK_AGAIN_S)
    return True


def lock_is_held(path: Path) -> bool:
    """Somebody alive holds this lock. The kernel lets go of it when its holder dies, however it dies."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _lives(process: psutil.Process) -> bool:
    import psutil

    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
