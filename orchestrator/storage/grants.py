"""Keys for one instance: to one run's part of the bucket and, where the store can, for some hours only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from orchestrator.errors import CredentialsMissing
from orchestrator.storage.uri import Location, endpoint

if TYPE_CHECKING:
    from boto3.session import Session

WORKER_KEY, WORKER_SECRET = "TUNE_WORKER_ACCESS_KEY_ID", "TUNE_WORKER_SECRET_ACCESS_KEY"
HOURS = 12.0  # long enough for a night without this computer
_SHORTEST_S, _FEDERATION_LONGEST_S = 900, 129_600  # limits of GetFederationToken
_ROLE_S = 3600  # what every role allows
_TIMEOUT_S = 15
HINT = (
    "four ways: an AWS user that may call sts:GetFederationToken; `role_arn` in the [storage] table, to be assumed; "
    f"a key limited to the runs' prefix in ${WORKER_KEY} and ${WORKER_SECRET}; or `send_own_keys = true` in the "
    "[storage] table, which puts this computer's own keys on rented ones"
)


@dataclass(frozen=True, slots=True)
class Grant:
    """Keys that go to an instance. `expires_at` None: they are good until somebody takes them back."""

    access_key_id: str
    secret_access_key: str
    session_token: str = ""
    expires_at: datetime | None = None
    how: str = ""  # in words, for people

    @property
    def risk(self) -> str:
        """What to know about keys that do not expire; empty for those that do."""
        if self.expires_at is not None:
            return ""
        return f"the bucket's keys on the instance do not expire ({self.how}): take them back when the run is over"

    def dump(self) -> bytes:
        """`storage.json` on the instance, which the S3 option `credentials_file` reads."""
        told = {
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
            "session_token": self.session_token,
            "expires_at": self.expires_at.isoformat() if self.expires_at else None,
        }
        return json.dumps(told, indent=1).encode() + b"\n"

    def __repr__(self) -> str:
        return f"Grant({self.how}, until {self.expires_at})"


@dataclass(frozen=True, slots=True)
class _Tried:
    """A way that did not lead to keys, and why."""

    way: str
    why: str


def mint(location: Location, options: Mapping[str, str], *, run_prefix: str, environment: Mapping[str, str]) -> Grant:
    """Keys to `run_prefix` (a key prefix below the store's root, ending in `/`), by the first way that works.

    Raises CredentialsMissing when none does, with what was tried and the four ways there are.
    """
    tried: list[_Tried] = []
    for way in _ways(location, options, run_prefix=run_prefix, environment=environment):
        if isinstance(way, Grant):
            return way
        tried.append(way)
    said = "; ".join(f"{t.way}: {t.why}" for t in tried)
    raise CredentialsMissing(
        f"no keys for a rented computer can be made ({said})" if said else "no keys for a rented computer can be made",
        hint=HINT,
    )


def policy(location: Location, run_prefix: str) -> dict[str, Any]:
    """An IAM session policy: the run's own part of the bucket, and nothing beside it."""
    root = f"{location.prefix}/" if location.prefix else ""
    bucket = f"arn:aws:s3:::{location.bucket}"
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": [
                    "s3:GetObject",
                    "s3:PutObject",
                    "s3:DeleteObject",
                    "s3:AbortMultipartUpload",
                    "s3:ListMultipartUploadParts",
                ],
                "Resource": f"{bucket}/{root}{run_prefix}*",
            },
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket", "s3:ListBucketMultipartUploads"],
                "Resource": bucket,
                "Condition": {"StringLike": {"s3:prefix": f"{root}{run_prefix}*"}},
            },
        ],
    }


