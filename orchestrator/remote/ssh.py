"""The way into a rented instance: SSH with the run's own key, to a host that is the same every time.

An instance's SSH comes up in stages (refused, closed, silent, key not yet known), so one connect tries a few times
within a short budget and then says how far it came; the orchestrator's passes do the long waiting.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from orchestrator.clock import Clock, SystemClock
from orchestrator.errors import RemoteError
from orchestrator.remote import sshkeys, sshpins
from orchestrator.remote.base import Completed
from orchestrator.remote.sshfiles import Files
from orchestrator.remote.sshshell import Framed, framed, kill_command, with_home
from orchestrator.types import Instance, parse_token

if TYPE_CHECKING:
    import paramiko

_LOG = "tune.ssh"  # paramiko tells every refused connection to the root logger otherwise


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each step may take, in seconds."""

    budget: float = 20.0  # for all tries of one connect
    tcp: float = 10.0  # a port that drops packets never answers
    banner: float = 15.0
    auth: float = 15.0
    between: float = 2.0
    keepalive: int = 15


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A place where an instance's SSH may answer."""

    host: str
    port: int
    user: str
    is_proxy: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class _Unready(Exception):
    """One try failed, at the stage it names."""


def connect(instance: Instance, *, state_dir: Path) -> SshRemote:
    """Reach an instance. Raises RemoteError when it does not answer in time, or is another machine than before."""
    return SshRemote(instance, state_dir=state_dir)


