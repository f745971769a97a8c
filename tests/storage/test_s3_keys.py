"""Keys in a file that is renewed from outside, signed addresses, and stores with a single writer."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import requests

from orchestrator.errors import AlreadyExists, ObjectNotFound, StorageDenied, StorageError, VersionConflict
from orchestrator.storage.grants import Grant, mint
from orchestrator.storage.s3 import S3Store
from orchestrator.storage.s3parts import MIB
from orchestrator.storage.uri import Location
from tests.cloud.s3 import StrictS3, strict_bucket
from tests.storage.clocks import SteppedClock

RUN = "runs/x/"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictS3]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret-key")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    with strict_bucket() as running:
        yield running


def fresh(s3: StrictS3) -> Grant:
    return mint(Location("bucket", "root"), {"endpoint_url": s3.url}, run_prefix=RUN, environment={})


def replace_with(path: Path, data: bytes) -> None:
    """As the launcher does it over SSH: beside, then renamed."""
    part = path.with_suffix(".part")
    part.write_bytes(data)
    part.replace(path)


class TestKeysInAFile:
    @pytest.fixture
    def path(self, s3: StrictS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "storage.json"
        replace_with(path, fresh(s3).dump())
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        return path

    @pytest.fixture
    def store(self, s3: StrictS3, path: Path) -> S3Store:
        options = {"endpoint_url": s3.url, "credentials_file": str(path)}
        return S3Store("bucket", "root", options=options, clock=SteppedClock())

    def renew(self, s3: StrictS3, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as m:
            m.setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
            m.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret-key")
            replace_with(path, fresh(s3).dump())

    def test_the_next_request_is_signed_with_what_the_file_holds_then(
        self, s3: StrictS3, store: S3Store, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.put(f"{RUN}x", b"1")
        self.renew(s3, path, monkeypatch)
        store.put(f"{RUN}x", b"2")
        first, second = [request.token for request in s3.seen("PutObject")]
        assert second == json.loads(path.read_text())["session_token"] != first

    def test_an_upload_in_parts_finishes_with_the_renewed_keys(
        self, s3: StrictS3, store: S3Store, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "big").write_bytes(secrets.token_bytes(70 * MIB))
        moved: list[int] = []

        def after_the_first_part(count: int) -> None:
            moved.append(count)
            if len(moved) == 1:
                self.renew(s3, path, monkeypatch)
                s3.expire_tokens(spare=json.loads(path.read_text())["access_key_id"])

        store.upload(f"{RUN}big", tmp_path / "big", progress=after_the_first_part)
        assert s3.buckets["bucket"][f"root/{RUN}big"].data == (tmp_path / "big").read_bytes()
        assert len({request.token for request in s3.requests if request.token}) == 2
        assert s3.uploads == {}

    def test_without_newer_keys_it_says_that_they_have_expired_and_goes_on_when_there_are_some(
        self, s3: StrictS3, store: S3Store, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        s3.expire_tokens()
        with pytest.raises(StorageDenied, match="ExpiredToken"):
            store.put(f"{RUN}x", b"1")
        self.renew(s3, path, monkeypatch)
        store.put(f"{RUN}x", b"1")

    @pytest.mark.parametrize(
        "torn", [b"", b"{", b"null", b'{"access_key_id": "AKID"}', b'{"access_key_id": "", "secret_access_key": ""}']
    )
    def test_a_torn_or_missing_file_leaves_the_last_good_keys(
        self, s3: StrictS3, store: S3Store, path: Path, torn: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.put(f"{RUN}x", b"1")
        path.write_bytes(torn)
        store.put(f"{RUN}x", b"2")
        path.unlink()
        store.put(f"{RUN}x", b"3")
        self.renew(s3, path, monkeypatch)
        store.put(f"{RUN}x", b"4")
        assert len({request.token for request in s3.requests if request.token}) == 2

    def test_no_file_yet_is_no_keys_yet_and_never_somebody_elses(
        self, s3: StrictS3, store: S3Store, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-machine-itself")
        path.unlink()
        with pytest.raises(StorageDenied, match="no complete S3 credentials"):
            store.put(f"{RUN}x", b"1")
        assert s3.seen("PutObject") == []
        self.renew(s3, path, monkeypatch)
        store.put(f"{RUN}x", b"1")

    def test_keys_that_do_not_expire_need_no_token(self, s3: StrictS3, store: S3Store, path: Path) -> None:
        s3.add_key("AKIDWORKER", "canary-worker-secret")
        replace_with(path, Grant("AKIDWORKER", "canary-worker-secret").dump())
        store.put(f"{RUN}x", b"1")
        assert s3.requests[-1].token == ""

    def test_they_never_reach_the_environment(self, store: S3Store) -> None:
        store.put(f"{RUN}x", b"1")
        assert not [name for name in os.environ if name.startswith(("AWS_ACCESS", "AWS_SECRET", "AWS_SESSION"))]


class TestSignedAddresses:
    @pytest.fixture
    def store(self, s3: StrictS3) -> S3Store:
        s3.add_key("AKIDOWN", "canary-own-secret")
        grant = Grant("AKIDOWN", "canary-own-secret")
        return S3Store("bucket", "a b", options={"endpoint_url": s3.url}, grant=grant)

    def test_anybody_can_put_one_object_with_it(self, s3: StrictS3, store: S3Store) -> None:
        url = store.presign_put("log ü.txt", expires_s=600)
        assert requests.put(url, data=b"the end of it", timeout=5).status_code == 200
        assert store.get("log ü.txt").data == b"the end of it"
        assert requests.put(url.replace("log", "lag"), data=b"", timeout=5).status_code == 403
        assert requests.delete(url, timeout=5).status_code == 403

    def test_create_only_writes_once_and_cannot_be_left_out(self, store: S3Store) -> None:
        url = store.presign_put("exit.json", expires_s=600, create_only=True)
        only = {"If-None-Match": "*"}
        assert requests.put(url, data=b"1", timeout=5).status_code == 403
        assert requests.put(url, data=b"1", headers=only, timeout=5).status_code == 200
        assert requests.put(url, data=b"2", headers=only, timeout=5).status_code == 412
        assert store.get("exit.json").data == b"1"

    def test_it_ends_after_its_time(self, s3: StrictS3, store: S3Store) -> None:
        url = store.presign_put("x", expires_s=600)
        s3.skew = timedelta(seconds=601)
        assert requests.put(url, data=b"1", timeout=5).status_code == 403
        assert s3.buckets["bucket"] == {}

    def test_a_week_is_the_longest_that_is_signed(self, store: S3Store) -> None:
        assert "X-Amz-Expires=604800" in store.presign_put("x", expires_s=10**9)

    def test_temporary_keys_sign_too(self, s3: StrictS3) -> None:
        store = S3Store("bucket", "root", options={"endpoint_url": s3.url}, grant=fresh(s3))
        url = store.presign_put(f"{RUN}x", expires_s=60, create_only=True)
        assert requests.put(url, data=b"1", headers={"If-None-Match": "*"}, timeout=5).status_code == 200

    def test_nothing_is_sent_and_no_checksum_of_nothing_is_signed(self, store: S3Store, s3: StrictS3) -> None:
        url = store.presign_put("x", expires_s=60, create_only=True)
        assert s3.requests == []
        assert re.findall(r"SignedHeaders=([^&]*)", url) == ["host%3Bif-none-match"]
        assert "checksum" not in url.lower()

    def test_on_amazon_itself_it_is_signed_in_the_same_way(self) -> None:
        store = S3Store("bucket", options={"region": "us-east-1"}, grant=Grant("AKID", "canary-secret"))
        url = store.presign_put("x", expires_s=60, create_only=True)
        assert "X-Amz-Signature=" in url
        assert "if-none-match" in url
        assert "checksum" not in url.lower()

    def test_without_credentials_that_is_said(
        self, s3: StrictS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = {"endpoint_url": s3.url, "credentials_file": str(tmp_path / "none")}
        with pytest.raises(StorageDenied, match="no complete S3 credentials"):
            S3Store("bucket", options=options).presign_put("x", expires_s=60)


class TestASingleWriter:
    @pytest.fixture
    def store(self, s3: StrictS3) -> S3Store:
        s3.refuses_conditions = True
        return S3Store("bucket", options={"endpoint_url": s3.url, "single_writer": "true"})

    def test_it_looks_then_writes(self, store: S3Store) -> None:
        first = store.put_new("k", b"1")
        with pytest.raises(AlreadyExists):
            store.put_new("k", b"2")
        second = store.put_if("k", b"3", version=first.version)
        with pytest.raises(VersionConflict):
            store.put_if("k", b"4", version=first.version)
        assert store.get("k").data == b"3"
        store.delete("k")
        with pytest.raises(VersionConflict):
            store.put_if("k", b"5", version=second.version)
        with pytest.raises(ObjectNotFound):
            store.get("k")

    def test_a_signed_address_does_not_ask_for_the_header(self, store: S3Store, s3: StrictS3) -> None:
        url = store.presign_put("k", expires_s=60, create_only=True)
        assert requests.put(url, data=b"1", timeout=5).status_code == 200

    @pytest.mark.parametrize("told", ["false", "", "no", "0"])
    def test_no_means_no(self, s3: StrictS3, told: str) -> None:
        S3Store("bucket", options={"endpoint_url": s3.url, "single_writer": told}).put_new("k", b"1")
        assert "if-none-match" in s3.requests[-1].headers

    def test_a_typing_error_is_neither(self, s3: StrictS3) -> None:
        with pytest.raises(StorageError, match="neither true nor false"):
            S3Store("bucket", options={"endpoint_url": s3.url, "single_writer": "ture"})


def test_the_time_comes_from_the_bucket_although_the_keys_open_one_run(s3: StrictS3) -> None:
    s3.skew = timedelta(minutes=5)
    store = S3Store("bucket", "root", options={"endpoint_url": s3.url}, grant=fresh(s3))
    assert abs(store.now() - datetime.now(UTC) - s3.skew) < timedelta(seconds=30)
