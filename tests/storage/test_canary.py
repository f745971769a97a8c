"""What is found out about a store before anything is rented, and that nothing is left in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator import keys
from orchestrator.clock import SystemClock
from orchestrator.errors import CredentialsMissing, StorageDenied, StorageUnavailable
from orchestrator.storage import canary, grants
from orchestrator.storage.base import ObjectInfo
from orchestrator.storage.canary import MISSING, OK, WRONG, Right
from orchestrator.storage.local import LocalStore
from orchestrator.storage.memory import MemoryStore
from orchestrator.storage.runs import RunStore
from orchestrator.storage.s3 import S3Store
from orchestrator.types import Namespace, Phase, Run, RunId
from tests.cloud.s3 import StrictS3, strict_bucket
from tests.storage.clocks import SteppedClock
from tests.storage.strict_s3 import Fault

URL = "s3://bucket/root"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictS3]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret-key")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    with strict_bucket() as running:
        yield running


def store(s3: StrictS3, **options: str) -> S3Store:
    return S3Store("bucket", "root", options={"endpoint_url": s3.url, **options}, clock=SteppedClock())


def by_name(rights: list[Right] | tuple[Right, ...]) -> dict[str, Right]:
    return {right.what: right for right in rights}


def refused(rights: list[Right]) -> dict[str, str]:
    return {right.what: right.status for right in rights if right.status != OK}


def test_a_store_that_keeps_every_promise_is_told_so_and_left_empty(s3: StrictS3) -> None:
    rights = canary.check(store(s3))
    assert [right.what for right in rights] == [
        "write", "read", "list", "refuse stale writes", "large files", "abort uploads", "list unfinished uploads", "delete",
    ]  # fmt: skip
    assert refused(rights) == {}
    assert s3.buckets["bucket"] == {}
    assert s3.uploads == {}


def test_a_folder_and_a_memory_are_stores_too(tmp_path: Path) -> None:
    folder = LocalStore(tmp_path / "runs")
    assert refused(canary.check(folder)) == {}
    assert refused(canary.check(MemoryStore(SystemClock()))) == {}
    assert list(folder.children("")) == []


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("NoSuchBucket", 404),
        ("AccessDenied", 403),
        ("InvalidAccessKeyId", 403),
        ("SignatureDoesNotMatch", 403),
        ("KMS.NotFoundException", 400),
        ("KMS.DisabledException", 400),
    ],
)
def test_a_write_that_is_refused_keeps_the_code_of_s3(s3: StrictS3, code: str, status: int) -> None:
    s3.on("PutObject", 1, Fault(code=code, status=status))
    (right,) = canary.check(store(s3))
    assert (right.what, right.status, right.stands_in_the_way, right.kind) == ("write", MISSING, True, StorageDenied)
    assert code in right.text
    assert s3.buckets["bucket"] == {}


def test_a_bucket_that_is_not_there(s3: StrictS3) -> None:
    del s3.buckets["bucket"]
    (right,) = canary.check(store(s3))
    assert "NoSuchBucket" in right.text
    assert "create the bucket" in right.hint


@pytest.mark.parametrize(
    ("action", "what"),
    [
        ("GetObject", "read"),
        ("ListObjectsV2", "list"),
        ("UploadPart", "large files"),
        ("CompleteMultipartUpload", "large files"),
    ],
)
def test_what_is_needed_stands_in_the_way_when_it_is_missing(s3: StrictS3, action: str, what: str) -> None:
    s3.deny(action)
    right = by_name(canary.check(store(s3)))[what]
    assert (right.status, right.stands_in_the_way) == (MISSING, True)
    assert "AccessDenied" in right.text
    assert s3.buckets["bucket"] == {}
    assert s3.uploads == {}


@pytest.mark.parametrize(
    ("action", "what"),
    [
        ("AbortMultipartUpload", "abort uploads"),
        ("ListMultipartUploads", "list unfinished uploads"),
        ("DeleteObject", "delete"),
    ],
)
def test_what_only_tidies_up_may_be_missing_and_says_what_that_costs(s3: StrictS3, action: str, what: str) -> None:
    s3.deny(action)
    rights = canary.check(store(s3))
    assert refused(rights) == {what: MISSING}
    assert not by_name(rights)[what].stands_in_the_way
    assert "cost storage" in by_name(rights)[what].hint


class TestStaleWrites:
    def test_a_store_that_answers_200_and_overwrites_is_found_out(self, s3: StrictS3) -> None:
        s3.ignores_conditions = True
        right = by_name(canary.check(store(s3)))["refuse stale writes"]
        assert (right.status, right.stands_in_the_way) == (WRONG, True)
        assert "ignores conditional writes" in right.text
        assert "single_writer" in right.hint
        assert s3.buckets["bucket"] == {}

    def test_a_store_that_knows_only_one_of_the_two_headers_is_found_out(self) -> None:
        class Half(MemoryStore):
            def put_if(self, key: str, data: bytes, *, version: str) -> ObjectInfo:
                return self.put(key, data)

        right = by_name(canary.check(Half(SystemClock())))["refuse stale writes"]
        assert (right.status, "If-Match" in right.text) == (WRONG, True)

    def test_a_store_that_refuses_and_writes_all_the_same_is_found_out(self) -> None:
        class Sly(MemoryStore):
            def put_new(self, key: str, data: bytes) -> ObjectInfo:
                try:
                    return super().put_new(key, data)
                finally:
                    self.put(key, data)

        assert "writes all the same" in by_name(canary.check(Sly(SystemClock())))["refuse stale writes"].text

    def test_a_store_that_refuses_the_headers_is_told(self, s3: StrictS3) -> None:
        s3.refuses_conditions = True
        right = by_name(canary.check(store(s3)))["refuse stale writes"]
        assert (right.status, right.stands_in_the_way) == (MISSING, True)
        assert "NotImplemented" in right.text

    @pytest.mark.parametrize("how", ["ignores_conditions", "refuses_conditions"])
    def test_a_single_writer_can_use_either(self, s3: StrictS3, how: str) -> None:
        setattr(s3, how, True)
        assert refused(canary.check(store(s3, single_writer="true"))) == {}
        sent = [set(r.headers) & {"if-match", "if-none-match"} for r in s3.seen("PutObject")]
        assert sent == [set()] * len(sent)


class TestLies:
    def test_a_dropped_body_is_found_out(self, s3: StrictS3) -> None:
        s3.drops_bodies = True
        right = by_name(canary.check(store(s3)))["read"]
        assert (right.status, right.stands_in_the_way) == (WRONG, True)
        assert "0 are read back" in right.text

    def test_a_version_that_depends_on_how_one_asks_is_found_out(self) -> None:
        class Fickle(MemoryStore):
            def head(self, key: str) -> ObjectInfo:
                found: Any = super().head(key)
                return ObjectInfo(found.key, found.size, f'"{found.version}"', found.modified_at)

        assert "several versions" in by_name(canary.check(Fickle(SystemClock())))["read"].text

    def test_a_list_without_what_was_written_is_found_out(self) -> None:
        class Late(MemoryStore):
            def scan(self, prefix: str) -> Iterator[ObjectInfo]:
                return iter(())

        assert "not listed" in by_name(canary.check(Late(SystemClock())))["list"].text

    def test_a_delete_that_does_nothing_is_found_out(self) -> None:
        class Keeping(MemoryStore):
            def delete(self, key: str) -> None:
                pass

        assert by_name(canary.check(Keeping(SystemClock())))["delete"].status == WRONG


def test_a_store_that_does_not_answer_proves_nothing(s3: StrictS3) -> None:
    for number in range(1, 9):
        s3.on("GetObject", number, Fault(code="SlowDown", status=503))
    with pytest.raises(StorageUnavailable):
        canary.check(store(s3))
    assert s3.buckets["bucket"] == {}


def test_what_a_killed_check_left_is_cleared_and_never_taken_for_a_run(s3: StrictS3) -> None:
    opened = store(s3)
    for folder in ("canary-old", "canary-young"):
        opened.put(f"{keys.RUNS}{folder}/object", b"left")
    assert RunStore(opened).recent(9) == []
    s3.buckets["bucket"]["root/runs/canary-old/object"].modified_at -= timedelta(hours=2)
    opened.put(f"{keys.RUNS}20260301-120000-abcd/run.json", b"{}")
    canary.check(opened)
    assert sorted(s3.buckets["bucket"]) == ["root/runs/20260301-120000-abcd/run.json", "root/runs/canary-young/object"]


class TestKeysOfAnInstance:
    def check(self, s3: StrictS3, **options: str) -> canary.KeyCheck:
        environment = {name: options.pop(name) for name in (grants.WORKER_KEY, grants.WORKER_SECRET) if name in options}
        return canary.check_keys(URL, {"endpoint_url": s3.url, **options}, environment=environment)

    def worker(self, s3: StrictS3, policy: dict[str, Any] | None) -> canary.KeyCheck:
        s3.add_key("AKIDWORKER", "canary-worker-secret", policy=policy)
        pair = {grants.WORKER_KEY: "AKIDWORKER", grants.WORKER_SECRET: "canary-worker-secret"}
        return self.check(s3, **pair)

    def test_temporary_ones_do_inside_and_not_outside(self, s3: StrictS3) -> None:
        found = self.check(s3)
        assert found.grant.how == "temporary keys by GetFederationToken"
        assert refused([*found.rights]) == {}
        assert {"an instance's key: tell what is absent", "an instance's key: only what it needs"} <= {
            right.what for right in found.rights
        }
        assert s3.buckets["bucket"] == {}

    def test_a_service_that_forgets_the_limits_is_found_out(self, s3: StrictS3) -> None:
        s3.forgets_policies = True
        found = by_name(self.check(s3).rights)["an instance's key: only what it needs"]
        assert (found.status, found.stands_in_the_way) == (WRONG, False)
        assert "other runs" in found.text
        assert s3.buckets["bucket"] == {}

    def test_a_worker_key_limited_to_the_runs_is_as_it_should_be(self, s3: StrictS3) -> None:
        assert refused([*self.worker(s3, grants.policy(store(s3)._location, keys.RUNS)).rights]) == {}

    def test_a_worker_key_to_everything_is_warned_of(self, s3: StrictS3) -> None:
        found = by_name(self.worker(s3, None).rights)["an instance's key: only what it needs"]
        assert (found.status, found.stands_in_the_way) == (WRONG, False)

    def test_a_worker_key_to_something_else_stands_in_the_way(self, s3: StrictS3) -> None:
        found = self.worker(s3, grants.policy(store(s3)._location, "elsewhere/"))
        (right,) = found.rights
        assert (right.what, right.stands_in_the_way) == ("an instance's key: write", True)
        assert "AccessDenied" in right.text

    def test_a_key_that_cannot_tell_what_is_absent_stands_in_the_way(self, s3: StrictS3) -> None:
        policy = grants.policy(store(s3)._location, keys.RUNS)
        del policy["Statement"][1]  # no right to list
        found = by_name(self.worker(s3, policy).rights)
        assert found["an instance's key: list"].stands_in_the_way
        assert not found["an instance's key: write"].stands_in_the_way

    def test_the_way_to_the_bucket_need_not_stand_in_the_options(
        self, s3: StrictS3, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
        found = canary.check_keys(URL, {}, environment={"AWS_ENDPOINT_URL": s3.url})
        assert refused([*found.rights]) == {}

    def test_without_any_way_to_keys_nothing_is_tried(self, s3: StrictS3) -> None:
        s3.sts_calls = frozenset()
        with pytest.raises(CredentialsMissing):
            self.check(s3)
        assert s3.seen("PutObject") == []


@pytest.mark.parametrize(
    "action", ["AbortMultipartUpload", "ListMultipartUploads", "DeleteObject", "HeadBucket", "CreateBucket"]
)
def test_a_run_comes_to_its_end_without_a_right_that_only_tidies_up(s3: StrictS3, action: str, tmp_path: Path) -> None:
    s3.deny(action)
    opened = store(s3)
    runs = RunStore(opened)
    run = Run(RunId("0123456789"), "n", Namespace("abcdef"), SteppedClock().now(), "r" * 64, "d" * 64, "sim")
    version = runs.create(run)
    (tmp_path / "big").write_bytes(bytes(20 << 20))
    for number in (1, 2):
        opened.upload(keys.blob(run.run_id, number, "0" * 64), tmp_path / "big")
    runs.save(replace(run, phase=Phase.SUCCEEDED), expect=version)
    assert runs.load(run.run_id).run.phase is Phase.SUCCEEDED
    assert len({*opened.warnings, *runs.warnings}) <= 1
