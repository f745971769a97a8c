"""The key to a run's instances: made on this computer, for this run alone; only its public half leaves it."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from orchestrator.errors import RemoteError

PRIVATE = "id_ed25519"
PUBLIC = "id_ed25519.pub"


def folder(state_dir: Path, run_id: str) -> Path:
    """Where this computer keeps what concerns the way into a run's instances."""
    return state_dir / "ssh" / run_id


def private_key_path(state_dir: Path, run_id: str) -> Path:
    """The private half. It may be absent: then another computer has rented the instance."""
    return folder(state_dir, run_id) / PRIVATE


def public_key(state_dir: Path, run_id: str) -> str:
    """One line `ssh-ed25519 AAAA… tune-<run>`; the pair is made if there is none. Safe for several processes.

    Raises RemoteError when it cannot be written or is damaged: nothing is rented with a key that nobody holds.
    """
    path = private_key_path(state_dir, run_id)
    try:
        if not path.exists():
            _make(path)
        line = _public_line(path.read_bytes(), run_id)
        write_over(path.parent / PUBLIC, f"{line}\n".encode("ascii"))
    except OSError as e:
        raise RemoteError(f"the key of run {run_id} cannot be kept at {path}: {e.strerror}") from e
    return line


def _make(path: Path) -> None:
    """The first writer wins; whoever comes second uses what is there."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    data = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_new(path, data)


def write_new(path: Path, data: bytes) -> None:
    """A file that only its owner can read, whole from its first moment. One that is there already stays as it is."""
    with _draft(path, data) as draft, contextlib.suppress(FileExistsError):
        os.link(draft, path)


def write_over(path: Path, data: bytes) -> None:
    """The same, but it takes the place of one that says something else."""
    if not path.exists() or path.read_bytes() != data:
        with _draft(path, data) as draft:
            draft.replace(path)


@contextlib.contextmanager
def _draft(path: Path, data: bytes) -> Iterator[Path]:
    for private in (path.parent.parent, path.parent):  # with `parents`, the mode is that of the last one alone
        private.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _public_line(private: bytes, run_id: str) -> str:
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_ssh_private_key(private, password=None)
    except (ValueError, TypeError) as e:
        raise RemoteError(f"the key of run {run_id} is damaged: {e}", hint="remove it; a new one is made") from e
    blob = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return f"{blob.decode('ascii')} tune-{run_id}"