def endpoints(address: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """Where to knock, the direct way first: it is faster, and a proxy may not carry files."""
    found = []
    for kind, user in (("direct", address.get("user")), ("proxy", address.get("proxy_user"))):
        host, port = address.get(f"{kind}_host", ""), address.get(f"{kind}_port", "")
        if host and port.isdigit() and 0 < int(port) < 65536:
            found.append(Endpoint(host, int(port), user or address.get("user") or "root", is_proxy=kind == "proxy"))
    return tuple(found)


class SshRemote:
    """One instance, reached over SSH. One connection, used by one thread at a time."""

    def __init__(
        self, instance: Instance, *, state_dir: Path, clock: Clock | None = None, patience: Patience | None = None
    ) -> None:
        parts = parse_token(instance.token)
        if parts is None:
            raise RemoteError(f"{instance.instance_id} carries no token of ours; nobody logs in there")
        self._token = instance.token
        self._state_dir, self._run_id = state_dir, parts.run_id
        self._clock = clock or SystemClock()
        self._patience = patience or Patience()
        self._pin = sshpins.Pin(state_dir, parts.run_id, instance.token)
        self._home: str | None = None
        self._is_verified = False
        self._transport = self._connect(instance)
        self._files = Files(self._transport, self._exec)

    @property
    def is_verified(self) -> bool | None:
        """True: the instance has vouched for the host key we see. None: it is only the same as at first sight."""
        return self._is_verified or None

    @property
    def trust(self) -> str:
        """How far the other side is known to be the instance, in words."""
        return "its host key is verified" if self._is_verified else "its host key is pinned as first seen, not verified"

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> Completed:
        """Run a program in the tune home, or in the user's home while there is none. No secret belongs in `env`."""
        return self._exec(with_home(argv, env or {}, token=self._token), timeout_s=timeout_s, doing=argv[0])

    def put(self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = 120) -> None:
        """Write a file below the tune home, atomically, never readable to others before its mode is set."""
        home = self._tune_home()
        pure = PurePosixPath(path)
        with contextlib.suppress(ValueError):
            pure = pure.relative_to(home)
        if pure.is_absolute() or ".." in pure.parts or not pure.name or "\0" in path:
            raise RemoteError(f"{path!r} does not lie below the tune home")
        self._files.put(f"{home}/{pure}", data, mode=mode, timeout_s=timeout_s)

    def close(self) -> None:
        """Hang up. Harmless twice."""
        self._transport.close()

    def _tune_home(self) -> str:
        """Where the boot script has put the tune home; there too lie the proofs of the host keys."""
        if self._home is None:
            look = 'home=$(cat "$HOME/.tune/$1") && printf "%s\\n" "$home" && cat "$home/host-keys" 2>/dev/null; :'
            told = self._exec(f"set -- {shlex.quote(self._token)}; {look}", timeout_s=30)
            lines = told.stdout.decode("utf-8", "surrogateescape").splitlines()
            if not lines or not lines[0].startswith("/"):
                raise RemoteError("the instance has not booted yet: its start command has left no tune home")
            self._home = lines[0].rstrip("/")
            self._verify(lines[1:])
        return self._home

    def _verify(self, proofs: Sequence[str]) -> None:
        key = self._transport.get_remote_server_key()
        with contextlib.suppress(OSError):
            secret = sshpins.proof_secret(self._state_dir, self._run_id, self._token)
            self._is_verified = sshpins.proof(secret, key.asbytes()) in {line.strip() for line in proofs}

    def _connect(self, instance: Instance) -> paramiko.Transport:
        places = endpoints(instance.address)
        if not places:
            raise RemoteError(f"{instance.instance_id} has no SSH address yet")
        until = self._clock.monotonic() + self._patience.budget
        while True:
            why = []
            for place in places:
                try:
                    return self._knock(place)
                except _Unready as e:
                    why.append(f"{place}: {e}")
                if self._clock.monotonic() >= until:
                    break
            if self._clock.monotonic() + self._patience.between >= until:
                raise RemoteError("; ".join(why))
            self._clock.sleep(self._patience.between)

    def _knock(self, place: Endpoint) -> paramiko.Transport:
        import paramiko

        key = self._own_key()
        stage = "no connection"
        try:
            sock = socket.create_connection((place.host, place.port), timeout=self._patience.tcp)
        except OSError as e:
            raise _Unready(f"{stage}: {e.strerror or e}") from e
        transport = None
        try:
            transport = paramiko.Transport(sock)
            _hush(transport)
            transport.banner_timeout = self._patience.banner
            transport.auth_timeout = self._patience.auth
            stage = "no SSH answer"
            transport.start_client(timeout=self._patience.banner)
            theirs = transport.get_remote_server_key()
            self._pin.check(theirs.get_name(), theirs.asbytes())
            stage = "the key is refused"
            transport.auth_publickey(place.user, key)
            transport.set_keepalive(self._patience.keepalive)
        except (paramiko.SSHException, EOFError, OSError) as e:
            _end(transport, sock)
            raise _Unready(f"{stage}: {str(e) or type(e).__name__}") from e
        except BaseException:
            _end(transport, sock)
            raise
        return transport

    def _own_key(self) -> paramiko.PKey:
        import paramiko

        path = sshkeys.private_key_path(self._state_dir, self._run_id)
        try:
            return paramiko.Ed25519Key.from_private_key_file(str(path))
        except FileNotFoundError:
            raise RemoteError(
                "this computer has no key to the instance: another one has rented it",
                hint="let that computer carry the run on, or stop the run and resume it here",
            ) from None
        except (OSError, paramiko.SSHException) as e:
            raise RemoteError(f"the key {path} cannot be used: {e}") from e

    def _exec(self, script: str, *, timeout_s: float, stdin: bytes = b"", doing: str = "a command") -> Completed:
        """Run a POSIX sh script, framed so that banners of the login shell are not taken for its output."""
        import paramiko

        frame = framed(script)
        try:
            channel = self._transport.open_session(timeout=min(timeout_s, 30))
            with contextlib.closing(channel):
                channel.settimeout(timeout_s)
                channel.exec_command(frame.command)
                return self._collect(channel, frame, stdin, timeout_s)
        except TimeoutError:
            raise RemoteError(f"{doing} did not end within {timeout_s:g} s and was killed") from None
        except (paramiko.SSHException, EOFError, OSError) as e:
            raise RemoteError(f"the connection broke: {str(e) or type(e).__name__}") from e

    def _collect(self, channel: paramiko.Channel, frame: Framed, stdin: bytes, timeout_s: float) -> Completed:
        """Both streams are read at the same time, and the input sent meanwhile: no side can wait for the other."""
        until = self._clock.monotonic() + timeout_s
        out, err = bytearray(), bytearray()
        readers = [
            threading.Thread(target=_drain, args=(channel.recv, out), daemon=True),
            threading.Thread(target=_drain, args=(channel.recv_stderr, err), daemon=True),
            threading.Thread(target=_feed, args=(channel, stdin), daemon=True),
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(0.0, until - self._clock.monotonic()))
        if any(reader.is_alive() for reader in readers) or not channel.status_event.wait(
            max(0.0, until - self._clock.monotonic())
        ):
            self._kill(frame, bytes(out))
            raise TimeoutError
        code = channel.recv_exit_status()
        if code < 0 or not frame.is_whole(bytes(out)):
            raise RemoteError("the connection broke before the command had ended")
        return Completed(code, frame.inside(bytes(out)), frame.inside(bytes(err)))

    def _kill(self, frame: Framed, out: bytes) -> None:
        """End what was left running there, as far as that can be done from here."""
        import paramiko

        pid = frame.pid(out)
        if pid is None:
            return
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            channel = self._transport.open_session(timeout=5)
            with contextlib.closing(channel):
                channel.settimeout(5)
                channel.exec_command(kill_command(pid))
                channel.recv(1)


def _drain(read: object, into: bytearray) -> None:
    with contextlib.suppress(OSError, EOFError):
        while chunk := read(65536):  # type: ignore[operator]
            into += chunk


def _feed(channel: paramiko.Channel, data: bytes) -> None:
    with contextlib.suppress(OSError, EOFError):
        if data:
            channel.sendall(data)
        channel.shutdown_write()


def _end(transport: paramiko.Transport | None, sock: socket.socket) -> None:
    if transport is not None:
        transport.close()
    sock.close()


def _hush(transport: paramiko.Transport) -> None:
    log = logging.getLogger(_LOG)
    if not log.handlers:
        log.addHandler(logging.NullHandler())
        log.propagate = False
    transport.set_log_channel(_LOG)
