"""Credentials that open nothing, and a strict server with one bucket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.storage.s3 import S3Store
from tests.storage.clocks import SteppedClock
from tests.storage.strict_s3 import StrictS3


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictS3]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret-key")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "canary-token-1")
    with StrictS3().running() as running:
        running.buckets["bucket"] = {}
        yield running


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def store(server: StrictS3, clock: SteppedClock) -> S3Store:
    return S3Store("bucket", "root", options={"endpoint_url": server.endpoint}, clock=clock)
