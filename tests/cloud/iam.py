"""What a policy allows, for the few actions and conditions of a bucket's keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ACTIONS = {
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "DeleteObject": "s3:DeleteObject",
    "ListObjectsV2": "s3:ListBucket",
    "HeadBucket": "s3:ListBucket",
    "CreateBucket": "s3:CreateBucket",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
}
"""Which right each call takes (the table "Actions, resources, and condition keys for Amazon S3")."""

_SPECIAL = re.compile(r"\$\{([*?$])\}|(\*)|(\?)")


def allows(policy: Mapping[str, Any] | None, action: str, resource: str, context: Mapping[str, str]) -> bool:
    """None allows everything; a policy only what one of its statements names."""
    if policy is None:
        return True
    return any(_grants(statement, action, resource, context) for statement in policy["Statement"])


def _grants(statement: Mapping[str, Any], action: str, resource: str, context: Mapping[str, str]) -> bool:
    assert statement["Effect"] == "Allow", "this fake knows no Deny"
    conditions = statement.get("Condition", {})
    assert conditions.keys() <= {"StringLike"}, f"this fake does not know {conditions.keys()}"
    return (
        any(_like(pattern, action) for pattern in _listed(statement["Action"]))
        and any(_like(pattern, resource) for pattern in _listed(statement["Resource"]))
        # A condition on what the request does not carry is not met: a GetObject has no prefix.
        and all(
            name in context and any(_like(p, context[name]) for p in _listed(patterns))
            for name, patterns in conditions.get("StringLike", {}).items()
        )
    )


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _like(pattern: str, text: str) -> bool:
    """`*` and `?` stand for anything; `${*}` is a star."""
    regex, at = "", 0
    for found in _SPECIAL.finditer(pattern):
        regex += re.escape(pattern[at : found.start()])
        regex += re.escape(found[1]) if found[1] else ".*" if found[2] else "."
        at = found.end()
    return re.fullmatch(regex + re.escape(pattern[at:]), text, re.DOTALL) is not None
