"""The way into a rented instance: SSH with the run's own key, to a host that is the same every time.

One connect tries a few times within a short budget and then says how far it came; the orchestrator's passes do the
long waiting.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from orchestrator.clock import Clock, SystemClock
from orchestrator.errors import RemoteError
from orchestrator.remote import sshkeys, sshpins
from orchestrator.remote.base import Completed
from orchestrator.remote.sshcall import Caller
from orchestrator.remote.sshdoor import Endpoint, NotReady, Patience, endpoints, knock, log_in
from orchestrator.remote.sshfiles import Files
from orchestrator.remote.sshpins import HostKey, Pin
from orchestrator.remote.sshshell import with_home
from orchestrator.types import Instance, parse_token

if TYPE_CHECKING:
    import paramiko

# The tune home, as the start command has noted it, and the proofs of the host keys, which lie there.
_LOOK = 'home=$(cat "$HOME/.tune/"{token}) && printf "%s\\n" "$home" && cat "$home/{proofs}" 2>/dev/null; :'


def connect(instance: Instance, *, state_dir: Path) -> SshRemote:
    """Reach an instance. Raises RemoteError when it does not answer in time, or is another machine than before."""
    return SshRemote(instance, state_dir=state_dir)


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
        self._home: str | None = None
        self._is_verified = False
        self._has_looked_again = False
        self._transport = self._connect(instance)
        self._files = Files(self._transport, self._call, sftp_within_s=self._patience.sftp)

    @property
    def is_verified(self) -> bool | None:
        """True: the instance has vouched for the host key we see. None: it is only the same as at first sight."""
        return self._is_verified or None

    @property
    def trust(self) -> str:
        """How far the other side is known to be the instance, in words."""
        if self._is_verified:
            return "its host key is verified: the instance has vouched for it"
        return "its host key is pinned as it was seen first; nothing vouches for it"

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> Completed:
        """Run a program in the tune home, or in the user's home while there is none.

        `env` is seen by whoever lists the instance's processes: no secret belongs there. At the timeout the program
        is killed with all that it has started, unless that has become a daemon.
        """
        script = with_home(argv, env or {}, token=self._token)
        return self._call(script, timeout_s=timeout_s, doing=argv[0])

    def put(self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = 120) -> None:
        """Write a file below the tune home, atomically, never readable to others before its mode is set."""
        home = self._tune_home()
        pure = PurePosixPath(path)
        with contextlib.suppress(ValueError):
            pure = pure.relative_to(home)
        if pure.is_absolute() or ".." in pure.parts or not pure.name or "\0" in path or not _is_utf8(path):
            raise RemoteError(f"{path!r} does not lie below the tune home")
        self._files.put(f"{home}/{pure}", data, mode=mode, timeout_s=timeout_s)

    def close(self) -> None:
        """Hang up. Harmless twice."""
        self._transport.close()

    def _tune_home(self) -> str:
        if self._home is None or not (self._is_verified or self._has_looked_again):
            self._look()  # the start command may not have come that far when we came in
            self._has_looked_again = True
        if self._home is None:
            raise RemoteError("the instance has not booted yet: its start command has left no tune home")
        return self._home

    def _look(self) -> None:
        """Where the tune home is, and whether the instance vouches for the key that we see. Nothing secret is sent."""
        script = _LOOK.format(token=shlex.quote(self._token), proofs=sshpins.PROOFS)
        told = self._call(script, timeout_s=self._patience.look, doing="the first look")
        lines = told.stdout.decode("utf-8", "surrogateescape").splitlines()
        self._home = lines[0].rstrip("/") if lines and lines[0].startswith("/") else None
        secret = sshpins.proof_secret(self._state_dir, self._run_id, self._token)
        self._is_verified = sshpins.proof(secret, self._theirs) in {line.strip() for line in lines[1:]}

    def _connect(self, instance: Instance) -> paramiko.Transport:
        places, key = endpoints(instance.address), self._own_key()
        if not places:
            raise RemoteError(f"{instance.instance_id} has no SSH address yet")
        until = self._clock.monotonic() + self._patience.budget
        while True:
            why = []
            for place in places:
                try:
                    return self._enter(place, key, until)
                except NotReady as e:
                    why.append(f"{place}: {e}")
                if self._clock.monotonic() >= until:
                    break
            if self._clock.monotonic() + self._patience.between >= until:
                raise RemoteError("; ".join(why))
            self._clock.sleep(self._patience.between)

    def _enter(self, place: Endpoint, key: paramiko.PKey, until: float) -> paramiko.Transport:
        """Log in, and see whether this is the machine that was there before.

        Another host key than the first counts only if the instance vouches for it: a container that is started anew
        may have made new ones, and says so in its tune home.
        """
        pin = Pin(self._state_dir, self._run_id, self._token, is_proxy=place.is_proxy)
        known = pin.known()

        def left_s() -> float:
            return until - self._clock.monotonic()

        transport = knock(place, host_key_type=known.type if known else "", patience=self._patience, left_s=left_s)
        try:
            shown = transport.get_remote_server_key()
            theirs = self._theirs = HostKey.of(shown.get_name(), shown.asbytes())
            try:
                log_in(transport, place.user, key, timeout_s=min(self._patience.auth, left_s()))
                self._settle_in(transport)
            except NotReady as e:
                if known is not None and known != theirs:
                    raise _changed(pin, known, theirs) from e
                raise
            self._accept(pin, known or pin.keep(theirs), theirs)
        except BaseException:
            transport.close()
            raise
        return transport

    def _settle_in(self, transport: paramiko.Transport) -> None:
        transport.set_keepalive(self._patience.keepalive)
        self._call = Caller(transport)
        try:
            self._look()
        except RemoteError as e:
            raise NotReady(f"SSH lets us in, but {e.message}") from e

    def _accept(self, pin: Pin, known: HostKey, theirs: HostKey) -> None:
        if known != theirs:
            if not self._is_verified:
                raise _changed(pin, known, theirs)
            pin.replace(theirs)

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
        except (OSError, ValueError, paramiko.SSHException) as e:
            raise RemoteError(f"the key {path} cannot be used: {e}") from e


def _changed(pin: Pin, known: HostKey, theirs: HostKey) -> RemoteError:
    return RemoteError(
        f"host key changed: it is {theirs.fingerprint} and was {known.fingerprint}. This is not the machine that was "
        "there before; no secret was sent to it",
        hint=f"if you are sure that it is the same, remove {pin.path}",
    )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
