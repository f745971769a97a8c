"""A small S3 over real HTTP that is stricter than a bucket, and fails on command.

It refuses what many compatible stores refuse (checksum headers, trailers, aws-chunked bodies), keeps conditional writes
atomic, and carries out a script: the n-th call of an action can be answered with an error before or after it has been
applied, cut off, stalled or denied.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

_KEPT_BYTES = 1 << 20  # of a request's body, in the list of requests
_PART_MIN_BYTES = 5 << 20  # except for the last


@dataclass
class Stored:
    data: bytes
    etag: str
    modified_at: datetime
    metadata: dict[str, str]


@dataclass
class Upload:
    key: str
    initiated: datetime
    parts: dict[int, bytes] = field(default_factory=dict)


@dataclass
class Fault:
    """What happens to one call. `applied`: the request is carried out first, only its answer is lost or replaced."""

    code: str = ""
    status: int = 500
    applied: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    hang_up: bool = False  # close the connection without an answer
    cut_body_at: int | None = None  # of a get: send so many bytes, then close
    stall_s: float = 0.0


@dataclass(frozen=True)
class Request:
    action: str
    key: str
    path: str  # as it was sent, quoted
    headers: dict[str, str]
    token: str
    method: str = ""
    bucket: str = ""
    query: str = ""  # as it was sent
    body: bytes = b""

    @property
    def arguments(self) -> dict[str, list[str]]:
        return parse_qs(self.query, keep_blank_values=True)


class Answer(Exception):
    def __init__(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, *, code: str = "", text: str = ""
    ) -> None:
        super().__init__(code)
        self.status = status
        self.headers = headers or {}
        self.body = body
        if code:
            extra = "".join(f"<{k}>{v}</{k}>" for k, v in self.headers.items() if k == "Region")
            self.body = f"<Error><Code>{code}</Code><Message>{text or code}</Message>{extra}</Error>".encode()


class StrictS3:
    """The server and everything it remembers."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.buckets: dict[str, dict[str, Stored]] = {}
        self.uploads: dict[str, Upload] = {}
        self.requests: list[Request] = []
        self.script: dict[tuple[str, int], Fault] = {}
        self.counts: Counter[str] = Counter()
        self.denied: set[str] = set()
        self.expired_tokens: set[str] = set()
        self.keys: set[str] = {"AKIDTEST"}
        self.region = ""
        self.ignores_conditions = False
        self.ignores_ranges = False
        self.refuses_conditions = False  # 501 to their headers
        self.drops_bodies = False  # 200, and the object stays empty
        self.sums_parts = False  # as Amazon does: parts have checksums, and are not joined without them
        self.skew = timedelta(0)
        self._next = 0
        outer = self

        class Handler(_Handler):
            s3 = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[Self]:
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.skew

    def on(self, action: str, number: int, fault: Fault) -> None:
        """From now on, the `number`-th call of `action` (1 is the next) meets this fault."""
        self.script[action, self.counts[action] + number] = fault

    def seen(self, action: str) -> list[Request]:
        return [request for request in self.requests if request.action == action]

    def fresh(self) -> str:
        self._next += 1
        return f"id{self._next:06d}"

    def authorize(self, request: Request) -> None:
        """Raise the Answer that a request gets which may not be carried out."""
        scope = re.search(r"Credential=([^/]+)/\d+/([^/]+)/s3", request.headers.get("authorization", ""))
        if scope is None:
            raise Answer(403, code="AccessDenied", text="anonymous")
        if scope[1] not in self.keys:
            raise Answer(403, code="InvalidAccessKeyId")
        if request.token in self.expired_tokens:
            raise Answer(400, code="ExpiredToken")
        if self.region and scope[2] != self.region:
            raise Answer(400, headers={"Region": self.region}, code="AuthorizationHeaderMalformed")
        if request.action in self.denied:
            raise Answer(403, code="AccessDenied", text=f"not authorized to perform s3:{request.action}")

    def serve_root(self, request: Request) -> None:
        """A POST to no bucket at all: another service's, if this server has any."""
        raise Answer(405, code="MethodNotAllowed", text="The specified method is not allowed against this resource.")


def _action(method: str, bucket: str, key: str, query: dict[str, list[str]]) -> str:
    if not bucket and method == "POST":
        return "Root"
    if not key:
        return {"PUT": "CreateBucket", "HEAD": "HeadBucket"}.get(
            method, "ListMultipartUploads" if "uploads" in query else "ListObjectsV2"
        )
    if "uploadId" in query:
        return {"PUT": "UploadPart", "POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload"}[method]
    if method == "POST":
        return "CreateMultipartUpload"
    return {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}[method]


