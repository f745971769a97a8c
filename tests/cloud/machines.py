"""Rented machines on loopback: real processes behind a real SSH server, which a fake marketplace starts and ends."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from orchestrator import processes
from orchestrator.clock import SystemClock
from tests.cloud.machine import ENDED, MARK, READY
from tests.cloud.nvidia_smi import Gpu

STARTS_WITHIN_S = 60.0  # an interpreter and its imports, on a computer that is busy with other tests
_LOOK_EVERY_S = 0.02
_REPOSITORY = Path(__file__).parents[2]
# Programs that would change the computer which plays the machine. Their stand-ins note how they were called, and fail
# as they do where nothing can be installed.
_FORBIDDEN = ("apt-get", "apt", "dpkg", "service", "systemctl", "sudo", "sshd", "reboot", "shutdown")


@dataclass(frozen=True, slots=True)
class Quirks:
    """How a machine differs from a good one. SSH comes up in the order of the first five."""

    no_ssh: bool = False  # nothing ever listens
    ssh_after_s: float = 0.0  # nothing listens before
    closes: int = 0  # so many first connections are closed at once
    silences: int = 0  # so many after them are kept without a banner
    auth_refusals: int = 0  # so many first logins are refused
    auth_after_s: float = 0.0  # keys are refused before
    no_sftp: bool = False
    banner: str = ""  # written to both streams before each command
    new_host_key: bool = False  # at each start
    vouches: bool = True  # the image lets the start command read the host keys
    ignores_command: bool = False  # the start command is never run
    ends_with_command: bool = False  # it is the container's first process: with it everything ends
    gpus: tuple[Gpu, ...] | None = None  # None: there is no nvidia-smi
    nvidia_smi_fails: str = ""  # what it says instead of an answer


GOOD = Quirks()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where its SSH listens."""

    host: str
    port: int


@dataclass
class _Live:
    folder: Path
    env: Mapping[str, str]
    command: str
    keys: list[str]
    quirks: Quirks
    reserved: socket.socket
    host: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(*self.reserved.getsockname())


