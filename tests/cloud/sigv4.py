"""Whether a request is signed with a secret: AWS Signature Version 4, in the header or in the address.

After the description in Amazon's documentation ("Create a signed AWS API request", and "Authenticating Requests" of the
S3 API reference), independently of the SDK that signs.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, unquote

from tests.storage.strict_s3 import Request

SKEW = timedelta(minutes=15)  # what S3 allows
_HEADER = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/,]+)/(\d{8})/([^/]+)/(\w+)/aws4_request, ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]+)"
)
_UNSIGNED = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, slots=True)
class Signature:
    """A claim, as it came."""

    key: str
    day: str
    region: str
    service: str
    signed_headers: tuple[str, ...]
    digest: str
    time: str
    expires_s: int | None = None  # of a signed address

    @property
    def signed_at(self) -> datetime:
        return datetime.strptime(self.time, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)

    def fits(self, secret: str, text: str) -> bool:
        """Whether this text was signed with that secret."""
        signing = f"AWS4{secret}".encode()
        for part in (self.day, self.region, self.service, "aws4_request"):
            signing = hmac.digest(signing, part.encode(), "sha256")
        scope = f"{self.day}/{self.region}/{self.service}/aws4_request"
        whole = "\n".join(["AWS4-HMAC-SHA256", self.time, scope, hashlib.sha256(text.encode()).hexdigest()])
        return hmac.compare_digest(hmac.digest(signing, whole.encode(), "sha256").hex(), self.digest)


def claimed(headers: Mapping[str, str], arguments: Mapping[str, Sequence[str]]) -> Signature | None:
    """The signature of a request; None for an anonymous one."""
    found = _HEADER.fullmatch(headers.get("authorization", ""))
    if found:
        key, day, region, service, names, digest = found.groups()
        return Signature(key, day, region, service, tuple(names.split(";")), digest, headers.get("x-amz-date", ""))
    if "X-Amz-Signature" not in arguments:
        return None
    told = {name: values[0] for name, values in arguments.items()}
    key, day, region, service, _ = told["X-Amz-Credential"].split("/")
    return Signature(
        key, day, region, service, tuple(told["X-Amz-SignedHeaders"].split(";")), told["X-Amz-Signature"],
        told["X-Amz-Date"], int(told["X-Amz-Expires"]),
    )  # fmt: skip


def text_to_sign(signature: Signature, request: Request) -> str:
    """The canonical request."""
    pairs = [tuple(unquote(part) for part in pair.partition("=")[::2]) for pair in request.query.split("&") if pair]
    coded = sorted((quote(n, safe="-_.~"), quote(v, safe="-_.~")) for n, v in pairs if n != "X-Amz-Signature")
    query = "&".join(f"{n}={v}" for n, v in coded)
    lines = [f"{name}:{' '.join(request.headers.get(name, '').split())}" for name in signature.signed_headers]
    names = ";".join(signature.signed_headers)
    return "\n".join([request.method, request.path or "/", query, *lines, "", names, _payload(signature, request)])


def _payload(signature: Signature, request: Request) -> str:
    if signature.expires_s is not None:
        return _UNSIGNED
    return request.headers.get("x-amz-content-sha256") or hashlib.sha256(request.body).hexdigest()


def body_is_as_signed(headers: Mapping[str, str], body: bytes) -> bool:
    declared = headers.get("x-amz-content-sha256", _UNSIGNED)
    return declared == _UNSIGNED or declared == hashlib.sha256(body).hexdigest()