def _check(headers: dict[str, str]) -> None:
    """What many stores do not know."""
    for name in headers:
        if name.startswith("x-amz-checksum") or name in ("x-amz-trailer", "x-amz-sdk-checksum-algorithm"):
            raise Answer(501, code="NotImplemented", text=f"header {name}")
    if "aws-chunked" in headers.get("content-encoding", "") or "STREAMING" in headers.get("x-amz-content-sha256", ""):
        raise Answer(501, code="NotImplemented", text="aws-chunked")


class _Handler(BaseHTTPRequestHandler):
    s3: StrictS3
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = parse_qs(parts.query, keep_blank_values=True)
        action = _action(self.command, bucket, key, query)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        s3 = self.s3
        headers = {name.lower(): value for name, value in self.headers.items()}
        token = headers.get("x-amz-security-token", "")
        request = Request(action, key, parts.path, headers, token, self.command, bucket, parts.query, body)
        with s3.lock:
            s3.counts[action] += 1
            fault = s3.script.pop((action, s3.counts[action]), None)
            s3.requests.append(request if len(body) < _KEPT_BYTES else replace(request, body=b""))
        if fault and fault.stall_s:
            time.sleep(fault.stall_s)  # the wire itself is slow here
        answer = None
        if fault is None or fault.applied or not (fault.code or fault.hang_up):
            with s3.lock:
                try:
                    if action == "Root":
                        s3.serve_root(request)
                    _check(headers)
                    s3.authorize(request)
                    getattr(self, f"_{action}")(bucket, key, query, headers, body)
                    answer = Answer(200)
                except Answer as e:
                    answer = e
        if fault and fault.hang_up:
            self.close_connection = True
            return
        if fault and fault.code:
            answer = Answer(fault.status, headers=fault.headers, code=fault.code)
        assert answer is not None
        self._send(answer, fault.cut_body_at if fault else None)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _send(self, answer: Answer, cut_at: int | None) -> None:
        self.send_response_only(answer.status)
        self.send_header("Date", format_datetime(self.s3.now(), usegmt=True))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in answer.headers:
            self.send_header("Content-Length", "0" if answer.status == 204 else str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD" and answer.status != 204:
            self.wfile.write(answer.body if cut_at is None else answer.body[:cut_at])
        if cut_at is not None:
            self.close_connection = True

    def _objects(self, bucket: str) -> dict[str, Stored]:
        try:
            return self.s3.buckets[bucket]
        except KeyError:
            raise Answer(404, code="NoSuchBucket") from None

    def _conditions(self, standing: Stored | None, headers: dict[str, str]) -> None:
        if self.s3.refuses_conditions and headers.keys() & {"if-none-match", "if-match"}:
            raise Answer(
                501, code="NotImplemented", text="A header you provided implies functionality not implemented."
            )
        if self.s3.ignores_conditions:
            return
        if headers.get("if-none-match") == "*" and standing:
            raise Answer(412, code="PreconditionFailed")
        wanted = headers.get("if-match")
        if wanted and standing is None:
            raise Answer(404, code="NoSuchKey")
        if wanted and standing and standing.etag != wanted:
            raise Answer(412, code="PreconditionFailed")

    def _PutObject(self, bucket: str, key: str, query: object, headers: dict[str, str], body: bytes) -> None:
        objects = self._objects(bucket)
        self._conditions(objects.get(key), headers)
        metadata = {name: value for name, value in headers.items() if name.startswith("x-amz-meta-")}
        body = b"" if self.s3.drops_bodies else body
        objects[key] = Stored(body, f'"{md5(body).hexdigest()}"', self.s3.now(), metadata)
        raise Answer(200, headers={"ETag": objects[key].etag})

    def _GetObject(self, bucket: str, key: str, query: object, headers: dict[str, str], body: bytes) -> None:
        found = self._objects(bucket).get(key)
        if found is None:
            raise Answer(404, code="NoSuchKey")
        if headers.get("if-match", found.etag) != found.etag:
            raise Answer(412, code="PreconditionFailed")
        data, status, extra = found.data, 200, {}
        if "range" in headers and not self.s3.ignores_ranges:
            first, _, last = headers["range"].removeprefix("bytes=").partition("-")
            data, status = data[int(first) : int(last) + 1 if last else None], 206
            if not data:
                raise Answer(416, code="InvalidRange")
            extra["Content-Range"] = f"bytes {first}-{int(first) + len(data) - 1}/{len(found.data)}"
        raise Answer(
            status,
            data,
            {
                "ETag": found.etag,
                "Last-Modified": format_datetime(found.modified_at, usegmt=True),
                "Content-Length": str(len(data)),
                **found.metadata,
                **extra,
            },
        )

    _HeadObject = _GetObject

    def _DeleteObject(self, bucket: str, key: str, *_: object) -> None:
        self._objects(bucket).pop(key, None)
        raise Answer(204)

    def _ListObjectsV2(self, bucket: str, key: str, query: dict[str, list[str]], *_: object) -> None:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        rows: dict[str, str] = {}
        last, truncated = "", False
        for name, one in sorted(self._objects(bucket).items()):
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            folder = f"{prefix}{head}{delimiter}" if found else ""
            if not name.startswith(prefix) or name <= after or (folder and folder in rows):
                continue
            if "continuation-token" in query and folder and after.startswith(folder):
                continue  # that folder was on the page before
            if len(rows) == 1000:
                truncated = True
                break
            last = name
            when = one.modified_at.strftime("%Y-%m-%dT%H:%M:%S.000Z")
            rows[folder or name] = (
                f"<CommonPrefixes><Prefix>{quote(folder)}</Prefix></CommonPrefixes>"
                if folder
                else f"<Contents><Key>{quote(name)}</Key><LastModified>{when}</LastModified>"
                f"<ETag>{escape(one.etag)}</ETag><Size>{len(one.data)}</Size></Contents>"
            )
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{escape(last)}</NextContinuationToken>"
        text = (
            "<ListBucketResult><EncodingType>url</EncodingType>" + (more if truncated else "") + "".join(rows.values())
        )
        raise Answer(200, (text + "</ListBucketResult>").encode())

    def _CreateMultipartUpload(self, bucket: str, key: str, *_: object) -> None:
        self._objects(bucket)
        upload_id = self.s3.fresh()
        self.s3.uploads[upload_id] = Upload(key, self.s3.now())
        name = f"<UploadId>{upload_id}</UploadId>"
        raise Answer(200, f"<InitiateMultipartUploadResult>{name}</InitiateMultipartUploadResult>".encode())

    def _upload(self, query: dict[str, list[str]]) -> Upload:
        try:
            return self.s3.uploads[query["uploadId"][0]]
        except KeyError:
            raise Answer(404, code="NoSuchUpload") from None

    def _UploadPart(self, bucket: str, key: str, query: dict[str, list[str]], headers: object, body: bytes) -> None:
        self._upload(query).parts[int(query["partNumber"][0])] = body
        sums = {"x-amz-checksum-crc32": "AAAAAA=="} if self.s3.sums_parts else {}
        raise Answer(200, headers={"ETag": f'"{md5(body).hexdigest()}"', **sums})

    def _CompleteMultipartUpload(
        self, bucket: str, key: str, query: dict[str, list[str]], headers: object, body: bytes
    ) -> None:
        upload = self._upload(query)
        if self.s3.sums_parts and body.count(b"<ChecksumCRC32>") != len(upload.parts):
            raise Answer(400, code="InvalidRequest", text="The complete request must include the checksum of each part")
        *first, last = [len(upload.parts[number]) for number in sorted(upload.parts)]
        if len({*first}) > 1 or (first and last > first[0]):
            raise Answer(400, code="InvalidPart", text="All non-trailing parts must have the same length.")  # R2's rule
        if min(first, default=_PART_MIN_BYTES) < _PART_MIN_BYTES:
            raise Answer(400, code="EntityTooSmall")
        del self.s3.uploads[query["uploadId"][0]]
        data = b"".join(upload.parts[number] for number in sorted(upload.parts))
        etag = f'"{md5(data).hexdigest()}-{len(upload.parts)}"'
        self._objects(bucket)[key] = Stored(data, etag, self.s3.now(), {})
        text = f"<CompleteMultipartUploadResult><ETag>{escape(etag)}</ETag></CompleteMultipartUploadResult>"
        raise Answer(200, text.encode())

    def _AbortMultipartUpload(self, bucket: str, key: str, query: dict[str, list[str]], *_: object) -> None:
        self._upload(query)
        del self.s3.uploads[query["uploadId"][0]]
        raise Answer(204)

    def _ListMultipartUploads(self, bucket: str, key: str, query: dict[str, list[str]], *_: object) -> None:
        prefix = query.get("prefix", [""])[0]
        rows = "".join(
            f"<Upload><Key>{escape(one.key)}</Key><UploadId>{upload_id}</UploadId>"
            f"<Initiated>{one.initiated.strftime('%Y-%m-%dT%H:%M:%S.000Z')}</Initiated></Upload>"
            for upload_id, one in self.s3.uploads.items()
            if one.key.startswith(prefix)
        )
        raise Answer(200, f"<ListMultipartUploadsResult>{rows}</ListMultipartUploadsResult>".encode())
