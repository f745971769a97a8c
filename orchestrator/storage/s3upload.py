"""Multipart uploads: sent in parallel, abandoned ones of dead writers cleared away."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ObjectNotFound, StorageDenied, StorageError, StorageUnavailable
from orchestrator.storage import s3errors
from orchestrator.storage.base import ObjectInfo, Progress
from orchestrator.storage.s3client import Answer, Connection
from orchestrator.storage.s3parts import PartPlan, Section

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_CHECKSUM = re.compile(r"^Checksum(CRC|SHA)")
_OWN_FOLDERS = 2  # `runs/<id>/`: what lies deeper belongs to one run, and its writers follow one another


class Multipart:
    """Sends large files below one prefix, and clears away what killed senders left there."""

    def __init__(
        self, connection: Connection, bucket: str, prefix: str, now: Callable[[], datetime], lanes: BoundedSemaphore
    ) -> None:
        self.warnings: list[str] = []
        self._lanes = lanes
        self._connection = connection
        self._bucket = bucket
        self._prefix = prefix
        self._now = now
        self._lock = Lock()
        self._started_at: datetime | None = None
        self._cleared: set[str] = set()

    def send(self, key: str, fd: int, plan: PartPlan, progress: Progress | None) -> ObjectInfo:
        """Upload an open file. After an error nothing of it remains, as far as that can be arranged."""
        started_at = self._start()
        where: dict[str, Any] = {"Bucket": self._bucket, "Key": self._prefix + key}
        created = self._connection.call(lambda c: c.create_multipart_upload(**where), doing=f"upload {key}")
        where["UploadId"] = created["UploadId"]
        try:
            parts = self._send_parts(key, fd, plan, where, progress)
            info = self._complete(key, plan, where, parts)
        except BaseException:
            self._abort(where)
            raise
        self._clear(key, started_at)
        return info

    def warn(self, text: str) -> None:
        """Keep a warning, once."""
        with self._lock:
            if text not in self.warnings:
                self.warnings.append(text)

    def abort_leftovers(self, folder: str, *, before: datetime) -> int:
        """Abort unfinished uploads below `folder` that were begun before `before`; returns how many."""
        aborted = 0
        for found in self._unfinished(self._prefix + folder):
            if found["Initiated"].astimezone(UTC) < before:
                where = {"Bucket": self._bucket, "Key": found["Key"], "UploadId": found["UploadId"]}
                aborted += self._abort(where)
        return aborted

    def _start(self) -> datetime:
        """The bucket's time at or before this process's first upload; uploads older than that are someone else's."""
        with self._lock:
            if self._started_at is None:
                self._started_at = self._now()
            return self._started_at

    def _send_parts(
        self, key: str, fd: int, plan: PartPlan, where: dict[str, Any], progress: Progress | None
    ) -> list[dict[str, Any]]:
        def send(part: tuple[int, int, int]) -> dict[str, Any]:
            number, offset, length = part

            def request(client: S3Client) -> dict[str, Any]:
                body: Any = Section(fd, offset, length)
                with self._lanes:
                    answer: Any = client.upload_part(**where, PartNumber=number, Body=body)
                # Where parts were sent with a checksum, S3 refuses to join them without hearing it again.
                sums = {name: value for name, value in answer.items() if _CHECKSUM.match(name)}
                return {"PartNumber": number, "ETag": answer["ETag"], **sums}

            return self._connection.call(request, doing=f"upload part {number} of {key}")

        pool = ThreadPoolExecutor(plan.concurrency, thread_name_prefix="upload")
        try:
            sent = []
            for part, (_, _, length) in zip(pool.map(send, plan.ranges()), plan.ranges(), strict=True):
                sent.append(part)
                if progress:
                    progress(length)
            return sent
        finally:
            pool.shutdown(cancel_futures=True)  # after an error the parts not yet begun are not sent

    def _complete(self, key: str, plan: PartPlan, where: dict[str, Any], parts: list[dict[str, Any]]) -> ObjectInfo:
        def request(client: S3Client, sending: Answer) -> None:
            try:
                client.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})  # type: ignore[typeddict-item]
            except Exception as e:
                if not (sending.retried and s3errors.code_of(e) == "NoSuchUpload"):
                    raise  # else an earlier try was carried out; the look below proves it

        self._connection.call_marked(request, doing=f"finish the upload of {key}")
        try:
            found = self._connection.call(
                lambda c: c.head_object(Bucket=self._bucket, Key=where["Key"]), doing=f"look at {key}"
            )
        except ObjectNotFound:
            raise StorageUnavailable(f"the upload of {key} was lost", hint="upload it again") from None
        if found["ContentLength"] != plan.size:
            raise StorageUnavailable(
                f"{key} was stored with {found['ContentLength']} of {plan.size} bytes", hint="upload it again"
            )
        return ObjectInfo(key, plan.size, found["ETag"], found["LastModified"].astimezone(UTC))

    def _clear(self, key: str, started_at: datetime) -> None:
        folders = key.split("/")[:-1]
        if len(folders) < _OWN_FOLDERS:
            return
        folder = "/".join(folders[:_OWN_FOLDERS]) + "/"
        with self._lock:
            if folder in self._cleared:
                return
            self._cleared.add(folder)
        try:
            self.abort_leftovers(folder, before=started_at)
        except StorageDenied as e:
            self.warn(f"unfinished uploads could not be listed; they may cost storage: {e}")
        except StorageError as e:
            self.warn(f"unfinished uploads were not cleared away: {e}")

    def _abort(self, where: dict[str, Any]) -> bool:
        try:
            with suppress(ObjectNotFound):
                self._connection.call(lambda c: c.abort_multipart_upload(**where), doing="abort an unfinished upload")
        except StorageError as e:
            self.warn(f"an unfinished upload stays, and costs storage: {e}")
            return False
        return True

    def _unfinished(self, prefix: str) -> list[Any]:
        found: list[Any] = []
        after: dict[str, Any] = {}
        while True:
            page: Any = self._connection.call(
                lambda c, after=after: c.list_multipart_uploads(Bucket=self._bucket, Prefix=prefix, **after),  # type: ignore[misc]
                doing="list unfinished uploads",
            )
            found += page.get("Uploads", [])
            if not page.get("IsTruncated"):
                return found
            after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page.get("NextUploadIdMarker", "")}
