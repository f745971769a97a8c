"""A bucket as a store: S3, and what speaks its language."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any

from orchestrator.clock import Clock, SystemClock
from orchestrator.errors import (
    AlreadyExists,
    ObjectNotFound,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    VersionConflict,
)
from orchestrator.storage import s3errors
from orchestrator.storage.base import Fetched, ObjectInfo, Progress
from orchestrator.storage.keyrules import MAX_KEY_BYTES, checked_folder, checked_key, checked_prefix
from orchestrator.storage.oserrors import translated
from orchestrator.storage.s3client import READ_TIMEOUT_S, Answer, Connection, is_yes
from orchestrator.storage.s3download import Download
from orchestrator.storage.s3look import open_object
from orchestrator.storage.s3parts import AT_ONCE, Section, part_plan
from orchestrator.storage.s3trial import Trial
from orchestrator.storage.s3upload import Multipart
from orchestrator.storage.temporary import whole
from orchestrator.storage.uri import Location

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from orchestrator.storage.grants import Grant

_WRITER = "tune-write"  # metadata that tells our own write from an equal one of somebody else
_ALONE = Lock()  # of all stores with a single writer: that is this process, whatever its threads do
_ABSENT = "clock"  # never written: asking for it costs least and still brings the time


class S3Store:
    """Objects below one prefix of a bucket. A version is the ETag; the clock is the bucket's.

    With the keys of `grant` if there is one, else with those of `credentials_file`, else with what the SDK finds.

    `warnings` collects what went wrong without harm, such as a right that is only needed for tidying up.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
        grant: Grant | None = None,
    ) -> None:
        self._location = Location(bucket, prefix)
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self.options = dict(options or {})
        self.is_single_writer = is_yes(self.options.get("single_writer", ""))
        self._connection = Connection(
            bucket,
            self.url,
            options=self.options,
            clock=clock or SystemClock(),
            read_timeout_s=read_timeout_s,
            grant=grant,
        )
        self._lanes = BoundedSemaphore(AT_ONCE)
        self._multipart = Multipart(self._connection, bucket, self._prefix, self.now, self._lanes)

    @property
    def url(self) -> str:
        return self._location.url

    @property
    def warnings(self) -> list[str]:
        """What could not be tidied up, and which right that would take; each only once."""
        return list(self._multipart.warnings)

    def reach(self) -> dict[str, str]:
        """The options by which another computer comes to the same bucket.

        Endpoint and region may come from variables and from AWS's own files, which are not there.
        """
        return self._connection.reach()

    @property
    def trial(self) -> Trial:
        """What only large files need, for whoever wants to know whether it works."""
        return Trial(self._connection, self._bucket, self._prefix, self._multipart)

    def get(self, key: str) -> Fetched:
        full = self._full(key)

        def request(client: S3Client) -> Fetched:
            answer = open_object(client, self._bucket, full)
            with closing(answer["Body"]) as body:
                return Fetched(body.read(), _info(key, answer))

        return self._connection.call(request, doing=f"read {key}")

    def head(self, key: str) -> ObjectInfo:
        full = self._full(key)

        def request(client: S3Client) -> ObjectInfo:
            try:
                return _info(key, client.head_object(Bucket=self._bucket, Key=full))
            except Exception as e:
                if s3errors.status_of(e) not in (400, 403) or s3errors.is_expired(e):
                    raise
            # A head brings no body and so no reason; the same question as a get does.
            answer = open_object(client, self._bucket, full)
            answer["Body"].close()
            return _info(key, answer)

        return self._connection.call(request, doing=f"look at {key}")

    def put(self, key: str, data: bytes) -> ObjectInfo:
        full = self._full(key)

        def request(client: S3Client) -> ObjectInfo:
            return _written(key, len(data), client.put_object(Bucket=self._bucket, Key=full, Body=data))

        return self._connection.call(request, doing=f"write {key}")

    def put_new(self, key: str, data: bytes) -> ObjectInfo:
        if self.is_single_writer:
            return self._put_alone(key, data, version=None)
        try:
            return self._put_on_condition(key, data, {"IfNoneMatch": "*"})
        except VersionConflict:
            raise AlreadyExists(f"{key} exists already in {self.url}") from None

    def put_if(self, key: str, data: bytes, *, version: str) -> ObjectInfo:
        if self.is_single_writer:
            return self._put_alone(key, data, version=version)
        try:
            return self._put_on_condition(key, data, {"IfMatch": version})
        except VersionConflict:
            raise VersionConflict(f"{key} in {self.url} has changed") from None
        except ObjectNotFound:
            raise VersionConflict(f"{key} in {self.url} is gone") from None

    def upload(self, key: str, path: Path, *, progress: Progress | None = None) -> ObjectInfo:
        full = self._full(key)
        with translated(f"read {path}"):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            plan = part_plan(os.fstat(fd).st_size)
            if plan.parts > 1:
                return self._multipart.send(key, fd, plan, progress)

            def request(client: S3Client) -> ObjectInfo:
                body: Any = Section(fd, 0, plan.size) if plan.size else b""  # the stubs know fewer kinds of file
                with self._lanes:
                    return _written(key, plan.size, client.put_object(Bucket=self._bucket, Key=full, Body=body))

            info = self._connection.call(request, doing=f"upload {key}")
        finally:
            os.close(fd)
        if progress:
            progress(plan.size)
        return info

    def download(self, key: str, path: Path, *, progress: Progress | None = None) -> ObjectInfo:
        full = self._full(key)
        with translated(f"copy {key} to {path}"), whole(path) as file:
            return Download(
                self._connection, (self._bucket, full), self._lanes, key=key, file=file, progress=progress
            ).run()

    def scan(self, prefix: str) -> Iterator[ObjectInfo]:
        for page in self._pages(self._prefix + checked_prefix(prefix)):
            for row in page.get("Contents", ()):
                key = row["Key"].removeprefix(self._prefix)
                if not key.endswith("/"):  # the "folders" that a web console makes are no objects of ours
                    # Some listings (MinIO's, rclone's) count finer than the header of the very same object.
                    when = row["LastModified"].astimezone(UTC).replace(microsecond=0)
                    yield ObjectInfo(key, row["Size"], row["ETag"], when)

    def children(self, prefix: str, *, start_after: str = "") -> Iterator[str]:
        whole_prefix = self._prefix + checked_folder(prefix)
        for page in self._pages(whole_prefix, Delimiter="/", after=start_after):
            names = [row["Key"].removeprefix(whole_prefix) for row in page.get("Contents", ())]
            names += [row["Prefix"].removeprefix(whole_prefix) for row in page.get("CommonPrefixes", ())]
            # A store may name the folder that the listing starts in once more.
            yield from sorted(name for name in names if name > start_after)

    def delete(self, key: str) -> None:
        full = self._full(key)
        with suppress(ObjectNotFound):  # some compatible stores answer 404 where S3 says 204
            self._connection.call(
                lambda client: client.delete_object(Bucket=self._bucket, Key=full), doing=f"delete {key}"
            )

    def now(self) -> datetime:
        def request(client: S3Client) -> datetime | None:
            try:
                # Not a head: its answers bring no reason, and an expired token must be known as one.
                answer = client.get_object(Bucket=self._bucket, Key=self._prefix + _ABSENT)
            except Exception as e:
                if s3errors.status_of(e) not in (403, 404):
                    raise
                return _date(s3errors.headers_of(e))
            answer["Body"].close()
            return _date(answer["ResponseMetadata"]["HTTPHeaders"])

        now = self._connection.call(request, doing="ask for the time")
        if now is None:
            raise StorageUnavailable(
                f"{self.url} does not say what time it is (no Date header)", hint="check whether a proxy strips it"
            )
        return now

    def check_conditional(self) -> None:
        """Prove that the store honours conditional writes; StorageError when two writers would both win."""
        key = f"probe-{secrets.token_hex(8)}"
        try:
            self.put_new(key, b"first")
            with suppress(AlreadyExists):
                self.put_new(key, b"second")
                raise self._ignored("If-None-Match")
            with suppress(VersionConflict):
                self.put_if(key, b"third", version='"00000000000000000000000000000000"')
                raise self._ignored("If-Match")
        finally:
            try:
                self.delete(key)
            except StorageDenied as e:
                self._multipart.warn(f"{key} was left behind: {e}")

    def presign_put(self, key: str, *, expires_s: int, create_only: bool = False) -> str:
        """An address to which anybody may put this one object for a while. It is a secret.

        `create_only`: whoever uses it must send `If-None-Match: *`, and only an absent object is written. A store that
        has a `single_writer` need not know that header: there the signature does not ask for it.
        """
        where = {"Bucket": self._bucket, "Key": self._full(key)}
        if create_only and not self.is_single_writer:
            where["IfNoneMatch"] = "*"
        return self._connection.presign("put_object", where, expires_s=expires_s, doing=f"sign {key}")

    def _put_alone(self, key: str, data: bytes, *, version: str | None) -> ObjectInfo:
        """Look, then write: enough where this program is the only one that writes, as `single_writer` promises."""
        with _ALONE:
            try:
                standing = self.head(key)
            except ObjectNotFound:
                if version is not None:
                    raise VersionConflict(f"{key} in {self.url} is gone") from None
            else:
                if version is None:
                    raise AlreadyExists(f"{key} exists already in {self.url}")
                if standing.version != version:
                    raise VersionConflict(f"{key} in {self.url} has changed")
            return self.put(key, data)

    def _ignored(self, header: str) -> StorageError:
        return StorageError(
            f"{self.url} ignores {header}: two tunes could both rent an instance for the same attempt",
            hint="use a store with conditional writes (S3, R2, MinIO from 2024-09 on), or upgrade this one",
        )

    def _put_on_condition(self, key: str, data: bytes, condition: Mapping[str, str]) -> ObjectInfo:
        full = self._full(key)
        nonce = secrets.token_hex(8)

        def request(client: S3Client, sending: Answer) -> ObjectInfo:
            conditional: Any = condition  # one of two keywords; the stubs want it spelled out
            try:
                answer = client.put_object(
                    Bucket=self._bucket, Key=full, Body=data, Metadata={_WRITER: nonce}, **conditional
                )
            except Exception as e:
                own = s3errors.status_of(e) == 412 and sending.retried and self._own(client, key, data, nonce)
                if own:
                    return own
                raise
            return _written(key, len(data), answer)

        return self._connection.call_marked(request, doing=f"write {key}")

    def _own(self, client: S3Client, key: str, data: bytes, nonce: str) -> ObjectInfo | None:
        """What stands at the key, if it is what an earlier try of this very write has put there."""
        try:
            answer = open_object(client, self._bucket, self._full(key))
        except ObjectNotFound:
            return None
        except Exception as e:
            if s3errors.code_of(e) == "NoSuchKey":
                return None
            raise
        with closing(answer["Body"]) as body:
            is_own = body.read() == data and answer.get("Metadata", {}).get(_WRITER, nonce) == nonce
        return _info(key, answer) if is_own else None

    def _pages(self, prefix: str, *, after: str = "", **options: str) -> Iterator[Any]:
        where: dict[str, str] = {"StartAfter": prefix + after} if after else {}
        while True:
            request = _lister(Bucket=self._bucket, Prefix=prefix, **options, **where)
            page = self._connection.call(request, doing=f"list {prefix or 'everything'}")
            yield page
            if not page.get("IsTruncated"):
                return
            where = {"ContinuationToken": page["NextContinuationToken"]}

    def _full(self, key: str) -> str:
        full = self._prefix + checked_key(key)
        if len(full.encode()) > MAX_KEY_BYTES:
            raise StorageError(f"key too long with its prefix: {len(full.encode())} bytes, {MAX_KEY_BYTES} allowed")
        return full


def _lister(**where: str) -> Callable[[S3Client], Any]:
    arguments: Any = where
    return lambda client: client.list_objects_v2(**arguments)


def _info(key: str, answer: Any) -> ObjectInfo:
    return ObjectInfo(key, answer["ContentLength"], answer["ETag"], answer["LastModified"].astimezone(UTC))


def _written(key: str, size: int, answer: Any) -> ObjectInfo:
    when = _date(answer["ResponseMetadata"]["HTTPHeaders"]) or datetime.fromtimestamp(0, UTC)
    return ObjectInfo(key, size, answer["ETag"], when)


def _date(headers: Mapping[str, str]) -> datetime | None:
    try:
        return parsedate_to_datetime(headers["date"]).astimezone(UTC)
    except (KeyError, ValueError):
        return None
