"""One rented machine, imitated by a process: an SSH server on loopback, and the container's start command beside it.

    python -m tests.cloud.machine FOLDER

Everything that runs in it carries a mark, so that whoever plays the marketplace can end all of it. It ends itself when
that somebody is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import asyncssh

MARK = "TUNE_FAKE_INSTANCE"
READY = "ready"  # holds the port once the server listens
SSH_ENV = ("PATH", "LANG")  # what a login gets; the container's own environment is not in it


class Machine:
    """The host around a container."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        told = json.loads((folder / "machine.json").read_text())
        self.env: dict[str, str] = told["env"]
        self.command: str = told["command"]
        self.keys: list[str] = told["authorized_keys"]
        self.quirks: dict[str, Any] = told["quirks"]
        self.port: int = told["port"]
        self.home = folder / "root"
        self.started = time.monotonic()

    def container_env(self) -> dict[str, str]:
        return {**self.env, **self.login_env()}

    def login_env(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
        return {
            "PATH": path,
            "HOME": str(self.home),
            "USER": "root",
            "SHELL": "/bin/sh",
            "LANG": "C",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            MARK: self.folder.name,
        }

    def authorized(self) -> str:
        """As sshd does it: read afresh at each login."""
        own = self.home / ".ssh" / "authorized_keys"
        text = own.read_text() if own.exists() else ""
        return "\n".join([*self.keys, *text.splitlines()]) + "\n"

    def start_command(self) -> subprocess.Popen[bytes] | None:
        if not self.command:
            return None
        with (self.folder / "console.log").open("ab") as log:
            return subprocess.Popen(
                ["/bin/sh", "-c", self.command],
                cwd=self.home,
                env=self.container_env(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


class Door(asyncssh.SSHServer):
    """Lets in whoever holds an authorised key."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.conn: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.conn = conn

    def begin_auth(self, username: str) -> bool:
        late = self.machine.quirks.get("auth_after_s", 0)
        keys = "" if time.monotonic() - self.machine.started < late else self.machine.authorized()
        assert self.conn is not None
        with contextlib.suppress(ValueError):
            self.conn.set_authorized_keys(asyncssh.import_authorized_keys(keys))
        return True


async def _serve_command(process: asyncssh.SSHServerProcess[bytes], machine: Machine) -> None:
    noise = machine.quirks.get("banner", "")
    script = process.command or "true"
    if noise:
        script = f"printf '%s\\n' '{noise}'; printf '%s\\n' '{noise}' >&2; {script}"
    child = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        script,
        cwd=machine.home,
        env=machine.login_env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    feeding = asyncio.create_task(_feed(process, child.stdin))
    try:
        await asyncio.gather(_pump(child.stdout, process.stdout), _pump(child.stderr, process.stderr))
        code = await child.wait()
        process.exit(code if code >= 0 else 128 - code)
    finally:
        feeding.cancel()


async def _feed(process: asyncssh.SSHServerProcess[bytes], stdin: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncssh.Error, OSError):
        while data := await process.stdin.read(65536):
            stdin.write(data)
            await stdin.drain()
    stdin.close()


async def _pump(stream: asyncio.StreamReader, into: asyncssh.SSHWriter[bytes]) -> None:
    with contextlib.suppress(ConnectionError, asyncssh.Error, OSError):
        while data := await stream.read(65536):
            into.write(data)
            await into.drain()


async def _main(folder: Path) -> None:
    machine = Machine(folder)
    machine.home.mkdir(exist_ok=True)
    key_path = folder / "host_key"
    if not key_path.exists() or machine.quirks.get("new_host_key"):
        asyncssh.generate_private_key("ssh-ed25519").write_private_key(str(key_path))
    if machine.quirks.get("vouches", True):
        # Where the image keeps them; the start command of this imitation reads them from here.
        (folder / "host_key.pub").write_bytes(asyncssh.read_private_key(str(key_path)).export_public_key())
    if delay := machine.quirks.get("ssh_after_s", 0):
        child = machine.start_command()
        await asyncio.sleep(delay)
    else:
        child = machine.start_command()

    async def command(process: asyncssh.SSHServerProcess[bytes]) -> None:
        await _serve_command(process, machine)

    server = await asyncssh.create_server(
        lambda: Door(machine),
        "127.0.0.1",
        machine.port,
        server_host_keys=[str(key_path)],
        process_factory=command,
        encoding=None,
        sftp_factory=None if machine.quirks.get("no_sftp") else True,
        allow_scp=False,
        login_timeout=20,
    )
    port = server.sockets[0].getsockname()[1]
    draft = folder / f".{READY}"
    draft.write_text(str(port))
    draft.replace(folder / READY)
    parent = os.getppid()
    while os.getppid() == parent:
        if child is not None:
            child.poll()
        await asyncio.sleep(0.5)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    try:
        asyncio.run(_main(folder))
    finally:
        from orchestrator import processes
        from orchestrator.clock import SystemClock

        processes.end_all(lambda: processes.marked(folder.name, name=MARK), clock=SystemClock())


if __name__ == "__main__":
    main()
