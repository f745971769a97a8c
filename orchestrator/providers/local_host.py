"""The machine around one local instance: starts it, obeys requests, and leaves no process behind.

A process of its own that outlives whoever rented the instance. It is to the instance what a hypervisor is to a virtual
machine: it makes itself the parent of every orphan inside (Linux), and what it ends stays ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from orchestrator import processes
from orchestrator.clock import Clock, SystemClock
from orchestrator.providers import local_folder as layout

if TYPE_CHECKING:
    import psutil

POLL_S = 0.1
CENSUS_S = 2.0  # how often the members are written down, for whoever must clean up after a killed host
DEADLINE_GRACE_S = 60.0  # the instance ends itself at its deadline; the host only when that failed
_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>

# This very package, not another version that is installed: behind the system's modules, before all others.
_BOOTSTRAP = """
import sys
sites = [i for i, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages"))]
sys.path.insert(min(sites, default=len(sys.path)), sys.argv[1])
from orchestrator.providers.local_host import main
main(*sys.argv[2:])
"""


def command(folder: Path, lock_fd: int) -> list[str]:
    """Starts a host for `folder` and ends at once, the host living on. Works from a source tree and when installed."""
    package_root = Path(__file__).resolve().parents[2]
    return [sys.executable, "-P", "-c", _BOOTSTRAP, str(package_root), str(folder), str(lock_fd)]


def main(folder: str, lock_fd: str) -> None:
    """Leave the caller's family, then live as long as the instance does."""
    if os.fork():
        os._exit(0)  # the caller collects this one; the host itself is nobody's child to forget
    os.set_inheritable(int(lock_fd), False)  # the lock says "the host lives", so nobody inside may inherit it
    Host(Path(folder), SystemClock()).live()


class Host:
    """One instance's life."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._main: subprocess.Popen[bytes] | None = None
        self._main_ended = ""
        self._signalled = ""
        self._census: set[processes.Identity] = set()

    def live(self) -> None:
        """Returns when there is nothing left to look after."""
        _adopt_orphans()
        signal.signal(signal.SIGHUP, self._on_signal)  # handlers, not "ignore": what is ignored is inherited
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        boot = layout.read_json(self._folder / layout.BOOT)
        deadline_s = float(boot.get("deadline_s") or 0)
        me = processes.identify(os.getpid())
        born = looked = self._clock.monotonic()
        try:
            if not self._wish():
                self._start(str(boot["start_command"]), dict(boot["env"]))
            layout.write_json(self._folder / layout.HOST, asdict(me) if me else {})
            while not self._obey(overdue=0 < deadline_s < self._clock.monotonic() - born - DEADLINE_GRACE_S):
                self._reap()
                if self._clock.monotonic() - looked > CENSUS_S:
                    looked = self._clock.monotonic()
                    self._write_census()
                self._clock.sleep(POLL_S)
        except FileNotFoundError:
            self._end_everybody()  # the folder was taken away from under us

    def _start(self, start_command: str, env: dict[str, str]) -> None:
        with (self._folder / layout.CONSOLE).open("ab") as console:
            # kept: a forgotten Popen collects its child by itself, and the exit code would be lost to `_reap`
            self._main = subprocess.Popen(
                ["/bin/sh", "-c", start_command],
                cwd=self._folder / layout.HOME,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGHUP:  # a closed terminal is none of our business
            self._signalled = f"the host was ended by {signal.Signals(number).name}"

    def _wish(self) -> str:
        """What is asked for, the most final request first."""
        for wish in layout.WISHES:
            if (self._folder / wish).exists():
                return wish
        if not self._folder.exists():
            raise FileNotFoundError(self._folder)
        return ""

    def _obey(self, *, overdue: bool) -> bool:
        """True once the instance has come to its end, one way or the other."""
        wish = layout.TERMINATE if overdue else self._wish()
        reason = layout.WISHES[wish] if wish else self._signalled or self._main_ended
        if not wish and not reason:
            return False
        if not self._end_everybody():
            return False  # somebody cannot be killed yet; the next round tries again
        if reason:
            layout.halt(self._folder, reason)
        else:
            layout.vanish(self._folder)
        return True

    def _end_everybody(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            layout.request(self._folder, layout.ENDING)  # before the first look: what starts later sees it and leaves
        ended = processes.end_all(self._members, clock=self._clock)
        self._reap()
        return ended

    def _members(self) -> list[psutil.Process]:
        return [*processes.descendants(os.getpid()), *processes.marked(self._folder.name)]

    def _reap(self) -> None:
        """Collect the dead, the adopted ones too."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if self._main and pid == self._main.pid:
                    self._main_ended = f"the start command ended with {os.waitstatus_to_exitcode(status)}"

    def _write_census(self) -> None:
        now = {who for p in processes.descendants(os.getpid()) if (who := processes.identify(p.pid))}
        if now != self._census:
            self._census = now
            layout.write_json(self._folder / layout.MEMBERS, {"members": [asdict(who) for who in now]})


def _adopt_orphans() -> None:
    """Become the parent of whatever loses its parent below us. Only Linux can; elsewhere the marker must do."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
