"""Which host key an instance has: pinned at first sight, and vouched for by the instance itself where it can.

The start command carries a secret to the instance inside the create request, over TLS. With it the instance signs the
host keys that it has, and leaves the proofs in its tune home:

    <tune home>/host-keys     one line per key: sha256 in hex of  "<secret>:<base64 of the public key>:<secret>"

Who sits between us and the instance does not know the secret, and cannot make a proof for a key of his own. So the
secret never travels over SSH: what is sent again there is sent without it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import RemoteError
from orchestrator.remote import sshkeys

PROOFS = "host-keys"


@dataclass(frozen=True, slots=True)
class HostKey:
    """A host key as SSH names it: its type, and its bytes in base64."""

    type: str
    blob: str

    @classmethod
    def of(cls, type_: str, key: bytes) -> HostKey:
        """From SSH's own binary form."""
        return cls(type_, base64.b64encode(key).decode())

    @classmethod
    def parse(cls, line: str) -> HostKey:
        """As `str` writes it. Raises ValueError."""
        type_, blob = line.split()
        return cls.of(type_, base64.b64decode(blob, validate=True))

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` shows it."""
        digest = hashlib.sha256(base64.b64decode(self.blob)).digest()
        return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"

    def __str__(self) -> str:
        return f"{self.type} {self.blob}"


def proof_secret(state_dir: Path, run_id: str, token: str) -> str:
    """The secret of one attempt, which only this computer and the instance know."""
    sshkeys.public_key(state_dir, run_id)
    try:
        private = sshkeys.private_key_path(state_dir, run_id).read_bytes()
    except OSError as e:
        raise RemoteError(f"the key of run {run_id} cannot be read: {e}") from e
    return hmac.new(private, f"tune host keys {token}".encode(), hashlib.sha256).hexdigest()


def proof(secret: str, key: HostKey) -> str:
    """What the instance writes of a host key."""
    return hashlib.sha256(f"{secret}:{key.blob}:{secret}".encode()).hexdigest()


class Pin:
    """The host key of one attempt's instance, as this computer saw it first.

    A proxy may end SSH itself and show a key of its own, so it has a pin of its own.
    """

    def __init__(self, state_dir: Path, run_id: str, token: str, *, is_proxy: bool = False) -> None:
        self.path = sshkeys.folder(state_dir, run_id) / f"{token}{'.proxy' if is_proxy else ''}.pin"

    def known(self) -> HostKey | None:
        """The key that was kept; None before there is one."""
        with self._told(), contextlib.suppress(FileNotFoundError):
            return HostKey.parse(self.path.read_text(encoding="ascii"))
        return None

    def keep(self, key: HostKey) -> HostKey:
        """Keep the first one. Who comes second gets what is there."""
        with self._told():
            sshkeys.write_new(self.path, f"{key}\n".encode("ascii"))
        return self.known() or key

    def replace(self, key: HostKey) -> None:
        """Keep another one, which the instance has vouched for."""
        with self._told():
            sshkeys.write_over(self.path, f"{key}\n".encode("ascii"))

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as e:
            raise RemoteError(f"the host key cannot be kept at {self.path}: {e}") from e
