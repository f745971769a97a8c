"""Processes, by way of /proc: who is alive, who belongs together, and how a whole trainer is ended.

A trainer is started under a marker in its environment and as the leader of its own session. Its data workers can
outlive it, so everything that carries the marker or belongs to the session counts as the trainer.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.clock import Clock

MARKER = "TUNE_TRAINER"

# The shell stays as the session's leader and keeps the exit code where a restarted agent finds it: once the agent that
# started a process is dead, nobody else can ask the kernel for it. It traps signals that are meant for the trainer.
_KEEPER = """trap : TERM INT HUP USR1
"$@"
code=$?
echo $code > "$TUNE_EXIT_FILE.part" && mv "$TUNE_EXIT_FILE.part" "$TUNE_EXIT_FILE"
exit $code"""


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table. `started` tells apart two processes that had the same pid."""

    pid: int
    parent: int
    session: int
    started: int
    state: str


def look(pid: int) -> Process | None:
    """The process with this pid, unless it is gone or only waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name stands in brackets and may hold anything, brackets and spaces included.
    fields = stat[stat.rfind(")") + 2 :].split()
    if len(fields) < 20 or fields[0] in {"Z", "X"}:
        return None
    state = fields[0]
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), state)


def everything() -> Iterator[Process]:
    """Every living process this user can see."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            process = look(int(entry.name))
            if process is not None:
                yield process


def carries(pid: int, marker: str) -> bool:
    """Its environment says that it belongs to the trainer `marker` names."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return os.fsencode(f"{MARKER}={marker}") in environment.split(b"\0")


def members(session: int, marker: str) -> list[Process]:
    """Every process of one trainer; either sign is enough."""
    own = os.getpid()
    return [p for p in everything() if p.pid != own and ((session and p.session == session) or carries(p.pid, marker))]


def start(
    argv: Sequence[str], *, env: Mapping[str, str], marker: str, exit_file: Path, log: Path, cwd: Path
) -> subprocess.Popen[bytes]:
    """Start a trainer in its own session, without a terminal, its output appended to `log`."""
    exit_file.unlink(missing_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "tune-trainer", *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=cwd,
            env={**env, MARKER: marker, "TUNE_EXIT_FILE": str(exit_file)},
            start_new_session=True,
        )


def signal_trainer(session: int, number: signal.Signals) -> None:
    """To the trainer itself and not to its workers, which would die of it before it can save."""
    for process in everything():
        if process.session == session and process.parent == session:
            _send(process.pid, number)


def signal_catchers(session: int, marker: str, number: signal.Signals) -> None:
    """To every process of the trainer that handles this signal; to others it would be deadly."""
    for process in members(session, marker):
        if _catches(process.pid, number):
            _send(process.pid, number)


def end(session: int, marker: str, *, clock: Clock, grace_s: float) -> None:
    """Ask once, wait up to `grace_s`, then kill until nobody is left."""
    if grace_s > 0 and members(session, marker):
        signal_trainer(session, signal.SIGTERM)
        until = clock.monotonic() + grace_s
        while clock.monotonic() < until and look(session) is not None:
            clock.sleep(0.05)
    for _ in range(200):  # a process that forks while we look is met in the next round
        left = members(session, marker)
        if not left:
            return
        for process in left:
            _send(process.pid, signal.SIGKILL)
        clock.sleep(0.02)


def _catches(pid: int, number: signal.Signals) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return
