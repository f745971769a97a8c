"""SSH servers on loopback: a real one that runs real commands, and the ways in which real ones are odd."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncssh


def host_key(kind: str = "ssh-ed25519") -> asyncssh.SSHKey:
    return asyncssh.generate_private_key(kind)


class Sshd:
    """A host with one user, whose home is a folder. Everything in it can be changed while it runs."""

    def __init__(self, home: Path, authorized: str = "") -> None:
        self.home = home
        self.host_keys = [host_key()]
        self.authorized = authorized  # one OpenSSH line; empty: whoever comes is let in
        self.refusals = 0  # so many logins are refused, whatever the key
        self.noise = ""  # what the shell's start-up files print on both streams
        self.shell = ["/bin/sh", "-c"]
        self.sftp = "real"  # real | none | closes | silent | garbage
        self.path = "/usr/bin:/bin"
        self.offered: list[str] = []  # keys
        self.commands: list[str] = []
        self.sftp_requests = 0
        self.sftp_limit: int | None = None  # bytes that fit into a file; the rest is lost without a word
        self.draft_modes: list[tuple[int, int]] = []  # of a file being written, and of its folder
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._children: list[asyncio.subprocess.Process] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def hang_up(self) -> None:
        """Every connection breaks at once; who listens goes on."""

        def cut() -> None:
            for task in list(self._tasks):
                task.cancel()

        self._loop.call_soon_threadsafe(cut)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        accepting = self._loop.create_task(self._accept())
        self._loop.run_forever()
        accepting.cancel()
        for task in self._tasks:
            task.cancel()
        left = [task for task in asyncio.all_tasks(self._loop) if task.cancel()]
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.run_until_complete(self._bury())
        self._loop.close()

    async def _bury(self) -> None:
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
            child._transport.close()  # type: ignore[attr-defined]  # somebody who left may hold its streams
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _accept(self) -> None:
        while True:
            connection, _ = await self._loop.sock_accept(self._listener)
            task = self._loop.create_task(self._let_in(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _let_in(self, connection: socket.socket) -> None:
        with contextlib.suppress(asyncssh.Error, OSError):
            served = await asyncssh.run_server(
                connection,
                server_factory=lambda: _Door(self),
                server_host_keys=list(self.host_keys),
                encoding=None,
                login_timeout=20,
            )
            try:
                await served.wait_closed()
            except asyncio.CancelledError:
                served.abort()

    async def run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        if process.subsystem:
            await self._odd_sftp(process)
            return
        said = f"printf '%s' {shlex.quote(self.noise)}\n"
        script = f"{said}{said[:-1]} >&2\n{process.command}" if self.noise else process.command or "true"
        child = await asyncio.create_subprocess_exec(
            *self.shell,
            script,
            cwd=self.home,
            env={"HOME": str(self.home), "PATH": self.path, "LANG": "C"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # as sshd does
        )
        self._children.append(child)
        assert child.stdin and child.stdout and child.stderr
        feeding = asyncio.create_task(_feed(process, child.stdin))
        try:
            # As sshd does: the channel stays open as long as somebody holds a stream.
            await asyncio.gather(_pump(child.stdout, process.stdout), _pump(child.stderr, process.stderr))
            code = await child.wait()
            process.exit(code if code >= 0 else 128 - code)
        finally:
            feeding.cancel()

    async def _odd_sftp(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        if self.sftp == "silent":
            await asyncio.Event().wait()
        if self.sftp == "garbage":  # a start-up file that greets everybody
            process.stdout.write(b"Welcome, and good luck with your training!\n")
            await asyncio.Event().wait()
        process.exit(1)


class _Door(asyncssh.SSHServer):
    def __init__(self, sshd: Sshd) -> None:
        self._sshd = sshd

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        line = key.export_public_key().decode().strip()
        self._sshd.offered.append(" ".join(line.split()[:2]))
        if self._sshd.refusals > 0:
            self._sshd.refusals -= 1
            return False
        return not self._sshd.authorized or line.split()[1] == self._sshd.authorized.split()[1]

    def session_requested(self) -> asyncssh.SSHServerProcess[bytes]:
        return _Session(self._sshd)


class _Session(asyncssh.SSHServerProcess[bytes]):
    def __init__(self, sshd: Sshd) -> None:
        factory: Any = (lambda channel: _Files(channel, sshd)) if sshd.sftp == "real" else None
        super().__init__(sshd.run, factory, 3, False)  # type: ignore[arg-type]
        self._sshd = sshd

    def exec_requested(self, command: str) -> bool:
        self._sshd.commands.append(command)
        return super().exec_requested(command)

    def subsystem_requested(self, subsystem: str) -> bool:
        self._sshd.sftp_requests += 1
        return self._sshd.sftp != "none" and super().subsystem_requested(subsystem)


class _Files(asyncssh.SFTPServer):
    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], sshd: Sshd) -> None:
        super().__init__(channel)
        self._sshd = sshd

    def write(self, file_obj: object, offset: int, data: bytes) -> int:
        path = Path(os.fsdecode(file_obj.name))  # type: ignore[attr-defined]
        self._sshd.draft_modes.append((path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777))
        limit = self._sshd.sftp_limit
        if limit is not None:
            kept = data[: max(0, limit - offset)]
            if kept:
                super().write(file_obj, offset, kept)
            return len(data)
        written = super().write(file_obj, offset, data)
        assert isinstance(written, int)
        return written


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


class Street:
    """What lies between us and a host. Each connection meets the next of its `moods`, the last one for ever.

    close: accepted and closed · reset: the same, rudely · silent: kept without a word · http: another protocol ·
    good: through to the host. Before `open()` nobody listens.
    """

    def __init__(self, target: int, moods: Sequence[str] = ("good",)) -> None:
        self._target, self._moods = target, list(moods)
        self._frozen = threading.Event()
        self._kept: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.met: list[str] = []
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self._listener.bind(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def open(self) -> Street:
        self._listener.listen(16)
        self._start(self._accept)
        return self

    def freeze(self) -> None:
        """From now on nothing comes through, in either direction, and nobody is told."""
        self._frozen.set()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for kept in self._kept:
            with contextlib.suppress(OSError):
                kept.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for kept in self._kept:
            kept.close()

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            mood = self._moods.pop(0) if len(self._moods) > 1 else self._moods[0]
            self.met.append(mood)
            self._kept.append(caller)
            if mood == "close":
                caller.close()
            elif mood == "reset":
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                caller.close()
            elif mood == "http":
                caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                caller.shutdown(socket.SHUT_WR)
            elif mood == "good":
                host = socket.create_connection(("127.0.0.1", self._target))
                self._kept.append(host)
                self._start(self._carry, caller, host)
                self._start(self._carry, host, caller)

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not self._frozen.is_set() and (data := source.recv(16384)):
                if self._frozen.is_set():
                    return
                sink.sendall(data)
            if not self._frozen.is_set():
                sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """A port that drops what knocks: its queue is full, and nobody ever takes from it."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(2):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
