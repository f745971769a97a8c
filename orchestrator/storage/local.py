"""A folder as a store: `file:///path`. Safe for several processes of one machine, and for being killed at any point."""

# Paths are bytes here, so that every name round-trips whatever the locale.
# ruff: noqa: PTH105, PTH106, PTH108, PTH112, PTH116, PTH118, PTH120, PTH102

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from threading import Lock
from urllib.parse import quote

from orchestrator.clock import Clock, SystemClock
from orchestrator.errors import AlreadyExists, ObjectNotFound, StorageError, StorageUnavailable, VersionConflict
from orchestrator.storage.base import Fetched, ObjectInfo, Progress
from orchestrator.storage.filenames import OWN_FOLDER, decoded, encoded, encoded_folder
from orchestrator.storage.keyrules import checked_folder, checked_key, checked_prefix
from orchestrator.storage.oserrors import translated
from orchestrator.storage.temporary import CHUNK_BYTES, Unfinished, remove_abandoned, sync_folder, unfinished, whole

_LOCKS = 64  # lock files, kept for good; keys share them, and no operation holds two
_LOCK_TIMEOUT_S = 60.0  # a holder needs milliseconds; longer means that it is suspended or the disk hangs
_LOCK_POLL_S = 0.005
_RACES = 100  # so often a concurrent delete may remove the folder that is being written to
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_LINKS = {
    errno.EPERM,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,
}  # file systems without hard links say one of these

Guard = Callable[[ObjectInfo | None], None]
"""Looks at what stands at the key, under its lock, and raises when it must not be replaced."""


