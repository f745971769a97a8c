"""Files that are not finished. Each is locked by the process that writes it, so that only a dead one's are removed."""

# Paths are bytes here, so that every name round-trips whatever the locale.
# ruff: noqa: PTH105, PTH108, PTH116, PTH118, PTH208

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An open file under a name of its own."""

    fd: int
    path: bytes

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.fd, rest) :]

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """At a place of its own, whatever else is being written."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self.fd, rest, offset)
            rest, offset = rest[written:], offset + written


@contextmanager
def unfinished(folder: bytes, *, prefix: bytes = b"") -> Iterator[Unfinished]:
    """A new file in `folder`. Whoever renames it away keeps it; otherwise it is removed on the way out."""
    file = _create(folder, prefix)
    try:
        yield file
    finally:
        with suppress(FileNotFoundError):
            os.unlink(file.path)
        os.close(file.fd)  # last: while it is open, the lock tells others to keep off


@contextmanager
def whole(path: Path) -> Iterator[Unfinished]:
    """Write `path` by way of an unfinished file beside it: after an error or a crash it is as it was before."""
    folder = os.fsencode(path.parent)
    prefix = f".{sha256(os.fsencode(path.name)).hexdigest()[:16]}-".encode()
    remove_abandoned(folder, prefix=prefix)
    with unfinished(folder, prefix=prefix) as file:
        yield file
        os.fsync(file.fd)
        os.replace(file.path, os.fsencode(path))
        sync_folder(folder)


def remove_abandoned(folder: bytes, *, prefix: bytes = b"") -> None:
    """Remove the unfinished files of dead writers. Those of living ones are locked, and stay."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith(prefix):
            with suppress(OSError):  # someone else removes it, or it is being written: either way not ours
                _remove_if_unlocked(os.path.join(folder, name))


def sync_folder(folder: bytes) -> None:
    """Make the names in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _create(folder: bytes, prefix: bytes) -> Unfinished:
    while True:
        path = os.path.join(folder, prefix + secrets.token_hex(12).encode() + b".part")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            return Unfinished(fd, path)
        os.close(fd)  # a cleaner came between the open and the lock


def _remove_if_unlocked(path: bytes) -> None:
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_ino == os.stat(path).st_ino:
            os.unlink(path)
    finally:
        os.close(fd)
