"""Which host key an instance has: pinned at first sight, and vouched for by the instance itself where it can.

The start command carries a secret to the instance inside the create request, over TLS. With it the instance signs the
host keys that it has, and leaves the proofs in its tune home:

    <tune home>/host-keys     one line per key: sha256 in hex of  "<secret>:<base64 of the public key>:<secret>"

Who sits between us and the instance does not know the secret, and cannot make a proof for a key of his own.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from orchestrator.errors import RemoteError
from orchestrator.remote import sshkeys

PROOFS = "host-keys"


def proof_secret(state_dir: Path, run_id: str, token: str) -> str:
    """The secret of one attempt, which only this computer and the instance know."""
    private = sshkeys.private_key_path(state_dir, run_id)
    sshkeys.public_key(state_dir, run_id)
    return hmac.new(private.read_bytes(), f"tune host keys {token}".encode(), hashlib.sha256).hexdigest()


def proof(secret: str, key: bytes) -> str:
    """What the instance writes of a host key; `key` in SSH's own binary form."""
    return hashlib.sha256(f"{secret}:{base64.b64encode(key).decode()}:{secret}".encode()).hexdigest()


class Pin:
    """The host key of one attempt's instance, as this computer saw it first."""

    def __init__(self, state_dir: Path, run_id: str, token: str) -> None:
        self._path = sshkeys.folder(state_dir, run_id) / f"{token}.pin"

    def check(self, key_name: str, key: bytes) -> None:
        """Accept what is the same as before, or is the first. Raises RemoteError for another one."""
        line = f"{key_name} {base64.b64encode(key).decode()}"
        try:
            known = self._first(line)
        except OSError as e:
            raise RemoteError(f"the host key cannot be kept at {self._path}: {e.strerror}") from e
        if known != line:
            raise RemoteError(
                "host key changed: this is not the machine that was there before; nothing was sent to it",
                hint=f"if you are sure that it is the same, remove {self._path}",
            )

    def _first(self, line: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self._path.read_text(encoding="ascii").strip()
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        draft.write_text(line + "\n", encoding="ascii")
        try:
            with contextlib.suppress(FileExistsError):
                os.link(draft, self._path)
        finally:
            draft.unlink()
        return self._path.read_text(encoding="ascii").strip()
