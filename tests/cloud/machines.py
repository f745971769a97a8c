"""Rented machines on loopback: real processes behind a real SSH server, which a fake marketplace starts and ends."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from orchestrator import processes
from orchestrator.clock import SystemClock
from tests.cloud.machine import MARK, READY

STARTS_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Quirks:
    """How a machine differs from a good one."""

    ssh_after_s: float = 0.0  # nothing listens before
    auth_after_s: float = 0.0  # keys are refused before
    no_sftp: bool = False
    banner: str = ""  # written to both streams before each command
    new_host_key: bool = False  # at each start
    gpus: tuple[str, ...] | None = None  # rows of nvidia-smi's CSV; None: no such program


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
    host: subprocess.Popen[bytes] | None = None
    port: int = 0


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
        """A new machine; returns once its SSH server is being started, with the port it will have."""
        with self.lock:
            folder = self.root / f"machine-{instance_id}"
            (folder / "root").mkdir(parents=True)
            (folder / "bin").mkdir()
            live = _Live(folder, env, command, list(authorized_keys), quirks or Quirks())
            self.lives[instance_id] = live
            self._nvidia_smi(live)
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

    def stop(self, instance_id: str) -> None:
        """Power off at once; the disk stays."""
        with self.lock:
            if live := self.lives.get(instance_id):
                self._kill(live)

    def resume(self, instance_id: str) -> Endpoint:
        """Power on again: the same disk, the start command once more."""
        with self.lock:
            return self._boot(self.lives[instance_id])

    def destroy(self, instance_id: str) -> None:
        """Power off and wipe the disk. Harmless twice."""
        with self.lock:
            if live := self.lives.pop(instance_id, None):
                self._kill(live)
                shutil.rmtree(live.folder, ignore_errors=True)

    def is_alive(self, instance_id: str) -> bool:
        live = self.lives.get(instance_id)
        return live is not None and live.host is not None and live.host.poll() is None

    def folder(self, instance_id: str) -> Path:
        return self.lives[instance_id].folder

    def close(self) -> None:
        """End all of them."""
        with self.lock:
            for instance_id in list(self.lives):
                self.destroy(instance_id)

    def _boot(self, live: _Live) -> Endpoint:
        (live.folder / READY).unlink(missing_ok=True)
        live.port = live.port or _free_port()
        told = {
            "env": dict(live.env),
            "command": live.command,
            "authorized_keys": live.keys,
            "quirks": asdict(live.quirks),
            "port": live.port,
        }
        (live.folder / "machine.json").write_text(json.dumps(told))
        with (live.folder / "host.log").open("ab") as log:
            live.host = subprocess.Popen(
                [sys.executable, "-m", "tests.cloud.machine", str(live.folder)],
                cwd=Path(__file__).parents[2],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return Endpoint("127.0.0.1", live.port)

    def wait_ready(self, instance_id: str) -> None:
        """Until its SSH server listens."""
        live = self.lives[instance_id]
        until = time.monotonic() + STARTS_WITHIN_S
        while not (live.folder / READY).exists():
            if time.monotonic() > until or (live.host and live.host.poll() is not None):
                raise RuntimeError((live.folder / "host.log").read_text())
            time.sleep(0.05)

    def _kill(self, live: _Live) -> None:
        if live.host is not None and live.host.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                live.host.send_signal(signal.SIGKILL)
            live.host.wait(10)
        name = live.folder.name
        assert processes.end_all(lambda: processes.marked(name, name=MARK), clock=SystemClock()), name

    @staticmethod
    def _nvidia_smi(live: _Live) -> None:
        if live.quirks.gpus is None:
            return
        rows = live.folder / "bin" / "gpus.csv"
        rows.write_text("".join(row + "\n" for row in live.quirks.gpus))
        program = live.folder / "bin" / "nvidia-smi"
        program.write_text(f"#!/bin/sh\ncat '{rows}'\n")
        program.chmod(0o755)


def _free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