def _ways(
    location: Location, options: Mapping[str, str], *, run_prefix: str, environment: Mapping[str, str]
) -> Iterator[Grant | _Tried]:
    key, secret = environment.get(WORKER_KEY, "").strip(), environment.get(WORKER_SECRET, "").strip()
    if key and secret:
        yield Grant(key, secret, how=f"the worker key of ${WORKER_KEY}")
    if key or secret:
        yield _Tried("worker key", f"${WORKER_SECRET if key else WORKER_KEY} is not set")
    rules = json.dumps(policy(location, run_prefix), separators=(",", ":"))
    yield from _temporary(location, options, rules=rules, environment=environment)
    if options.get("send_own_keys", "").strip().lower() in {"1", "true", "yes"}:
        own = _own(options)
        if own:
            yield own
        else:
            yield _Tried("own keys", "this computer has none")


def _temporary(
    location: Location, options: Mapping[str, str], *, rules: str, environment: Mapping[str, str]
) -> Iterator[Grant | _Tried]:
    import boto3

    try:
        session = boto3.session.Session(profile_name=options.get("profile") or None)
    except Exception as e:  # a profile that is not there
        yield _Tried("temporary keys", str(e))
        return
    if session.get_credentials() is None:
        yield _Tried("temporary keys", "there are no AWS credentials on this computer")
        return
    seconds = int(float(options.get("grant_hours") or HOURS) * 3600)
    client = _sts(session, location, options, environment)
    role = options.get("role_arn", "")
    if role:
        for life in dict.fromkeys((seconds, _ROLE_S)):
            got = _ask(
                "AssumeRole",
                lambda life=life: client.assume_role(
                    RoleArn=role, RoleSessionName="tune", Policy=rules, DurationSeconds=max(_SHORTEST_S, life)
                ),
            )
            if isinstance(got, Grant):
                yield got
                return
        yield got
        return
    life = min(_FEDERATION_LONGEST_S, max(_SHORTEST_S, seconds))
    yield _ask(
        "GetFederationToken",
        lambda: client.get_federation_token(Name="tune", Policy=rules, DurationSeconds=life),
    )


def _ask(call: str, request: Any) -> Grant | _Tried:
    try:
        told = request()["Credentials"]
        until = told["Expiration"]
        expires_at = until if isinstance(until, datetime) else datetime.fromisoformat(str(until))
        return Grant(
            str(told["AccessKeyId"]),
            str(told["SecretAccessKey"]),
            str(told["SessionToken"]),
            expires_at.astimezone(UTC),
            how=f"temporary keys by {call}",
        )
    except Exception as e:  # the SDK raises more kinds than it names; none of them is worth more than its words
        return _Tried(call, _short(e))


def _short(error: Exception) -> str:
    told = getattr(error, "response", {}).get("Error", {})
    code, message = told.get("Code", ""), told.get("Message", "")
    text = f"{code} {message}".strip() or f"{type(error).__name__}: {error}"
    return text.replace("\n", " ")[:200]


def _sts(session: Session, location: Location, options: Mapping[str, str], environment: Mapping[str, str]) -> Any:
    from botocore.config import Config

    named = options.get("sts_endpoint_url") or environment.get("AWS_ENDPOINT_URL_STS", "")
    given = options.get("endpoint_url") or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    at = named or (endpoint(given, bucket=location.bucket, region=options.get("region", "")).url if given else "")
    region = options.get("region", "")
    return session.client(
        "sts",
        endpoint_url=at or None,
        region_name=(region if region not in ("", "auto") else session.region_name) or "us-east-1",
        config=Config(
            connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S, retries={"total_max_attempts": 2, "mode": "standard"}
        ),
    )


def _own(options: Mapping[str, str]) -> Grant | None:
    """The keys of this computer, as they are."""
    import boto3

    found = boto3.session.Session(profile_name=options.get("profile") or None).get_credentials()
    if found is None:
        return None
    frozen = found.get_frozen_credentials()
    expires = getattr(found, "_expiry_time", None)  # only temporary ones have it
    return Grant(
        str(frozen.access_key), str(frozen.secret_key), frozen.token or "", expires, how="this computer's own keys"
    )
