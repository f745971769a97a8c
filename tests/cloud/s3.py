"""A bucket as strict as Amazon's about who may do what, with a service that gives out temporary keys.

with StrictS3().running() as s3:
    s3.buckets["bucket"] = {}
    s3.deny("DeleteObject")
    s3.expire_tokens()

Below it lies `tests/storage/strict_s3.py`: what a request may look like, and faults on command. Here every request of a
key whose secret is known must be signed with it, session tokens expire, and session policies are obeyed to the letter,
the 403 for absent objects included.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NoReturn
from urllib.parse import parse_qs

from tests.cloud import iam, sigv4
from tests.storage import strict_s3
from tests.storage.strict_s3 import Answer, Request

ACCOUNT = "123456789012"
_NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"
_BOTH = frozenset({"GetFederationToken", "AssumeRole"})


@dataclass(frozen=True, slots=True)
class Holder:
    """Who a key belongs to. `secret` '': any will do. `policies`: each of them must allow what is asked."""

    secret: str = ""
    token: str = ""
    expires_at: datetime | None = None
    policies: tuple[Mapping[str, Any], ...] = ()
    is_session: bool = False


class StrictS3(strict_s3.StrictS3):
    """The server, its users, and what it does not do."""

    def __init__(self) -> None:
        super().__init__()
        self.holders: dict[str, Holder] = {"AKIDTEST": Holder()}
        self.sts_calls = _BOTH  # those that the service knows; none: this store gives out no keys
        self.sts_page: tuple[int, bytes] | None = None  # what it says instead of an answer of its own kind
        self.role_longest_s = 12 * 3600
        self.forgets_policies = False  # temporary keys open everything
        self.issued: list[dict[str, str]] = []  # the arguments of every call that led to keys

    @property
    def url(self) -> str:
        return self.endpoint

    def deny(self, *actions: str) -> None:
        """From now on these calls are refused to everybody, whatever their policies."""
        self.denied.update(actions)

    def add_key(self, key: str, secret: str, *, policy: Mapping[str, Any] | None = None) -> None:
        """Another user with a long-lived key."""
        with self.lock:
            self.holders[key] = Holder(secret, policies=(policy,) if policy else ())

    def expire_tokens(self, *, spare: str = "") -> None:
        """All temporary keys that were given out so far are worthless from now on, but for one."""
        with self.lock:
            for key, holder in self.holders.items():
                if holder.expires_at and key != spare:
                    self.holders[key] = replace(holder, expires_at=self.now() - timedelta(seconds=1))

    def authorize(self, request: Request) -> None:
        signature = sigv4.claimed(request.headers, request.arguments)
        if signature is None:
            raise Answer(403, code="AccessDenied", text="Access Denied")
        holder = self._holder(signature, request)
        if self.region and signature.region != self.region:
            raise Answer(400, headers={"Region": self.region}, code="AuthorizationHeaderMalformed")
        if request.action in self.denied:
            self._deny(request)
        context = {"s3:prefix": request.arguments["prefix"][0]} if "prefix" in request.arguments else {}
        resource = f"arn:aws:s3:::{request.bucket}" + (f"/{request.key}" if request.key else "")
        if not _may(holder, iam.ACTIONS[request.action], resource, context):
            self._deny(request)
        if "if-match" in request.headers and request.method == "PUT" and not _may(holder, "s3:GetObject", resource, {}):
            self._deny(request)  # "Add preconditions to S3 operations": If-Match takes the right to read, too
        reads = request.action in ("GetObject", "HeadObject")
        if (
            reads
            and not _may(holder, "s3:ListBucket", f"arn:aws:s3:::{request.bucket}", {})
            and self._is_absent(request)
        ):
            self._deny(request)  # GetObject: "If you don't have the s3:ListBucket permission, S3 returns 403"

    def serve_root(self, request: Request) -> NoReturn:
        """The query protocol of STS."""
        if self.sts_page is not None:
            raise Answer(self.sts_page[0], self.sts_page[1])
        if not self.sts_calls:
            super().serve_root(request)
        asked = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        signature = sigv4.claimed(request.headers, {})
        if signature is None or signature.service != "sts":
            raise _Refused(403, "MissingAuthenticationToken")
        holder = self._holder(signature, request)
        raise Answer(200, self._issue(asked, holder), {"Content-Type": "text/xml"})

    def _holder(self, signature: sigv4.Signature, request: Request) -> Holder:
        is_s3 = signature.service == "s3"
        holder = self.holders.get(signature.key)
        if holder is None:
            raise Answer(403, code="InvalidAccessKeyId") if is_s3 else _Refused(403, "InvalidClientTokenId")
        if holder.expires_at and holder.expires_at <= self.now():
            raise Answer(400, code="ExpiredToken") if is_s3 else _Refused(403, "ExpiredToken")
        token = request.token or request.arguments.get("X-Amz-Security-Token", [""])[0]
        if holder.is_session and token != holder.token:
            raise Answer(400, code="InvalidToken") if is_s3 else _Refused(403, "InvalidClientTokenId")
        if (
            signature.expires_s is not None
            and signature.signed_at + timedelta(seconds=signature.expires_s) < self.now()
        ):
            raise Answer(403, code="AccessDenied", text="Request has expired")
        if signature.expires_s is None and abs(signature.signed_at - self.now()) > sigv4.SKEW:
            raise Answer(403, code="RequestTimeTooSkewed")
        if holder.secret:
            self._check_signature(signature, holder, request)
        return holder

    def _check_signature(self, signature: sigv4.Signature, holder: Holder, request: Request) -> None:
        text = sigv4.text_to_sign(signature, request)
        unsigned = {name for name in request.headers if name.startswith("x-amz-")} - {*signature.signed_headers}
        if not signature.fits(holder.secret, text) or unsigned:
            code = "SignatureDoesNotMatch"
            raise Answer(403, code=code) if signature.service == "s3" else _Refused(403, code)
        if not sigv4.body_is_as_signed(request.headers, request.body):
            raise Answer(400, code="XAmzContentSHA256Mismatch")

    def _is_absent(self, request: Request) -> bool:
        return request.key not in self.buckets.get(request.bucket, {})

    def _deny(self, request: Request) -> NoReturn:
        action = iam.ACTIONS[request.action]
        raise Answer(403, code="AccessDenied", text=f"User is not authorized to perform: {action}")

    def _issue(self, asked: dict[str, str], issuer: Holder) -> bytes:
        action, life_s = asked.get("Action", ""), int(asked.get("DurationSeconds", 3600))
        if action not in self.sts_calls:
            raise _Refused(400, "InvalidAction", f"Could not find operation {action}")
        longest = self.role_longest_s if action == "AssumeRole" else 129_600
        if action == "GetFederationToken" and issuer.is_session:
            raise _Refused(403, "AccessDenied", "Cannot call GetFederationToken with session credentials")
        if not 900 <= life_s <= longest:
            raise _Refused(400, "ValidationError", "The requested DurationSeconds exceeds the MaxSessionDuration set")
        rules = json.loads(asked["Policy"])
        assert len(asked["Policy"]) <= 2048, "a session policy has 2,048 characters at most"
        self.issued.append(asked)
        key, secret, token = f"ASIA{secrets.token_hex(8).upper()}", secrets.token_hex(20), secrets.token_hex(64)
        policies = issuer.policies if self.forgets_policies else (*issuer.policies, rules)
        until = self.now() + timedelta(seconds=life_s)
        self.holders[key] = Holder(secret, token, until, policies, is_session=True)
        told = (
            f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>"
            f"<SessionToken>{token}</SessionToken><Expiration>{until:%Y-%m-%dT%H:%M:%SZ}</Expiration>"
        )
        return (
            f'<{action}Response xmlns="{_NAMESPACE}"><{action}Result><Credentials>{told}</Credentials></{action}Result>'
            f"<ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></{action}Response>"
        ).encode()


class _Refused(Answer):
    """In the words of STS."""

    def __init__(self, status: int, code: str, text: str = "") -> None:
        error = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{text or code}</Message></Error>"
        super().__init__(status, f'<ErrorResponse xmlns="{_NAMESPACE}">{error}</ErrorResponse>'.encode())


def _key(request: Request) -> str:
    return request.key


def _may(holder: Holder, action: str, resource: str, context: Mapping[str, str]) -> bool:
    return all(iam.allows(policy, action, resource, context) for policy in holder.policies)


@contextmanager
def strict_bucket(bucket: str = "bucket") -> Iterator[StrictS3]:
    """A running one with an empty bucket."""
    with StrictS3().running() as s3:
        s3.buckets[bucket] = {}
        yield s3
