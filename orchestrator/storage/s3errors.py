"""What S3's answers mean. The one place that looks at an SDK exception."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.errors import ObjectNotFound, StorageDenied, StorageError, StorageUnavailable, VersionConflict

_CREDENTIALS = (
    "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the profile) and that they belong to this endpoint"
)
_DENIED = {
    "NoSuchBucket": "create the bucket, or correct `storage`",
    "AccessDenied": "the key needs s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject, s3:DeleteObject in it",
    "AllAccessDisabled": "the bucket's owner must enable it again",
    "AccountProblem": "the account's owner must settle this with the provider",
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS + "; a space or line break copied along is the usual cause",
    "Unauthorized": _CREDENTIALS,
    "InvalidToken": "renew the temporary credentials (AWS_SESSION_TOKEN), or unset it for a permanent key",
    "RequestTimeTooSkewed": "set this machine's clock",
    "NotImplemented": "this store lacks what tune needs; run `tune doctor`, or use a store with conditional writes",
}
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
_WRONG_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_CONFLICTS = {"ConditionalRequestConflict", "OperationAborted"}
_PASSING = {"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "Throttling", "ThrottlingException"}
_GONE = {"NoSuchKey", "NotFound", "404"}
_ALIASES = {"403": "AccessDenied", "Forbidden": "AccessDenied", "401": "Unauthorized"}


def code_of(error: Exception) -> str:
    """S3's own code, such as `NoSuchBucket`; '' when there was no answer."""
    return str(_part(error, "Error").get("Code", ""))


def status_of(error: Exception) -> int:
    """The HTTP status; 0 when there was no answer."""
    return int(_part(error, "ResponseMetadata").get("HTTPStatusCode", 0))


def headers_of(error: Exception) -> Mapping[str, str]:
    """The answer's headers, lower-case; empty when there was none."""
    headers = _part(error, "ResponseMetadata").get("HTTPHeaders", {})
    return headers if isinstance(headers, dict) else {}


def is_expired(error: Exception) -> bool:
    """The temporary credentials have run out; newer ones may be where these came from."""
    return code_of(error) in EXPIRED


def is_denied(error: Exception) -> bool:
    """These keys may not do this, or may not know whether there is anything to do it with."""
    return status_of(error) == 403 and code_of(error) in ("AccessDenied", "403", "Forbidden", "")


def meaning(error: Exception, *, doing: str, where: str) -> StorageError:
    """The error a caller can act on. Its text never holds more of a request than S3's own code and message."""
    code = code_of(error)
    if not code:
        return _without_answer(error, doing=doing, where=where)
    code = _ALIASES.get(code, code)
    status = status_of(error)
    message = f"cannot {doing} in {where}: {code}: {_part(error, 'Error').get('Message', '') or 'no message'}"
    if code in _GONE:
        return ObjectNotFound(f"cannot {doing} in {where}: there is no such object")
    if code in EXPIRED:
        return StorageDenied(message, hint="renew the temporary credentials (such as `aws sso login`), then try again")
    if code in _WRONG_REGION or status == 301:
        return _wrong_region(error, message)
    if code in ("PreconditionFailed", "412"):
        return VersionConflict(message)
    if code in _CONFLICTS or code in _PASSING or (status >= 500 and code not in _DENIED) or status == 429:
        return StorageUnavailable(message, hint="the store is busy or failing; try again later")
    if code in _DENIED:
        return StorageDenied(message, hint=_DENIED[code])
    if code.startswith("KMS.") or status in (401, 403):
        return StorageDenied(message, hint=_DENIED["AccessDenied"])
    return StorageError(message, hint="run `tune doctor`")


def _wrong_region(error: Exception, message: str) -> StorageError:
    region = headers_of(error).get("x-amz-bucket-region") or _part(error, "Error").get("Region", "")
    if region:
        return StorageDenied(
            f"{message} (the bucket is in {region})", hint=f'set region = "{region}" under [storage_options]'
        )
    return StorageDenied(message, hint="set `region` and `endpoint_url` under [storage_options] to the bucket's own")


def _without_answer(error: Exception, *, doing: str, where: str) -> StorageError:
    from botocore import exceptions as sdk

    kind = type(error).__name__
    match error:
        case sdk.NoCredentialsError() | sdk.PartialCredentialsError():
            return StorageDenied(
                f"cannot {doing} in {where}: no complete S3 credentials found",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or `profile` under [storage_options]",
            )
        case sdk.ProfileNotFound():
            return StorageDenied(f"cannot {doing} in {where}: {error}", hint="correct `profile` or AWS_PROFILE")
        case (
            sdk.CredentialRetrievalError()
            | sdk.TokenRetrievalError()
            | sdk.SSOError()
            | sdk.LoginError()
            | sdk.NoAuthTokenError()
        ):
            return StorageDenied(
                f"cannot {doing} in {where}: the credentials could not be fetched ({kind})",
                hint="renew them (such as `aws sso login`), then try again",
            )
        case sdk.SSLError():
            return StorageUnavailable(
                f"cannot {doing} in {where}: no secure connection ({kind})",
                hint="check endpoint_url, and whether a proxy answers in its place",
            )
        case (
            sdk.ConnectionError()
            | sdk.HTTPClientError()
            | sdk.IncompleteReadError()
            | sdk.FlexibleChecksumError()
            | OSError()
        ):
            return StorageUnavailable(
                f"cannot {doing} in {where}: no proper answer ({kind})", hint="check the network, or endpoint_url"
            )
        case sdk.ParamValidationError() | sdk.InvalidRegionError() | sdk.NoRegionError():
            return StorageError(f"cannot {doing} in {where}: {error}", hint="check [storage_options]")
        case _:
            # Some of the SDK's texts quote a header, and with it the key: only the kind is passed on.
            return StorageError(f"cannot {doing} in {where}: {kind}", hint="run `tune doctor`")


def _part(error: Exception, name: str) -> Mapping[str, Any]:
    response = getattr(error, "response", None)
    part = response.get(name) if isinstance(response, dict) else None
    return part if isinstance(part, dict) else {}
