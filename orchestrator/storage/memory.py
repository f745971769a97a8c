"""A store in this process's memory: for the simulation and for tests. Forgets everything when the process ends."""

from __future__ import annotations

import secrets
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import RLock
from typing import Protocol

from orchestrator.errors import AlreadyExists, ObjectNotFound, VersionConflict
from orchestrator.storage.base import Fetched, ObjectInfo, Progress
from orchestrator.storage.keyrules import checked_folder, checked_key, checked_prefix
from orchestrator.storage.oserrors import translated

Fault = Callable[[str, str], None]
"""Called with (`put`, key) before an operation and (`put.done`, key) after it; whatever it raises, the caller gets."""


class _HasNow(Protocol):
    def now(self) -> datetime: ...


class MemoryStore:
    """A flat map of keys to bytes, with a clock that the caller steps and faults that the caller plants.

    A fault raised on `<operation>.done` leaves the write applied: the answer was lost, not the request.
    """

    def __init__(self, clock: _HasNow, *, fault: Fault | None = None) -> None:
        self.fault = fault
        self._clock = clock
        self._lock = RLock()
        self._objects: dict[str, Fetched] = {}
        self._order: list[str] = []  # the same keys, sorted
        self._writes = 0

    @property
    def url(self) -> str:
        return "memory://"

    def get(self, key: str) -> Fetched:
        with self._operation("get", checked_key(key)):
            return self._found(key)

    def head(self, key: str) -> ObjectInfo:
        with self._operation("head", checked_key(key)):
            return self._found(key).info

    def put(self, key: str, data: bytes) -> ObjectInfo:
        with self._operation("put", checked_key(key)):
            return self._write(key, data)

    def put_new(self, key: str, data: bytes) -> ObjectInfo:
        with self._operation("put_new", checked_key(key)):
            if key in self._objects:
                raise AlreadyExists(f"{key} exists already")
            return self._write(key, data)

    def put_if(self, key: str, data: bytes, *, version: str) -> ObjectInfo:
        with self._operation("put_if", checked_key(key)):
            found = self._objects.get(key)
            if found is None or found.info.version != version:
                raise VersionConflict(f"{key} has changed" if found else f"{key} is gone")
            return self._write(key, data)

    def upload(self, key: str, path: Path, *, progress: Progress | None = None) -> ObjectInfo:
        with translated(f"read {path}"):
            data = path.read_bytes()
        with self._operation("upload", checked_key(key)):
            if progress:
                progress(len(data))
            return self._write(key, data)

    def download(self, key: str, path: Path, *, progress: Progress | None = None) -> ObjectInfo:
        with self._operation("download", checked_key(key)):
            found = self._found(key)
        beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
        try:
            beside.write_bytes(found.data)
            if progress:
                progress(len(found.data))
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
        return found.info

    def scan(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._operation("scan", checked_prefix(prefix)):
            start = bisect_left(self._order, prefix)
            stop = bisect_right(self._order, prefix, lo=start, key=lambda key: key[: len(prefix)])
            infos = [self._objects[key].info for key in self._order[start:stop]]
        yield from infos

    def children(self, prefix: str, *, start_after: str = "") -> Iterator[str]:
        with self._operation("children", checked_folder(prefix)):
            names = self._names(prefix, start_after)
        yield from names

    def delete(self, key: str) -> None:
        with self._operation("delete", checked_key(key)):
            if self._objects.pop(key, None):
                del self._order[bisect_left(self._order, key)]

    def now(self) -> datetime:
        return self._clock.now()

    @contextmanager
    def _operation(self, name: str, key: str) -> Iterator[None]:
        with self._lock:
            if self.fault:
                self.fault(name, key)
            yield
            if self.fault:
                self.fault(f"{name}.done", key)

    def _found(self, key: str) -> Fetched:
        try:
            return self._objects[key]
        except KeyError:
            raise ObjectNotFound(f"there is no {key}") from None

    def _write(self, key: str, data: bytes) -> ObjectInfo:
        self._writes += 1
        info = ObjectInfo(key, len(data), f"v{self._writes}", self._clock.now())
        if key not in self._objects:
            insort(self._order, key)
        self._objects[key] = Fetched(bytes(data), info)
        return info

    def _names(self, prefix: str, start_after: str) -> list[str]:
        names: list[str] = []
        at = bisect_left(self._order, prefix + start_after)
        while at < len(self._order) and self._order[at].startswith(prefix):
            head, slash, _ = self._order[at][len(prefix) :].partition("/")
            name = head + slash
            if name > start_after:
                names.append(name)
            # '0' follows '/' in the alphabet: this jumps over everything in the folder.
            at = bisect_left(self._order, f"{prefix}{head}0", lo=at + 1) if slash else at + 1
        return names