class LocalStore:
    """Objects as files below one folder. `modified_at` and `now` are this machine's clock.

    A version is made of inode, time and size. The time is set by the writer and always later than the one it replaces,
    so that two writes within one tick of the file system's clock still differ.
    """

    def __init__(self, root: Path, *, clock: Clock | None = None) -> None:
        if not root.is_absolute():
            raise StorageError(f"not an absolute path: {root}", hint=f"write file://{root.absolute()}")
        self.root = root
        self._root = os.fsencode(root)
        self._own = os.path.join(self._root, OWN_FOLDER)
        self._unfinished = os.path.join(self._own, b"unfinished")
        self._locks = os.path.join(self._own, b"locks")
        self._clock = clock or SystemClock()
        self._ready = False
        self._starting = Lock()

    @property
    def url(self) -> str:
        return "file://" + quote(self._root)

    def get(self, key: str) -> Fetched:
        with self._opened(key) as fd, translated(f"read {key}"):
            data = bytearray()
            while chunk := os.read(fd, CHUNK_BYTES):
                data += chunk
            return Fetched(bytes(data), _info(key, os.fstat(fd)))

    def head(self, key: str) -> ObjectInfo:
        found = self._stat(checked_key(key))
        if found is None:
            raise ObjectNotFound(f"there is no {key} in {self.url}")
        return found

    def put(self, key: str, data: bytes) -> ObjectInfo:
        return self._store(key, lambda file: file.write(data), _anything)

    def put_new(self, key: str, data: bytes) -> ObjectInfo:
        return self._store(key, lambda file: file.write(data), _nothing, replace=False)

    def put_if(self, key: str, data: bytes, *, version: str) -> ObjectInfo:
        def unchanged(standing: ObjectInfo | None) -> None:
            if standing is None or standing.version != version:
                raise VersionConflict(f"{key} has changed" if standing else f"{key} is gone")

        return self._store(key, lambda file: file.write(data), unchanged)

    def upload(self, key: str, path: Path, *, progress: Progress | None = None) -> ObjectInfo:
        def copy(file: Unfinished) -> None:
            with translated(f"read {path}"):
                source = path.open("rb")
            with source:
                while chunk := source.read(CHUNK_BYTES):
                    file.write(chunk)
                    if progress:
                        progress(len(chunk))

        return self._store(key, copy, _anything)

    def download(self, key: str, path: Path, *, progress: Progress | None = None) -> ObjectInfo:
        with self._opened(key) as fd, translated(f"copy {key} to {path}"), whole(path) as file:
            while chunk := os.read(fd, CHUNK_BYTES):
                file.write(chunk)
                if progress:
                    progress(len(chunk))
            return _info(key, os.fstat(fd))

    def scan(self, prefix: str) -> Iterator[ObjectInfo]:
        folder, slash, beginning = checked_prefix(prefix).rpartition("/")
        for name in self._list(folder + slash):
            if name.startswith(beginning):
                yield from self._below(f"{folder}{slash}{name}")

    def children(self, prefix: str, *, start_after: str = "") -> Iterator[str]:
        for name in self._list(checked_folder(prefix)):
            # A crash may leave an empty folder behind; a bucket knows no such thing.
            if name > start_after and (not name.endswith("/") or self._holds_anything(prefix + name)):
                yield name

    def delete(self, key: str) -> None:
        path = self._path(checked_key(key))
        with translated(f"delete {key}"):
            if not os.path.lexists(path):
                return
            self._get_ready()
            with self._locked(key):
                try:
                    os.unlink(path)
                except (FileNotFoundError, NotADirectoryError):
                    return
                with suppress(FileNotFoundError):  # emptied and removed by another delete already
                    sync_folder(os.path.dirname(path))
                self._remove_empty_folders(os.path.dirname(path))

    def now(self) -> datetime:
        return self._clock.now()

    def _store(self, key: str, fill: Callable[[Unfinished], None], guard: Guard, *, replace: bool = True) -> ObjectInfo:
        path = self._path(checked_key(key))
        with translated(f"write {key} to {self.root}"):
            self._get_ready()
            with unfinished(self._unfinished) as file:
                fill(file)
                os.fsync(file.fd)
                with self._locked(key):
                    standing = self._stat(key)
                    guard(standing)
                    self._stamp(file.fd, standing)
                    self._move_into_place(file.path, path, key, replace=replace)
                return _info(key, os.fstat(file.fd))

    def _move_into_place(self, source: bytes, path: bytes, key: str, *, replace: bool) -> None:
        folder = os.path.dirname(path)
        for _ in range(_RACES):
            try:
                if replace:
                    os.replace(source, path)
                else:
                    _link(source, path, key)
            except FileNotFoundError:
                self._make_folder(folder)
            else:
                with suppress(FileNotFoundError):  # deleted again already, with its folder
                    sync_folder(folder)
                return
        raise StorageUnavailable(f"cannot write {key}: its folder keeps disappearing", hint=f"check {self.root}")

    def _stamp(self, fd: int, standing: ObjectInfo | None) -> None:
        """Give the new file its time, later than the one it replaces."""
        micros = (self._clock.now() - _EPOCH) // timedelta(microseconds=1)
        time_ns = micros * 1000 + secrets.randbelow(1000)  # tells apart two that a delete separates, too
        least_ns = 0 if standing is None else _time_ns(standing.version) + 1
        step_ns = 1
        os.utime(fd, ns=(time_ns, max(time_ns, least_ns)))
        while os.fstat(fd).st_mtime_ns < least_ns:  # this file system rounds; 2 s is the coarsest there is
            step_ns *= 10
            os.utime(fd, ns=(time_ns, least_ns + step_ns))

    def _get_ready(self) -> None:
        """Before the first write: the store's own folder, and away with what killed writers left."""
        with self._starting:
            if not self._ready or not os.path.isdir(self._unfinished):
                self._make_folder(self._unfinished)
                self._make_folder(self._locks)
                remove_abandoned(self._unfinished)
                self._ready = True

    def _make_folder(self, folder: bytes) -> None:
        missing = []
        while not os.path.isdir(folder) and folder != os.path.dirname(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for one in reversed(missing):
            try:
                os.mkdir(one)
            except FileExistsError:
                continue
            except FileNotFoundError:
                return  # a delete was faster; the caller tries again
            with suppress(FileNotFoundError):
                sync_folder(os.path.dirname(one))

    def _remove_empty_folders(self, folder: bytes) -> None:
        while folder != self._root:
            try:
                os.rmdir(folder)
            except OSError:  # not empty, or removed by someone else
                return
            folder = os.path.dirname(folder)

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """One writer per key. The system releases the lock when its holder dies."""
        number = sha256(key.encode()).digest()[0] % _LOCKS
        fd = os.open(os.path.join(self._locks, b"%02d" % number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._wait_for_lock(fd, key)
            yield
        finally:
            os.close(fd)

    def _wait_for_lock(self, fd: int, key: str) -> None:
        waiting = SystemClock()  # other processes do not move with a stepped clock
        since = waiting.monotonic()
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waiting.monotonic() - since > _LOCK_TIMEOUT_S:
                    raise StorageUnavailable(
                        f"cannot write {key}: another process has held its lock for {_LOCK_TIMEOUT_S:.0f} s",
                        hint="look for a suspended tune process (`ps`, state T), or for a disk that hangs",
                    ) from None
                waiting.sleep(_LOCK_POLL_S)
            else:
                return

    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        path = self._path(checked_key(key))
        with translated(f"read {key} in {self.root}"):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                raise ObjectNotFound(f"there is no {key} in {self.url}") from None
        try:
            yield fd
        finally:
            os.close(fd)

    def _stat(self, key: str) -> ObjectInfo | None:
        with translated(f"look at {key} in {self.root}"):
            try:
                return _info(key, os.stat(self._path(key)))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def _list(self, folder: str) -> list[str]:
        """What lies directly in a folder, in key order; folders end in a slash."""
        names = []
        with translated(f"list {folder or 'everything'} in {self.root}"):
            try:
                with os.scandir(self._folder_path(folder)) as entries:
                    for entry in entries:
                        is_folder = entry.is_dir()
                        name = decoded(entry.name, is_folder=is_folder)
                        if name is not None:
                            names.append(name + "/" if is_folder else name)
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(names)

    def _below(self, key: str) -> Iterator[ObjectInfo]:
        if key.endswith("/"):
            for name in self._list(key):
                yield from self._below(key + name)
        else:
            found = self._stat(key)
            if found:  # else deleted since it was listed
                yield found

    def _holds_anything(self, folder: str) -> bool:
        return any(not name.endswith("/") or self._holds_anything(folder + name) for name in self._list(folder))

    def _path(self, key: str) -> bytes:
        return os.path.join(self._root, *encoded(key))

    def _folder_path(self, folder: str) -> bytes:
        return os.path.join(self._root, *(encoded_folder(part) for part in folder.split("/")[:-1]))


def _link(source: bytes, path: bytes, key: str) -> None:
    try:
        os.link(source, path)
    except FileExistsError:
        raise AlreadyExists(f"{key} exists already") from None
    except OSError as e:
        if e.errno not in _NO_LINKS:
            raise
        os.replace(source, path)  # the guard looked under the lock: nothing stands there


def _anything(_standing: ObjectInfo | None) -> None:
    pass


def _nothing(standing: ObjectInfo | None) -> None:
    if standing is not None:
        raise AlreadyExists(f"{standing.key} exists already")


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    version = f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"
    return ObjectInfo(key, status.st_size, version, _EPOCH + timedelta(microseconds=status.st_mtime_ns // 1000))


def _time_ns(version: str) -> int:
    return int(version.rpartition("-")[2], 16)
