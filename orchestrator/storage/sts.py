"""The service that gives out temporary keys: Amazon's STS, or a store that speaks its language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from orchestrator.storage.grants import Grant, Tried
from orchestrator.storage.s3client import is_amazon
from orchestrator.storage.uri import Location, endpoint

if TYPE_CHECKING:
    from boto3.session import Session

ANY_ROLE = "arn:aws:iam:::role/tune"  # MinIO knows no roles: it wants one to be named, and narrows our own rights
_FEDERATION_LONGEST_S = 129_600  # GetFederationToken, for a user; AssumeRole is limited by the role
_ROLE_S = 3600  # what every role allows, and all there is for a role that was assumed by a role
_SESSION_NAME = "tune"
_TIMEOUT_S = 15
_PASSING = frozenset({"Throttling", "ThrottlingException", "ServiceUnavailable", "InternalFailure", "InternalError"})


@dataclass(frozen=True, slots=True)
class Desk:
    """The service that gives out keys. `is_expected`: it is known to exist, so that its silence passes."""

    client: Any
    rules: str
    is_expected: bool

    def assume(self, role: str, seconds: int) -> Grant | Tried:
        told: Grant | Tried = self._assume(role, seconds)
        if isinstance(told, Tried) and told.code == "ValidationError" and seconds > _ROLE_S:
            told = self._assume(role, _ROLE_S)  # longer than this role allows
        return told

    def federate(self, seconds: int) -> Grant | Tried:
        life = min(_FEDERATION_LONGEST_S, seconds)
        return self._ask(
            "GetFederationToken",
            lambda: self.client.get_federation_token(Name=_SESSION_NAME, Policy=self.rules, DurationSeconds=life),
        )

    def _assume(self, role: str, seconds: int) -> Grant | Tried:
        return self._ask(
            "AssumeRole",
            lambda: self.client.assume_role(
                RoleArn=role, RoleSessionName=_SESSION_NAME, Policy=self.rules, DurationSeconds=seconds
            ),
        )

    def _ask(self, call: str, request: Callable[[], Any]) -> Grant | Tried:
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
        except Exception as e:  # the SDK raises more kinds than it names; whatever is not such keys is no answer
            return self._tried(call, e)

    def _tried(self, call: str, error: Exception) -> Tried:
        response = getattr(error, "response", None) or {}
        told, answer = response.get("Error", {}), response.get("ResponseMetadata", {})
        status = int(answer.get("HTTPStatusCode", 0))
        code, message = str(told.get("Code", "")), str(told.get("Message", ""))
        # Without an answer only the kind is passed on: some of the SDK's texts quote a header, and with it the key.
        text = f"{code} {message}".strip() or (f"HTTP {status}" if status else type(error).__name__)
        is_silent = _is_silence(error)
        is_passing = self.is_expected and (code in _PASSING or status >= 500 or is_silent)
        return Tried(call, text.replace("\n", " ")[:200], code=code, is_passing=is_passing, is_silent=is_silent)


def _is_silence(error: Exception) -> bool:
    from botocore import exceptions as sdk

    return isinstance(error, (sdk.ConnectionError, sdk.HTTPClientError, OSError))


def service(location: Location, options: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, bool]:
    """Where keys are given out ('' is Amazon), and whether somebody has said so."""
    named = options.get("sts_endpoint_url") or environment.get("AWS_ENDPOINT_URL_STS", "")
    store = options.get("endpoint_url") or environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    given = named or store
    if not given:
        return "", False
    url = endpoint(given, bucket=location.bucket).url
    return ("", False) if is_amazon(url) and not named else (url, bool(named))


def client(session: Session, at: str, region: str) -> Any:
    from botocore.config import Config

    return session.client(
        "sts",
        endpoint_url=at or None,
        region_name=(region if region not in ("", "auto") else session.region_name) or "us-east-1",
        # Asked once: whoever calls comes again, and does not sleep here meanwhile.
        config=Config(
            connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S, retries={"total_max_attempts": 1, "mode": "standard"}
        ),
    )
