"""Keys for one instance: to one run's part of the bucket and, where the store can, for some hours only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.errors import CredentialsMissing, StorageError, StorageUnavailable
from orchestrator.storage.s3client import is_yes
from orchestrator.storage.uri import Location

WORKER_KEY, WORKER_SECRET = "TUNE_WORKER_ACCESS_KEY_ID", "TUNE_WORKER_SECRET_ACCESS_KEY"
HOURS = 12.0  # long enough for a night without this computer
_SHORTEST_S = 900  # of both calls
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
class Tried:
    """A way that did not lead to keys, and why. `is_passing`: it may in a while. `is_silent`: nobody answered."""

    way: str
    why: str
    code: str = ""
    is_passing: bool = False
    is_silent: bool = False


def mint(location: Location, options: Mapping[str, str], *, run_prefix: str, environment: Mapping[str, str]) -> Grant:
    """Keys to `run_prefix` (a key prefix below the store's root, ending in `/`), by the first way that works.

    A worker key comes first, because naming one is the wish for keys that outlast this computer; this computer's own
    come last. Raises CredentialsMissing when no way works, with what was tried and the ways there are;
    StorageUnavailable when the service that gives out keys has no time now, so that nothing lesser takes its place.
    """
    tried: list[Tried] = []
    for way in _ways(location, options, run_prefix=run_prefix, environment=environment):
        if isinstance(way, Grant):
            return way
        if way.is_passing:
            raise StorageUnavailable(f"no keys for a rented computer now: {way.way}: {way.why}", hint="try again later")
        tried.append(way)
    said = "; ".join(f"{t.way}: {t.why}" for t in tried)
    raise CredentialsMissing(
        f"no keys for a rented computer can be made ({said})" if said else "no keys for a rented computer can be made",
        hint=HINT,
    )


def policy(location: Location, run_prefix: str, *, region: str = "") -> dict[str, Any]:
    """An IAM session policy: the run's own part of the bucket, and nothing beside it."""
    root = f"{location.prefix}/" if location.prefix else ""
    bucket = f"arn:{_partition(region)}:s3:::{location.bucket}"
    inside = f"{_literal(root + run_prefix)}*"
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
                "Resource": f"{bucket}/{inside}",
            },
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket", "s3:ListBucketMultipartUploads"],
                "Resource": bucket,
                "Condition": {"StringLike": {"s3:prefix": inside}},
            },
        ],
    }


def _partition(region: str) -> str:
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _literal(prefix: str) -> str:
    """A prefix in which a policy sees no pattern and no variable."""
    return re.sub(r"[*?$]", lambda found: f"${{{found[0]}}}", prefix)


def _ways(
    location: Location, options: Mapping[str, str], *, run_prefix: str, environment: Mapping[str, str]
) -> Iterator[Grant | Tried]:
    key, secret = environment.get(WORKER_KEY, "").strip(), environment.get(WORKER_SECRET, "").strip()
    if key and secret:
        yield Grant(key, secret, how=f"the worker key of ${WORKER_KEY}")
    if key or secret:
        yield Tried("worker key", f"${WORKER_SECRET if key else WORKER_KEY} is not set")
    rules = policy(location, run_prefix, region=options.get("region", ""))
    yield from _temporary(location, options, rules=json.dumps(rules, separators=(",", ":")), environment=environment)
    if is_yes(options.get("send_own_keys", "")):
        yield _own(options) or Tried("own keys", "this computer has none")


def _temporary(
    location: Location, options: Mapping[str, str], *, rules: str, environment: Mapping[str, str]
) -> Iterator[Grant | Tried]:
    import boto3

    seconds = _wished_s(options)
    try:
        session = boto3.session.Session(profile_name=options.get("profile") or None)
        if session.get_credentials() is None:
            yield Tried("temporary keys", "there are no AWS credentials on this computer")
            return
    except Exception as e:  # a profile that is not there, a login that has run out
        yield Tried("temporary keys", type(e).__name__)
        return
    from orchestrator.storage import sts

    at, is_named = sts.service(location, options, environment)
    desk = sts.Desk(sts.client(session, at, options.get("region", "")), rules, is_expected=is_named or not at)
    role = options.get("role_arn", "").strip()
    if role:
        yield desk.assume(role, seconds)
        return
    federated = desk.federate(seconds)
    yield federated
    # A store that gives out keys itself, such as MinIO, knows only the other call.
    if at and not is_named and isinstance(federated, Tried) and not federated.is_silent:
        yield desk.assume(sts.ANY_ROLE, seconds)


def _wished_s(options: Mapping[str, str]) -> int:
    told = options.get("grant_hours") or HOURS
    try:
        seconds = int(float(told) * 3600)
    except (ValueError, OverflowError):
        seconds = 0
    if seconds < _SHORTEST_S:
        raise StorageError(f"grant_hours: {told} is no number of hours from 0.25 on", hint="write grant_hours = 12")
    return seconds


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
