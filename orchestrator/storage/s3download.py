"""One object on its way to a file: large ones in several stretches at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any

from orchestrator.errors import StorageUnavailable
from orchestrator.storage import s3errors
from orchestrator.storage.base import ObjectInfo, Progress
from orchestrator.storage.oserrors import translated
from orchestrator.storage.s3client import ATTEMPTS, Connection
from orchestrator.storage.s3look import open_object
from orchestrator.storage.s3parts import AT_ONCE, PART_BYTES
from orchestrator.storage.temporary import CHUNK_BYTES, Unfinished

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@dataclass(slots=True)
class _Stretch:
    """Bytes of the object, from the next one that is missing to its end (exclusive)."""

    at: int
    end: int


class Download:
    """Brings one version of an object; each stretch goes on where a broken transfer ended."""

    def __init__(
        self,
        connection: Connection,
        where: tuple[str, str],
        lanes: BoundedSemaphore,
        *,
        key: str,
        file: Unfinished,
        progress: Progress | None,
    ) -> None:
        self._connection = connection
        self._where = where
        self._lanes = lanes
        self._key = key
        self._file = file
        self._progress = progress
        self._telling = Lock()
        self._info: ObjectInfo | None = None

    def run(self) -> ObjectInfo:
        """The first stretch tells how large the object is and which version; the others follow side by side."""
        first = _Stretch(0, PART_BYTES)
        info = self._bring(first)
        rest = [_Stretch(at, min(at + PART_BYTES, info.size)) for at in range(first.end, info.size, PART_BYTES)]
        if rest:
            pool = ThreadPoolExecutor(min(AT_ONCE, len(rest)), thread_name_prefix="download")
            try:
                list(pool.map(self._bring, rest))
            finally:
                pool.shutdown(cancel_futures=True)  # after an error what has not begun is left
        return info

    def _bring(self, stretch: _Stretch) -> ObjectInfo:
        for left in reversed(range(ATTEMPTS)):
            before = stretch.at
            try:
                return self._connection.call(lambda c: self._transfer(c, stretch), doing=f"download {self._key}")
            except StorageUnavailable:
                if stretch.at == before or not left:
                    raise
        raise StorageUnavailable(f"cannot download {self._key}: it keeps breaking off", hint="try again later")

    def _transfer(self, client: S3Client, stretch: _Stretch) -> ObjectInfo:
        if self._info and stretch.at == stretch.end:
            return self._info
        with self._lanes:
            answer = self._open(client, stretch)
            if self._info is None:
                self._info = _info(self._key, answer)
                # A store that knows no ranges sends everything at once.
                stretch.end = min(stretch.end, self._info.size) if "ContentRange" in answer else self._info.size
            with closing(answer["Body"]) as body:
                for chunk in _from(body, 0 if "ContentRange" in answer else stretch.at):
                    with translated("write the downloaded file"):
                        self._file.write_at(stretch.at, chunk)
                    stretch.at += len(chunk)
                    self._tell(len(chunk))
            return self._info

    def _open(self, client: S3Client, stretch: _Stretch) -> Any:
        same = {"IfMatch": self._info.version} if self._info else {}
        try:
            return open_object(client, *self._where, Range=f"bytes={stretch.at}-{stretch.end - 1}", **same)
        except Exception as e:
            if s3errors.status_of(e) != 416 or self._info:
                raise
        return open_object(client, *self._where)  # an empty object has no first byte

    def _tell(self, moved: int) -> None:
        if self._progress:
            with self._telling:
                self._progress(moved)


def _from(body: Any, skip: int) -> Iterator[bytes]:
    """The bytes of an answer, without the first `skip`."""
    while chunk := body.read(CHUNK_BYTES):
        if skip < len(chunk):
            yield chunk[skip:]
        skip = max(0, skip - len(chunk))


def _info(key: str, answer: Any) -> ObjectInfo:
    """`Content-Range: bytes 0-15/40` names the whole; without it the answer is the whole."""
    total = answer.get("ContentRange", "").rpartition("/")[2]
    size = int(total) if total.isdigit() else answer["ContentLength"]
    return ObjectInfo(key, size, answer["ETag"], answer["LastModified"].astimezone(UTC))
