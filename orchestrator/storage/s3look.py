"""Looking at one object, with keys that may not see the whole bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.errors import ObjectNotFound
from orchestrator.storage import s3errors

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def open_object(client: S3Client, bucket: str, full: str, **more: Any) -> Any:
    """`get_object`, except that an absent object is always ObjectNotFound.

    S3 answers 403 instead of 404 where the keys may not list the bucket, and keys that may list one folder of it count
    as such: the question has no prefix that their condition could match. What they may list tells the two apart.
    """
    try:
        return client.get_object(Bucket=bucket, Key=full, **more)
    except Exception as e:
        if s3errors.is_denied(e) and _is_unlisted(client, bucket, full):
            raise ObjectNotFound(f"there is no {full} in {bucket}") from None
        raise


def _is_unlisted(client: S3Client, bucket: str, full: str) -> bool:
    """False also when the listing is denied: then nothing is known."""
    try:
        page = client.list_objects_v2(Bucket=bucket, Prefix=full, MaxKeys=1)
    except Exception:  # the refusal of the object itself tells more
        return False
    return all(row["Key"] != full for row in page.get("Contents", ()))
