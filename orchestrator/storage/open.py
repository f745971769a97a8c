"""From a URL to a store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator.storage.base import Store
from orchestrator.storage.uri import parse


def open_store(url: str, *, options: Mapping[str, str] | None = None) -> Store:
    """The store at `file://...`, an absolute path, or `s3://bucket/prefix`. Touches neither disk nor network yet.

    Options, all optional and only for s3: `endpoint_url`, `region`, `addressing_style` (auto, path or virtual),
    `profile`. Keys and tokens are never options: they come from the environment or the usual AWS files.
    """
    location = parse(url)
    if location.bucket:
        from orchestrator.storage.s3 import S3Store

        return S3Store(location.bucket, location.prefix, options=dict(options or {}))
    from orchestrator.storage.local import LocalStore

    return LocalStore(Path(location.path))
