"""Every store keeps the promises of the contract."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from orchestrator.clock import SystemClock
from orchestrator.storage.base import Store
from orchestrator.storage.local import LocalStore
from orchestrator.storage.memory import MemoryStore
from orchestrator.storage.open import open_store
from orchestrator.storage.s3 import S3Store
from tests.contract.storage_contract import StorageContract
from tests.storage.moto_s3 import running_moto
from tests.storage.strict_s3 import StrictS3


def _own_bucket(endpoint: str, region: str = "us-east-1") -> str:
    name = f"bucket-{secrets.token_hex(6)}"
    client = boto3.client("s3", endpoint_url=endpoint, region_name=region)
    client.create_bucket(Bucket=name)
    return name


@pytest.fixture
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    with running_moto() as endpoint:
        yield endpoint


class TestMemory(StorageContract):
    """The simulation's store."""

    open_again = staticmethod(lambda store: store)

    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore(SystemClock())


class TestLocal(StorageContract):
    """`file://`, in a folder whose name needs quoting."""

    open_again = staticmethod(lambda store: open_store(store.url))
    in_a_child = staticmethod(lambda _store: {})

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "a store #1 ü")


class S3Contract(StorageContract):
    """What both kinds of S3 server need."""

    in_a_child = staticmethod(lambda store: store.options)

    @staticmethod
    def open_again(store: Store) -> Store:
        assert isinstance(store, S3Store)
        return open_store(store.url, options=store.options)

    def test_the_conditional_headers_are_proved_to_work(self, store: S3Store) -> None:
        store.check_conditional()
        assert list(store.scan("")) == []
        assert store.warnings == []


@pytest.mark.usefixtures("_keys")
class TestS3OnMoto(S3Contract):
    """`s3://` against a lenient server, below a prefix that needs quoting."""

    @pytest.fixture
    def store(self, moto_endpoint: str, _keys: None) -> Store:
        bucket = _own_bucket(moto_endpoint)
        return open_store(f"s3://{bucket}/a b/ü+%/x", options={"endpoint_url": moto_endpoint})


@pytest.mark.usefixtures("_keys")
class TestS3OnAStrictServer(S3Contract):
    """`s3://` against a server that refuses every newer header, at the bucket's root."""

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with StrictS3().running() as server:
            server.buckets["my.dotted.bucket"] = {}
            yield open_store("s3://my.dotted.bucket", options={"endpoint_url": server.endpoint})