@dataclass
class Machines:
    """Every machine of one fake marketplace. Thread-safe."""

    root: Path
    lives: dict[str, _Live] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def start(
        self,
        instance_id: str,
        *,
        env: Mapping[str, str],
        command: str,
        authorized_keys: Sequence[str] = (),
        quirks: Quirks | None = None,
    ) -> Endpoint:
        """A new machine. Returns at once, with the port that its SSH will have."""
        with self.lock:
            assert instance_id not in self.lives, f"there is a machine {instance_id}"
            folder = self.root / f"machine-{instance_id}"
            for name in ("root", "bin"):
                (folder / name).mkdir(parents=True)
            live = _Live(folder, env, command, list(authorized_keys), quirks or GOOD, _reserved_port())
            self.lives[instance_id] = live
            return self._boot(live)

    def add_key(self, instance_id: str, key: str) -> None:
        """A key that the marketplace puts on a living machine."""
        with self.lock:
            live = self.lives[instance_id]
            live.keys.append(key)
            own = live.folder / "root" / ".ssh" / "authorized_keys"
            own.parent.mkdir(mode=0o700, exist_ok=True)
            with own.open("a") as file:
                file.write(key + "\n")

    def stop(self, instance_id: str, *, wipes: bool = False) -> None:
        """Power off at once, whoever runs. The disk stays, unless this marketplace wipes it."""
        with self.lock:
            if live := self.lives.get(instance_id):
                self._kill(live)
                if wipes:
                    shutil.rmtree(live.folder / "root")
                    (live.folder / "root").mkdir()

    def resume(self, instance_id: str, *, quirks: Quirks | None = None) -> Endpoint:
        """Power on again: the same disk and port, the start command once more. Off first if it was on."""
        with self.lock:
            live = self.lives[instance_id]
            self._kill(live)
            live.quirks = quirks or live.quirks
            return self._boot(live)

    restart = resume

    def destroy(self, instance_id: str) -> None:
        """Power off and wipe the disk. Harmless twice."""
        with self.lock:
            if live := self.lives.pop(instance_id, None):
                self._kill(live)
                live.reserved.close()
                shutil.rmtree(live.folder, ignore_errors=True)

    def is_alive(self, instance_id: str) -> bool:
        """It is powered on."""
        live = self.lives.get(instance_id)
        return live is not None and live.host is not None and live.host.poll() is None

    def is_ready(self, instance_id: str) -> bool:
        """Its SSH server listens, whatever it makes of callers."""
        return self.is_alive(instance_id) and (self.folder(instance_id) / READY).exists()

    def endpoint(self, instance_id: str) -> Endpoint:
        return self.lives[instance_id].endpoint

    def wait_ready(self, instance_id: str) -> None:
        """Until its SSH server listens."""
        self._wait(instance_id, lambda: self.is_ready(instance_id))

    def wait_ended(self, instance_id: str) -> int:
        """Until the start command has ended; its exit code."""
        ended = self.folder(instance_id) / ENDED
        self._wait(instance_id, ended.exists)
        return int(ended.read_text())

    # Bad luck

    def freeze(self, instance_id: str) -> None:
        """Nothing moves any more, nothing answers, nothing is lost."""
        while awake := [p for p in members(self.folder(instance_id)) if _is_awake(p)]:  # some may just have forked
            for process in awake:
                with contextlib.suppress(psutil.Error):
                    process.suspend()

    def thaw(self, instance_id: str) -> None:
        """It goes on as if nothing had been."""
        for process in members(self.folder(instance_id)):
            with contextlib.suppress(psutil.Error):
                process.resume()

    def cut_off(self, instance_id: str) -> None:
        """No SSH comes through any more, old or new, while everything in the machine goes on. `thaw` mends it."""
        host = self.lives[instance_id].host
        assert host is not None
        with contextlib.suppress(psutil.Error):
            psutil.Process(host.pid).suspend()

    # What there is to see

    def folder(self, instance_id: str) -> Path:
        return self.lives[instance_id].folder

    def home(self, instance_id: str) -> Path:
        return self.folder(instance_id) / "root"

    def console(self, instance_id: str) -> str:
        """What the start command has said."""
        path = self.folder(instance_id) / "console.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def forbidden_calls(self, instance_id: str) -> list[str]:
        """Command lines of programs that would have changed the computer which plays the machine."""
        path = self.folder(instance_id) / "forbidden.log"
        return path.read_text().splitlines() if path.exists() else []

    def processes(self, instance_id: str) -> list[psutil.Process]:
        """Everything that runs in it, without the host around it."""
        live = self.lives[instance_id]
        return [p for p in members(live.folder) if live.host is None or p.pid != live.host.pid]

    def leftovers(self) -> list[str]:
        """What still runs of any machine that there ever was here: command lines."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if Path(process.environ().get(MARK, "/")).is_relative_to(self.root):
                    found.append(" ".join(process.cmdline()) or process.name())
        return found

    def close(self) -> None:
        """End all of them."""
        with self.lock:
            for instance_id in list(self.lives):
                self.destroy(instance_id)

    def _boot(self, live: _Live) -> Endpoint:
        _equip(live)
        told = {
            "env": dict(live.env),
            "command": live.command,
            "authorized_keys": live.keys,
            "quirks": asdict(live.quirks),
            "port": live.endpoint.port,
            "landlord": os.getpid(),
        }
        (live.folder / "machine.json").write_text(json.dumps(told))
        with (live.folder / "host.log").open("ab") as log:
            live.host = subprocess.Popen(
                [sys.executable, "-m", "tests.cloud.machine", str(live.folder)],
                cwd=_REPOSITORY,
                env={**os.environ, MARK: str(live.folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return live.endpoint

    def _wait(self, instance_id: str, until: Callable[[], bool]) -> None:
        live = self.lives[instance_id]
        give_up = time.monotonic() + STARTS_WITHIN_S
        while not until():
            if time.monotonic() > give_up or not self.is_alive(instance_id):
                if until():
                    return
                raise RuntimeError(f"{instance_id}: {(live.folder / 'host.log').read_text()}")
            time.sleep(_LOOK_EVERY_S)

    def _kill(self, live: _Live) -> None:
        assert processes.end_all(lambda: members(live.folder), clock=SystemClock()), f"{live.folder} cannot be ended"
        if live.host is not None:
            live.host.wait()
        (live.folder / READY).unlink(missing_ok=True)


def members(folder: Path) -> list[psutil.Process]:
    """Whatever runs in a machine: what carries its mark, and what has dropped the mark but works in its folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(MARK) == str(folder) or Path(process.cwd()).is_relative_to(folder):
                found.append(process)
    return found


def _is_awake(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_STOPPED)
    return False


def _equip(live: _Live) -> None:
    """The programs of the image that are not this computer's own."""
    for name in _FORBIDDEN:
        _program(live, name, f'echo "{name} $*" >>"{live.folder}/forbidden.log"; exit 100')
    if live.quirks.gpus is not None:
        said = {"gpus": [asdict(gpu) for gpu in live.quirks.gpus], "fails": live.quirks.nvidia_smi_fails}
        (live.folder / "gpus.json").write_text(json.dumps(said))
        program = _REPOSITORY / "tests" / "cloud" / "nvidia_smi.py"
        _program(live, "nvidia-smi", f'exec "{sys.executable}" "{program}" "{live.folder}/gpus.json" "$@"')


def _program(live: _Live, name: str, script: str) -> None:
    path = live.folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _reserved_port() -> socket.socket:
    """A port that nobody else is given meanwhile. Nobody listens on this socket; the machine listens beside it."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


@contextlib.contextmanager
def machines_at(root: Path) -> Iterator[Machines]:
    """Machines below a folder; afterwards none of them runs, and none has left anything running."""
    made = Machines(root)
    try:
        yield made
    finally:
        made.close()
    assert made.leftovers() == [], "a machine has outlived its marketplace"
