"""What a local instance looks like on disk. Provider and host agree here, and nowhere else.

    <state_dir>/local/instances/<id>/
        instance.json   Record: token, spec, price; in place before the folder gets its name
        boot.json       start command, environment, deadline: what the host starts
        alive.lock      held by whoever keeps the instance alive: first its creator, then its host
        kill.lock       held by whoever ends an instance that has no host
        host.json       identity of the host, written by the host
        members.json    identities of the processes inside, for the case that the host is killed
        end, terminate, vanish, outbid, stop    requests (WISHES); `end` is how the instance asks for its own end
        ending          its processes are being ended, or have been: nothing may be started inside any more
        stopped.json    why it computes nothing any more
        home/ user/ tmp/    TUNE_HOME, HOME, TMPDIR of the instance
        console.log host.log

Gone means that the folder is gone: it is renamed away in one step after the last process has ended, then removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import processes
from orchestrator.types import InstanceState, LaunchSpec

if TYPE_CHECKING:
    import psutil

    from orchestrator.clock import Clock

RECORD, BOOT, ALIVE, KILL = "instance.json", "boot.json", "alive.lock", "kill.lock"
HOST, MEMBERS, ENDING, STOPPED = "host.json", "members.json", "ending", "stopped.json"
HOME, USER, TMP = "home", "user", "tmp"
CONSOLE, HOST_LOG = "console.log", "host.log"
END, TERMINATE, VANISH, OUTBID, STOP = "end", "terminate", "vanish", "outbid", "stop"
WISHES = {END: "", TERMINATE: "", VANISH: "", OUTBID: "outbid", STOP: "stopped"}
"""Requests, the most final first, and the reason with which the instance stays listed; none means that it goes."""
STAGED, TRASH = ".new-", ".gone-"  # not instances yet, not instances any more


@dataclass(frozen=True, slots=True)
class Record:
    """`instance.json`: what was rented, for whom, at what price."""

    instance_id: str
    token: str
    offer_id: str
    usd_per_hour: Decimal
    host_id: str
    created_at: datetime
    spec: LaunchSpec
    format: int = 1


def write(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """All of it or nothing. Never makes a folder: one that is gone stays gone."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(data)
            if durable:
                out.flush()
                os.fsync(out.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, plain: object) -> None:
    write(path, json.dumps(plain).encode())


def read_json(path: Path) -> Mapping[str, Any]:
    """A small file of our own; empty when it is absent or torn, which the callers treat alike."""
    try:
        plain = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return plain if isinstance(plain, dict) else {}


def sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def request(folder: Path, wish: str) -> None:
    """Ask (or, with ENDING, tell). An earlier one keeps its time. FileNotFoundError when the instance is gone."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(folder / wish, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def state(folder: Path) -> InstanceState:
    """From what lives, never from what was once written down."""
    if not processes.lock_is_held(folder / ALIVE) or (folder / STOPPED).exists():
        return InstanceState.STOPPED
    return InstanceState.RUNNING if (folder / HOST).exists() else InstanceState.STARTING


def members(folder: Path) -> list[psutil.Process]:
    """Who runs inside: by marker, and by what the host last saw, for those that have shed their environment."""
    seen = read_json(folder / MEMBERS).get("members")
    known = [who for plain in seen if (who := processes.identity_from(plain))] if isinstance(seen, list) else []
    return [*processes.marked(folder.name), *processes.with_descendants(known)]


def kill_host(folder: Path) -> None:
    """End a host that does not answer: that very process, and only while it holds the instance alive."""
    import psutil

    who = processes.identity_from(read_json(folder / HOST))
    if who and processes.lock_is_held(folder / ALIVE) and processes.is_alive(who):
        with contextlib.suppress(psutil.Error):
            psutil.Process(who.pid).kill()


@contextlib.contextmanager
def sole_killer(folder: Path) -> Iterator[bool]:
    """False when somebody else is at it. FileNotFoundError when the instance is gone."""
    fd = os.open(folder / KILL, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(fd)


def halt(folder: Path, reason: str) -> None:
    """Leave it listed as stopped, with the reason. Its processes must have ended before."""
    write_json(folder / STOPPED, {"reason": reason})


def vanish(folder: Path) -> None:
    """Gone in one step, then its disk. Its processes must have ended before."""
    trash = folder.with_name(f"{TRASH}{folder.name}-{secrets.token_hex(4)}")
    try:
        folder.rename(trash)
    except FileNotFoundError:
        return  # somebody was quicker
    remove_tree(trash)


def remove_tree(folder: Path) -> None:
    """Remove it, write-protected folders inside included. What cannot be removed is left for the next sweep."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for place, _, _ in os.walk(folder):  # never follows links
            with contextlib.suppress(OSError):
                Path(place).chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)


def sweep(root: Path, *, clock: Clock, staged_for_s: float = 3600) -> None:
    """Remove what a crash left half made or half removed. Nothing in it was, or is, an instance."""
    for path in root.glob(f"{TRASH}*"):
        remove_tree(path)
    for path in root.glob(f"{STAGED}*"):
        with contextlib.suppress(OSError):
            age_s = clock.now().timestamp() - path.stat().st_mtime
            if age_s > staged_for_s and not processes.lock_is_held(path / ALIVE):
                remove_tree(path)
