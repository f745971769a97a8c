"""Keys for an instance: which way they are made, what they open, and what is said when there are none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import CredentialsMissing, ObjectNotFound, StorageDenied, StorageError, StorageUnavailable
from orchestrator.storage import grants
from orchestrator.storage.grants import Grant, mint
from orchestrator.storage.s3 import S3Store
from orchestrator.storage.uri import Location
from tests.cloud import iam
from tests.cloud.s3 import StrictS3, strict_bucket
from tests.storage.strict_s3 import Fault

HERE = Location("bucket", "root")
RUN = "runs/20260301-120000-abcd/"
ROLE = "arn:aws:iam::123456789012:role/tune"
WORKER = {grants.WORKER_KEY: "AKIDWORKER", grants.WORKER_SECRET: "canary-worker-secret"}


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictS3]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret-key")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    with strict_bucket() as running:
        yield running


def options(s3: StrictS3, **more: str) -> dict[str, str]:
    return {"endpoint_url": s3.url, **more}


def minted(s3: StrictS3, environment: dict[str, str] | None = None, **more: str) -> Grant:
    return mint(HERE, options(s3, **more), run_prefix=RUN, environment=environment or {})


def opened(s3: StrictS3, grant: Grant, root: str = "root") -> S3Store:
    return S3Store("bucket", root, options=options(s3), grant=grant)


def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


class TestTheWays:
    def test_a_user_gets_keys_by_federation_for_twelve_hours(self, s3: StrictS3) -> None:
        grant = minted(s3)
        assert grant.how == "temporary keys by GetFederationToken"
        assert grant.risk == ""
        assert grant.expires_at is not None
        assert abs(grant.expires_at - datetime.now(UTC) - timedelta(hours=12)) < timedelta(minutes=1)

    def test_a_role_that_is_named_is_assumed(self, s3: StrictS3) -> None:
        assert minted(s3, role_arn=ROLE, grant_hours="2").how == "temporary keys by AssumeRole"
        assert [(i["RoleArn"], i["DurationSeconds"]) for i in s3.issued] == [(ROLE, "7200")]

    def test_a_role_that_allows_less_is_asked_for_an_hour(self, s3: StrictS3) -> None:
        s3.role_longest_s = 3600
        minted(s3, role_arn=ROLE)
        assert [i["DurationSeconds"] for i in s3.issued] == ["3600"]

    def test_federation_is_never_asked_for_more_than_its_36_hours(self, s3: StrictS3) -> None:
        minted(s3, grant_hours="100")
        assert [i["DurationSeconds"] for i in s3.issued] == ["129600"]

    def test_a_store_that_only_narrows_our_own_rights_is_asked_so(self, s3: StrictS3) -> None:
        # MinIO answers AssumeRole at the store's own address, and leaves the role out of account (its STS page).
        s3.sts_calls = frozenset({"AssumeRole"})
        grant = minted(s3)
        assert grant.how == "temporary keys by AssumeRole"
        opened(s3, grant).put(f"{RUN}x", b"")

    def test_a_worker_key_goes_before_temporary_ones_and_its_risk_is_said(self, s3: StrictS3) -> None:
        grant = minted(s3, WORKER)
        assert (grant.access_key_id, grant.session_token, grant.expires_at) == ("AKIDWORKER", "", None)
        assert "do not expire" in grant.risk
        assert s3.issued == []

    def test_our_own_keys_go_only_with_consent(self, s3: StrictS3) -> None:
        s3.sts_calls = frozenset()
        grant = minted(s3, send_own_keys="true")
        assert (grant.access_key_id, grant.secret_access_key) == ("AKIDTEST", "canary-secret-key")
        assert "this computer's own keys" in grant.risk
        with pytest.raises(CredentialsMissing):
            minted(s3, send_own_keys="false")

    def test_another_address_for_keys_is_taken_from_the_options_or_the_environment(self, s3: StrictS3) -> None:
        with strict_bucket() as other:
            minted(s3, sts_endpoint_url=other.url)
            minted(s3, {"AWS_ENDPOINT_URL_STS": other.url})
            assert len(other.issued) == 2
        assert s3.issued == []


class TestWhatTheyOpen:
    def test_an_agent_limited_to_its_run_can_do_all_it_does(self, s3: StrictS3, tmp_path: Path) -> None:
        S3Store("bucket", "root", options=options(s3)).put(f"{RUN}run.json", b"{}")
        store = opened(s3, minted(s3))
        (tmp_path / "big").write_bytes(bytes(20 << 20))
        store.put(f"{RUN}a1/heartbeat.json", b"1")
        store.put_new(f"{RUN}a1/exit.json", b"2")
        store.upload(f"{RUN}a1/blobs/big", tmp_path / "big")
        store.download(f"{RUN}a1/blobs/big", tmp_path / "copy")
        store.delete(f"{RUN}a1/heartbeat.json")
        assert store.get(f"{RUN}run.json").data == b"{}"
        assert [info.key for info in store.scan(f"{RUN}a1/")] == [f"{RUN}a1/blobs/big", f"{RUN}a1/exit.json"]
        assert list(store.children(f"{RUN}ckpt/")) == []
        assert abs(store.now() - datetime.now(UTC)) < timedelta(minutes=1)
        assert (tmp_path / "copy").stat().st_size == 20 << 20
        assert store.warnings == []

    def test_what_is_absent_is_known_to_be_absent_although_the_bucket_answers_403(
        self, s3: StrictS3, tmp_path: Path
    ) -> None:
        store = opened(s3, minted(s3))
        store.put(f"{RUN}nothing.json", b"a key that goes on where the other ends")
        looks = (store.get, store.head, lambda key: store.download(key, tmp_path / "x"))
        for look in looks:
            with pytest.raises(ObjectNotFound):
                look(f"{RUN}nothing")
            with pytest.raises(StorageDenied, match="AccessDenied"):
                look("runs/another/run.json")

    @pytest.mark.parametrize("key", ["runs/another/x", "namespace.json", "x", "runs/20260301-120000-abcde/x"])
    def test_nothing_outside_the_run_can_be_touched(self, s3: StrictS3, key: str) -> None:
        owner = S3Store("bucket", "root", options=options(s3))
        owner.put(key, b"theirs")
        store = opened(s3, minted(s3))
        for touch in (store.get, store.delete, lambda k: store.put(k, b"ours"), lambda k: list(store.scan(k))):
            with pytest.raises(StorageDenied):
                touch(key)
        with pytest.raises(StorageDenied):
            list(store.scan(""))
        assert owner.get(key).data == b"theirs"

    def test_a_prefix_is_no_pattern(self, s3: StrictS3) -> None:
        odd = Location("bucket", "a*/ü${aws:username}?")
        store = opened(s3, mint(odd, options(s3), run_prefix=RUN, environment={}), odd.prefix)
        store.put(f"{RUN}x", b"1")
        assert store.get(f"{RUN}x").data == b"1"
        rules = grants.policy(odd, RUN)
        assert not iam.allows(rules, "s3:PutObject", f"arn:aws:s3:::bucket/abc/ü${{aws:username}}?/{RUN}x", {})

    def test_other_partitions_have_names_of_their_own(self) -> None:
        for region, name in (("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov"), ("eu-west-1", "aws")):
            assert f"arn:{name}:s3:::bucket" in json.dumps(grants.policy(HERE, RUN, region=region))

    def test_they_are_worth_nothing_once_they_have_expired(self, s3: StrictS3) -> None:
        store = opened(s3, minted(s3))
        store.put(f"{RUN}x", b"1")
        s3.expire_tokens()
        with pytest.raises(StorageDenied, match="ExpiredToken"):
            store.put(f"{RUN}x", b"2")


class TestWithoutKeys:
    def test_the_ways_there_are_and_what_was_tried_are_said(self, s3: StrictS3) -> None:
        s3.sts_calls = frozenset()
        with pytest.raises(CredentialsMissing, match="GetFederationToken: HTTP 405") as caught:
            minted(s3)
        for way in ("sts:GetFederationToken", "role_arn", grants.WORKER_KEY, "send_own_keys"):
            assert way in caught.value.hint

    @pytest.mark.parametrize("page", [b"<html>It works!</html>", b"", b"{}", b"<a/>"])
    @pytest.mark.parametrize("status", [200, 404, 500])
    def test_a_store_that_answers_anything_else_gives_out_no_keys(self, s3: StrictS3, page: bytes, status: int) -> None:
        s3.sts_page = (status, page)
        with pytest.raises(CredentialsMissing):
            minted(s3)
        assert minted(s3, send_own_keys="yes").access_key_id == "AKIDTEST"

    def test_no_credentials_at_all_are_no_crash(
        self, s3: StrictS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        no_keys(monkeypatch, tmp_path)
        with pytest.raises(CredentialsMissing, match="there are no AWS credentials"):
            minted(s3, send_own_keys="true")
        with pytest.raises(CredentialsMissing, match="ProfileNotFound"):
            minted(s3, profile="mine")
        assert minted(s3, WORKER).access_key_id == "AKIDWORKER"

    @pytest.mark.parametrize("half", sorted(WORKER))
    def test_half_a_worker_key_is_told(self, s3: StrictS3, half: str) -> None:
        s3.sts_calls = frozenset()
        (other,) = WORKER.keys() - {half}
        with pytest.raises(CredentialsMissing, match=f"{other} is not set"):
            minted(s3, {half: WORKER[half], other: "  "})

    def test_a_service_that_is_busy_is_no_reason_for_lesser_keys(self, s3: StrictS3) -> None:
        for number in range(1, 9):
            s3.on("Root", number, Fault(code="Throttling", status=503))
        with pytest.raises(StorageUnavailable, match="HTTP 503"):
            minted(s3, sts_endpoint_url=s3.url, send_own_keys="true")
        with pytest.raises(StorageUnavailable, match="EndpointConnectionError"):
            minted(s3, sts_endpoint_url="http://127.0.0.1:9", role_arn=ROLE, send_own_keys="true")

    @pytest.mark.parametrize("hours", ["none", "0.1", "-1", "nan", "inf"])
    def test_hours_that_are_none_are_refused(self, s3: StrictS3, hours: str) -> None:
        with pytest.raises(StorageError, match="grant_hours"):
            minted(s3, grant_hours=hours)

    def test_consent_is_not_guessed(self, s3: StrictS3) -> None:
        s3.sts_calls = frozenset()
        with pytest.raises(StorageError, match="neither true nor false"):
            minted(s3, send_own_keys="ture")


def test_a_grant_never_shows_its_keys(s3: StrictS3) -> None:
    grant = minted(s3)
    shown = f"{grant!r} {grant} {[grant]}"
    for secret in (grant.access_key_id, grant.secret_access_key, grant.session_token):
        assert secret not in shown


def test_what_goes_into_the_file_can_be_read_there(s3: StrictS3, tmp_path: Path) -> None:
    path = tmp_path / "storage.json"
    path.write_bytes(minted(s3).dump())
    store = S3Store("bucket", "root", options=options(s3, credentials_file=str(path)))
    store.put(f"{RUN}x", b"1")
    told: dict[str, Any] = json.loads(path.read_text())
    assert s3.requests[-1].token == told["session_token"]
    assert datetime.fromisoformat(told["expires_at"]).tzinfo is not None
