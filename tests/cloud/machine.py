"""One rented machine, imitated by a process: an SSH server on loopback, and the container's start command beside it.

    python -m tests.cloud.machine FOLDER

FOLDER holds `machine.json` (what the marketplace gave it), `root/` (the home of its only user), `bin/` (first in its
PATH), `console.log` (what the start command says) and `host.log` (what this process says). Everything that runs in the
machine carries a mark, so that whoever plays the marketplace can end all of it. The machine ends with that somebody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import asyncssh

MARK = "TUNE_FAKE_INSTANCE"  # in the environment of everything that runs in a machine; its value is the folder
READY = "ready"  # there is an SSH server now
ENDED = "ended"  # the start command has ended; its exit code
_LOOK_EVERY_S = 0.1


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
        self.landlord: int = told["landlord"]
        self.home = folder / "root"
        self.began = time.monotonic()
        self.logins_to_refuse: int = self.quirks["auth_refusals"]

    def container_env(self) -> dict[str, str]:
        """Of the first process: here alone is what the marketplace was told to set."""
        return {**self.env, **self.login_env()}

    def login_env(self) -> dict[str, str]:
        """Of a login. The container's own environment is not in it, as on the real ones."""
        return {
            "PATH": f"{self.folder / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self.home),
            "USER": "root",
            "SHELL": "/bin/sh",
            "LANG": "C",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",  # nothing in a rehearsal leaves this computer
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            **({"TUNE_HOST_KEYS": str(self.folder / "host_key.pub")} if self.quirks["vouches"] else {}),
            MARK: str(self.folder),
        }

    def host_key(self) -> asyncssh.SSHKey:
        """The same at every start, unless the machine is odd."""
        path = self.folder / "host_key"
        if not path.exists() or self.quirks["new_host_key"]:
            key = asyncssh.generate_private_key("ssh-ed25519")
            key.write_private_key(str(path))
            key.write_public_key(f"{path}.pub")
        return asyncssh.read_private_key(str(path))

    def authorized(self) -> str:
        """As sshd does it: read afresh at each login."""
        own = self.home / ".ssh" / "authorized_keys"
        text = own.read_text() if own.exists() else ""
        return "\n".join([*self.keys, *text.splitlines()]) + "\n"

    def lets_in(self) -> bool:
        """Whether the keys have arrived yet."""
        if self.logins_to_refuse > 0:
            self.logins_to_refuse -= 1
            return False
        return bool(time.monotonic() - self.began >= self.quirks["auth_after_s"])

    def start_command(self) -> subprocess.Popen[bytes] | None:
        (self.folder / ENDED).unlink(missing_ok=True)
        if not self.command or self.quirks["ignores_command"]:
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
        keys = self.machine.authorized() if self.machine.lets_in() else ""
        assert self.conn is not None
        with contextlib.suppress(ValueError):  # no key at all
            self.conn.set_authorized_keys(asyncssh.import_authorized_keys(keys))
        return True


async def _serve_command(process: asyncssh.SSHServerProcess[bytes], machine: Machine) -> None:
    script = process.command or "true"
    if noise := machine.quirks["banner"]:
        said = f"printf '%s\\n' {shlex.quote(noise)}"
        script = f"{said}; {said} >&2; {script}"
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


async def _accept(listener: socket.socket, machine: Machine, options: asyncssh.SSHServerConnectionOptions) -> None:
    """SSH comes up in stages: connections are closed at once, then kept without a word, then served."""
    loop = asyncio.get_running_loop()
    closes, silences = machine.quirks["closes"], machine.quirks["silences"]
    kept: list[socket.socket] = []
    serving: set[asyncio.Task[None]] = set()
    while True:
        connection, _ = await loop.sock_accept(listener)
        if closes > 0:
            closes -= 1
            connection.close()
        elif silences > 0:
            silences -= 1
            kept.append(connection)
        else:
            task = asyncio.create_task(_let_in(connection, options))
            serving.add(task)
            task.add_done_callback(serving.discard)


async def _let_in(connection: socket.socket, options: asyncssh.SSHServerConnectionOptions) -> None:
    with contextlib.suppress(asyncssh.Error, OSError, TimeoutError):  # whoever does not get in hears it from SSH
        await asyncssh.run_server(connection, options=options)


def _listen(port: int) -> socket.socket:
    """On the port that the landlord keeps free with a socket of its own, on which nobody listens."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    listener.setblocking(False)
    return listener


def _options(machine: Machine) -> asyncssh.SSHServerConnectionOptions:
    async def command(process: asyncssh.SSHServerProcess[bytes]) -> None:
        await _serve_command(process, machine)

    return asyncssh.SSHServerConnectionOptions(
        server_factory=lambda: Door(machine),
        server_host_keys=[machine.host_key()],
        process_factory=command,
        encoding=None,
        sftp_factory=None if machine.quirks["no_sftp"] else asyncssh.SFTPServer,
        allow_scp=False,
        login_timeout=20,
    )


async def _main(machine: Machine) -> None:
    options = _options(machine)
    first = machine.start_command()
    await asyncio.sleep(machine.quirks["ssh_after_s"])
    if not machine.quirks["no_ssh"]:
        accepting = asyncio.create_task(_accept(_listen(machine.port), machine, options))
        accepting.add_done_callback(_raise_in_log)
        _write(machine.folder / READY, str(machine.port))
    while os.getppid() == machine.landlord:
        if first is not None and first.poll() is not None and not (machine.folder / ENDED).exists():
            _write(machine.folder / ENDED, str(first.returncode))
            if machine.quirks["ends_with_command"]:
                return
        await asyncio.sleep(_LOOK_EVERY_S)


def _raise_in_log(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        sys.stderr.write(f"{error!r}\n")


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.replace(path)


def main() -> None:
    from orchestrator import processes
    from orchestrator.clock import SystemClock
    from tests.cloud.machines import members

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the marketplace
    os.umask(0o022)
    folder = Path(sys.argv[1])
    machine = Machine(folder)
    os.chdir(machine.home)  # where SFTP starts
    try:
        asyncio.run(_main(machine))
    finally:
        processes.end_all(lambda: members(folder), clock=SystemClock())


if __name__ == "__main__":
    main()
