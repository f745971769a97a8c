"""What the operating system's errors mean for someone who only wants to store something."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.errors import StorageDenied, StorageError, StorageUnavailable

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_PASSING = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN}


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Any OSError inside becomes the StorageError that says what to do next."""
    try:
        yield
    except OSError as e:
        raise meaning(e, doing=doing) from e


def meaning(error: OSError, *, doing: str) -> StorageError:
    """`doing` is what failed, such as `write runs/x/run.json`."""
    message = f"cannot {doing}: {error.strerror or error}"
    if error.errno in _FULL:
        return StorageUnavailable(message, hint="free some space on that disk (or raise its quota), then try again")
    if error.errno == errno.EROFS:
        return StorageDenied(message, hint="the disk is mounted read-only; remount it, or set another `storage`")
    if error.errno in _DENIED:
        return StorageDenied(message, hint="check who owns the folder and its permissions, or set another `storage`")
    if error.errno in _PASSING:
        return StorageUnavailable(message, hint="try again; if it stays, check that disk")
    return StorageError(message, hint="check the path")
