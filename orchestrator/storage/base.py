"""What the bucket can do. Two implementations, one contract suite (`tests/contract/storage_contract.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

Progress = Callable[[int], None]
"""Called with the number of bytes moved since the last call."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object. `version` is opaque (an ETag); `modified_at` is the store's clock, aware UTC."""

    key: str
    size: int
    version: str
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class Fetched:
    """An object's bytes together with the version they belong to."""

    data: bytes
    info: ObjectInfo


class Store(Protocol):
    """A flat map of keys to bytes that several machines may use at once.

    Keys are relative to the store's root, `/`-separated, never starting with `/`, and may hold any
    Unicode except control characters. Blocking and thread-safe. Raises only `StorageError`s:
    ObjectNotFound, AlreadyExists, VersionConflict, StorageDenied (permanent), StorageUnavailable (transient, already
    retried a bounded number of times).
    """

    @property
    def url(self) -> str:
        """Normalised root, such as `s3://bucket/prefix` or `file:///abs/path`."""

    def get(self, key: str) -> Fetched:
        """A small object, whole."""

    def head(self, key: str) -> ObjectInfo: ...

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write or overwrite, atomically: a reader sees the old bytes or the new ones."""

    def put_new(self, key: str, data: bytes) -> ObjectInfo:
        """Put if absent, else AlreadyExists. Exactly one of many concurrent callers succeeds."""

    def put_if(self, key: str, data: bytes, *, version: str) -> ObjectInfo:
        """Put if unchanged since `version`, else VersionConflict (also when the object is gone)."""

    def upload(self, key: str, path: Path, *, progress: Progress | None = None) -> ObjectInfo:
        """Stream a file of any size up to 5 TiB; atomic like `put`; memory stays bounded."""

    def download(self, key: str, path: Path, *, progress: Progress | None = None) -> ObjectInfo:
        """Stream to `path` by way of a temporary file beside it; `path` is whole or absent."""

    def scan(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with `prefix`, all pages, in key order."""

    def children(self, prefix: str, *, start_after: str = "") -> Iterator[str]:
        """Distinct next path segments below `prefix` (which ends in `/` or is empty), in order, without the prefix.

        Folders end in `/`. Costs one call per 1,000 names, however much lies below them.
        """

    def delete(self, key: str) -> None:
        """Remove; an absent key is fine."""

    def now(self) -> datetime:
        """The store's clock, aware UTC: the only clock that may be compared across machines."""
