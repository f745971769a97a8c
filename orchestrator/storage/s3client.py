"""A connection to S3 or to a store that speaks its language: made late, renewed when credentials run out, patient."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from orchestrator.clock import Clock
from orchestrator.errors import StorageError, StorageUnavailable
from orchestrator.storage import s3errors
from orchestrator.storage.uri import Endpoint, endpoint

if TYPE_CHECKING:
    from boto3.session import Session
    from mypy_boto3_s3 import S3Client

    from orchestrator.storage.grants import Grant

T = TypeVar("T")

ATTEMPTS = 5  # the first try included
_FIRST_WAIT_S = 0.5  # doubled each time, and drawn between half and whole so that many clients spread out
_CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60.0  # between two bytes; a stalled transfer is an error well before two minutes
_CONNECTIONS = 16
_SIGNED_MAX_S = 7 * 24 * 3600  # the longest life of a signed address
OPTIONS = ("endpoint_url", "region", "addressing_style", "profile", "credentials_file", "single_writer")
FOR_GRANTS = ("role_arn", "sts_endpoint_url", "send_own_keys", "grant_hours")  # of no concern to the store itself


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended: whether an earlier try of it may have been carried out unseen."""

    retried: bool


class Connection:
    """Calls with bounded retries. The only place that waits, and the only one that asks for credentials."""

    def __init__(
        self,
        bucket: str,
        where: str,
        *,
        options: Mapping[str, str],
        clock: Clock,
        read_timeout_s: float,
        grant: Grant | None = None,
    ) -> None:
        unknown = sorted(set(options) - {*OPTIONS, *FOR_GRANTS})
        if unknown:
            raise StorageError(
                f"unknown storage options: {', '.join(unknown)}",
                hint=f"[storage_options] takes {', '.join((*OPTIONS, *FOR_GRANTS))}",
            )
        self._bucket = bucket
        self._where = where
        self._options = options
        self._clock = clock
        self._read_timeout_s = read_timeout_s
        self._grant = grant
        self._lock = Lock()
        self._current: S3Client | None = None

    def call(self, request: Callable[[S3Client], T], *, doing: str) -> T:
        """Send a request that may safely be sent twice."""
        return self.call_marked(lambda client, _: request(client), doing=doing)

    def call_marked(self, request: Callable[[S3Client, Answer], T], *, doing: str) -> T:
        """The same for a request whose reading depends on whether it was sent before."""
        renewed = False
        for attempt in range(1, ATTEMPTS + 1):
            client: S3Client | None = None
            try:
                client = self._client()
                return request(client, Answer(retried=attempt > 1))
            except StorageError:
                raise
            except Exception as e:  # the SDK raises far more kinds than it names; s3errors sorts them
                if s3errors.is_expired(e) and client is not None and not renewed:
                    renewed = True
                    self._renew(client)
                    continue
                inside = getattr(e, "kwargs", {}).get("error")
                if isinstance(inside, StorageError):  # raised while reading the file that was being sent
                    raise inside from None
                error = s3errors.meaning(e, doing=doing, where=self._where)
                if not isinstance(error, StorageUnavailable) or attempt == ATTEMPTS:
                    raise error from None  # the cause may quote a signed request
            self._clock.sleep(_FIRST_WAIT_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.0))  # noqa: S311 - spread only
        raise StorageUnavailable(f"cannot {doing} in {self._where}: gave up after {ATTEMPTS} tries", hint="try again")

    def presign(self, method: str, parameters: Mapping[str, Any], *, expires_s: int, doing: str) -> str:
        """An address that does one thing for whoever has it, until it expires. Nothing is sent."""
        try:
            # Unless told so, the SDK still signs addresses in the way of 2006, which leaves out If-None-Match.
            client = self._connect(signature_version="s3v4", request_checksum_calculation="when_required")
            return client.generate_presigned_url(
                method, Params=dict(parameters), ExpiresIn=min(expires_s, _SIGNED_MAX_S)
            )
        except StorageError:
            raise
        except Exception as e:
            raise s3errors.meaning(e, doing=doing, where=self._where) from None

    def reach(self) -> dict[str, str]:
        """The options by which another computer comes to the same bucket. Nothing is sent."""
        try:
            meta = self._client().meta
        except StorageError:
            raise
        except Exception as e:
            raise s3errors.meaning(e, doing="find the way to it", where=self._where) from None
        told = {} if is_amazon(meta.endpoint_url) else {"endpoint_url": meta.endpoint_url}
        return {**told, "region": meta.region_name}

    def _client(self) -> S3Client:
        with self._lock:
            if self._current is None:
                self._current = self._connect()
            return self._current

    def _renew(self, stale: S3Client) -> None:
        """Read the credentials again from wherever they come from; several threads may ask for it at once."""
        with self._lock:
            if self._current is stale:
                self._current = None

    def _connect(self, **more: Any) -> S3Client:
        import boto3

        sdk_log = logging.getLogger("botocore")
        if sdk_log.level == logging.NOTSET:
            sdk_log.setLevel(logging.WARNING)  # at DEBUG it writes signed requests and session tokens
        wanted = self._endpoint()
        session = self._session(boto3.session.Session)
        client = self._make(session, wanted, is_custom=bool(wanted.url), **more)
        if not wanted.url and not is_amazon(client.meta.endpoint_url):
            # The endpoint came from the user's AWS config file, which only the SDK reads.
            client = self._make(session, wanted, is_custom=True, **more)
        return client

    def _session(self, kind: type[Session]) -> Session:
        """With the keys that were handed over, or those of `credentials_file`, read afresh for each request."""
        path, grant = self._options.get("credentials_file", ""), self._grant
        if grant:
            return kind(grant.access_key_id, grant.secret_access_key, grant.session_token or None)
        if not path:
            return kind(profile_name=self._options.get("profile") or None)
        import botocore.session

        from orchestrator.storage.s3keys import FileCredentials

        core = botocore.session.get_session()
        # There is no public way to hand over a source that is asked for each request.
        core._credentials = FileCredentials(Path(path))  # type: ignore[attr-defined] # noqa: SLF001
        return kind(botocore_session=core)

    def _make(self, session: Session, wanted: Endpoint, *, is_custom: bool, **more: Any) -> S3Client:
        from botocore.config import Config

        s3: Any = {"addressing_style": self._addressing(is_custom=is_custom)}
        config = Config(
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=self._read_timeout_s,
            max_pool_connections=_CONNECTIONS,
            retries={"total_max_attempts": 1, "mode": "standard"},  # retries are counted in `call`
            s3=s3,
            **more,
        )
        if is_custom:
            # Since 1.36 the SDK adds checksum headers and trailers that many stores reject.
            config = config.merge(
                Config(request_checksum_calculation="when_required", response_checksum_validation="when_required")
            )
        return session.client(
            "s3",
            endpoint_url=wanted.url or None,
            region_name=wanted.region or session.region_name or ("us-east-1" if is_custom else None),
            config=config,
        )

    def _endpoint(self) -> Endpoint:
        given = (
            self._options.get("endpoint_url")
            or os.environ.get("AWS_ENDPOINT_URL_S3")
            or os.environ.get("AWS_ENDPOINT_URL")
            or ""
        )
        region = self._options.get("region", "")
        if not given:
            return Endpoint("", region)
        return endpoint(given, bucket=self._bucket, region=region or os.environ.get("AWS_REGION", ""))

    def _addressing(self, *, is_custom: bool) -> str:
        style = self._options.get("addressing_style", "")
        if style not in ("", "auto", "path", "virtual"):
            raise StorageError(f"unknown addressing_style: {style}", hint="write auto, path or virtual")
        if style in ("path", "virtual"):
            return style
        # A certificate covers one label, so a dotted bucket cannot be a host; nor do most custom hosts know it as one.
        return "path" if is_custom or "." in self._bucket else "auto"


def is_yes(option: str) -> bool:
    """Whether an option that is either on or off is on. A typing error is neither."""
    said = option.strip().lower()
    if said not in ("", "true", "yes", "1", "false", "no", "0"):
        raise StorageError(f"neither true nor false: {option!r}", hint="write true or false under [storage]")
    return said in ("true", "yes", "1")


def is_amazon(url: str) -> bool:
    """Whether an address is Amazon's own."""
    host = urlsplit(url).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
