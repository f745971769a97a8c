"""What goes over the wire to S3, and what is made of the answers."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier

import pytest

from orchestrator.errors import AlreadyExists, StorageDenied, StorageError, StorageUnavailable, VersionConflict
from orchestrator.storage.s3 import S3Store
from orchestrator.storage.s3client import ATTEMPTS
from orchestrator.storage.s3parts import GIB, MIB, Section, part_plan
from tests.storage.clocks import SteppedClock
from tests.storage.strict_s3 import Fault, Stored, StrictS3, Upload

TIB = 1024 * GIB
BUSY = Fault(code="SlowDown", status=503)


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """Three parts."""
    path = tmp_path / "big.bin"
    path.write_bytes(secrets.token_bytes(40 * MIB))
    return path


@pytest.mark.parametrize(
    "size", [0, 1, 5 * MIB, 16 * MIB, 16 * MIB + 1, 5 * GIB, 5 * GIB + 1, 80 * GIB, 200 * GIB, 5 * TIB - 1, 5 * TIB]
)
def test_every_size_is_sent_within_the_limits_of_s3(size: int) -> None:
    plan = part_plan(size)
    assert 1 <= plan.parts <= 10_000
    assert plan.part_size * (plan.parts - 1) < max(size, 1) <= max(plan.part_size * plan.parts, 1)
    assert plan.parts == 1 or 5 * MIB <= plan.part_size <= 5 * GIB
    assert plan.part_size * plan.concurrency <= GIB
    if plan.parts <= 400:
        ranges = list(plan.ranges())
        assert sum(length for _, _, length in ranges) == size
        assert {length for _, _, length in ranges[:-1]} <= {plan.part_size}


def test_more_than_five_tebibytes_is_refused() -> None:
    with pytest.raises(StorageError, match="5 TiB"):
        part_plan(5 * TIB + 1)


def test_a_custom_endpoint_never_sees_a_checksum_header(store: S3Store, server: StrictS3, big: Path) -> None:
    # The server answers 501 to any of them, so all of this would fail.
    store.put("a", b"1")
    store.put_new("b", b"2")
    store.upload("runs/x/big", big)
    store.delete("a")
    assert store.get("b").data == b"2"
    assert len(server.seen("UploadPart")) == 3


def test_without_a_custom_endpoint_the_integrity_defaults_stay(server: StrictS3) -> None:
    client = S3Store("bucket", options={"region": "eu-west-1"})._connection._client()
    assert client.meta.config.request_checksum_calculation == "when_supported"
    assert client.meta.endpoint_url == "https://s3.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("bucket", "options", "style"),
    [
        ("my.models.prod", {}, "path"),
        ("plain", {}, "auto"),
        ("plain", {"endpoint_url": "localhost:9000"}, "path"),
        ("plain", {"endpoint_url": "https://oss.example.com", "addressing_style": "virtual"}, "virtual"),
    ],
)
def test_a_dotted_bucket_and_a_custom_endpoint_are_addressed_by_path(
    server: StrictS3, bucket: str, options: dict[str, str], style: str
) -> None:
    client = S3Store(bucket, options={"region": "us-east-1", **options})._connection._client()
    assert client.meta.config.s3["addressing_style"] == style


@pytest.mark.parametrize("ending", ["", "/", "/bucket", "/bucket/"])
def test_the_bucket_stands_once_in_the_path_however_the_endpoint_is_spelled(server: StrictS3, ending: str) -> None:
    S3Store("bucket", "p", options={"endpoint_url": server.endpoint + ending}).put("k", b"")
    assert [request.path for request in server.requests] == ["/bucket/p/k"]


def test_an_endpoint_from_the_aws_environment_counts_as_custom(
    server: StrictS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint + "/bucket")
    S3Store("bucket").put("k", b"1")
    assert server.buckets["bucket"]["k"].data == b"1"


def test_the_way_to_the_bucket_is_told_whatever_it_is_known_from(
    server: StrictS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert S3Store("bucket").reach() == {"region": "us-east-1"}
    assert S3Store("bucket", options={"region": "eu-west-1"}).reach() == {"region": "eu-west-1"}
    (tmp_path / "config").write_text(f"[default]\nregion = eu-x\nendpoint_url = {server.endpoint}\n")
    assert S3Store("bucket").reach() == {"region": "eu-x", "endpoint_url": server.endpoint}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://acc.r2.cloudflarestorage.com/bucket/")
    r2 = {"region": "auto", "endpoint_url": "https://acc.r2.cloudflarestorage.com"}
    assert S3Store("bucket").reach() == r2
    assert server.requests == []


def test_unknown_options_are_refused(server: StrictS3) -> None:
    with pytest.raises(StorageError, match="secret_key") as caught:
        S3Store("bucket", options={"secret_key": "x"})
    assert "endpoint_url" in caught.value.hint


def test_a_busy_store_is_asked_again_with_growing_pauses(store: S3Store, server: StrictS3, clock: SteppedClock) -> None:
    server.on("PutObject", 1, BUSY)
    server.on("PutObject", 2, Fault(hang_up=True))
    server.on("PutObject", 3, Fault(code="InternalError", status=500))
    store.put("k", b"1")
    assert server.buckets["bucket"]["root/k"].data == b"1"
    assert len(clock.slept) == 3
    assert 0 < clock.slept[0] < clock.slept[1] < clock.slept[2] < 5


def test_patience_has_an_end(store: S3Store, server: StrictS3, clock: SteppedClock) -> None:
    for number in range(1, ATTEMPTS + 1):
        server.on("GetObject", number, BUSY)
    with pytest.raises(StorageUnavailable, match="SlowDown"):
        store.get("k")
    assert len(server.seen("GetObject")) == ATTEMPTS
    assert len(clock.slept) == ATTEMPTS - 1


def test_a_stalled_answer_is_an_error_that_is_tried_again(server: StrictS3, clock: SteppedClock) -> None:
    store = S3Store("bucket", options={"endpoint_url": server.endpoint}, clock=clock, read_timeout_s=0.2)
    store.put("k", b"1")
    server.on("GetObject", 1, Fault(stall_s=0.6))
    assert store.get("k").data == b"1"
    assert len(server.seen("GetObject")) == 2


@pytest.mark.parametrize("lost", [Fault(hang_up=True, applied=True), Fault("InternalError", 500, applied=True)])
def test_a_conditional_write_whose_answer_was_lost_is_recognised_as_our_own(
    store: S3Store, server: StrictS3, lost: Fault
) -> None:
    server.on("PutObject", 1, lost)
    first = store.put_new("k", b"mine")
    server.on("PutObject", 1, lost)
    second = store.put_if("k", b"mine again", version=first.version)
    assert store.get("k").data == b"mine again"
    assert store.head("k").version == second.version


@pytest.mark.parametrize("theirs", [b"theirs", b"mine"])
def test_a_write_that_someone_else_won_is_not_taken_for_our_own(
    store: S3Store, server: StrictS3, theirs: bytes
) -> None:
    other = S3Store("bucket", "root", options=store.options, clock=_Meanwhile(lambda: None))
    won: list[str] = []
    store._connection._clock = _Meanwhile(lambda: won.append(other.put_new("k", theirs).version))
    server.on("PutObject", 1, BUSY)
    with pytest.raises(AlreadyExists):
        store.put_new("k", b"mine")
    assert store.head("k").version == won[0]


class _Meanwhile(SteppedClock):
    """Somebody acts while we wait."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act = act

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._act()


def test_a_plain_refusal_costs_no_second_look(store: S3Store, server: StrictS3) -> None:
    store.put("k", b"1")
    with pytest.raises(AlreadyExists):
        store.put_new("k", b"2")
    with pytest.raises(VersionConflict):
        store.put_if("k", b"2", version='"other"')
    assert server.seen("GetObject") == []


def test_two_conditional_writes_that_met_are_sorted_out_by_trying_again(store: S3Store, server: StrictS3) -> None:
    server.on("PutObject", 1, Fault(code="ConditionalRequestConflict", status=409))
    store.put_new("k", b"1")
    assert store.get("k").data == b"1"


def test_a_store_that_ignores_conditions_is_found_out(store: S3Store, server: StrictS3) -> None:
    server.ignores_conditions = True
    with pytest.raises(StorageError, match="ignores If-None-Match"):
        store.check_conditional()
    assert server.buckets["bucket"] == {}


def test_a_store_that_refuses_conditions_is_named(store: S3Store, server: StrictS3) -> None:
    server.on("PutObject", 1, Fault(code="NotImplemented", status=501))
    with pytest.raises(StorageDenied, match="NotImplemented") as caught:
        store.check_conditional()
    assert "conditional writes" in caught.value.hint


@pytest.mark.parametrize(
    ("code", "status", "hint"),
    [
        ("NoSuchBucket", 404, "create the bucket"),
        ("AccessDenied", 403, "s3:PutObject"),
        ("InvalidAccessKeyId", 403, "AWS_ACCESS_KEY_ID"),
        ("SignatureDoesNotMatch", 403, "space or line break"),
        ("ExpiredToken", 400, "renew"),
        ("RequestTimeTooSkewed", 403, "clock"),
        ("KMS.DisabledException", 400, "needs"),
    ],
)
def test_a_refusal_keeps_the_code_of_s3_and_says_what_to_do(
    store: S3Store, server: StrictS3, code: str, status: int, hint: str
) -> None:
    for number in (1, 2):
        server.on("PutObject", number, Fault(code=code, status=status))
    with pytest.raises(StorageDenied, match=code.replace(".", r"\.")) as caught:
        store.put("k", b"1")
    assert hint in caught.value.hint
    assert len(server.seen("PutObject")) == (2 if code == "ExpiredToken" else 1)


def test_a_look_that_is_denied_says_why_although_a_head_has_no_body(store: S3Store, server: StrictS3) -> None:
    server.keys = {"ANOTHER"}
    with pytest.raises(StorageDenied, match="InvalidAccessKeyId"):
        store.head("k")


def test_a_bucket_in_another_region_is_found_there(server: StrictS3) -> None:
    server.region = "eu-west-1"
    S3Store("bucket", options={"endpoint_url": server.endpoint, "region": "us-east-1"}).put("k", b"1")
    assert server.buckets["bucket"]["k"].data == b"1"
    assert len(server.seen("PutObject")) == 2


def test_a_bucket_that_cannot_be_followed_is_named_with_its_region(store: S3Store, server: StrictS3) -> None:
    elsewhere = {"x-amz-bucket-region": "eu-west-1"}
    for number in range(1, 9):
        server.on("PutObject", number, Fault(code="PermanentRedirect", status=301, headers=elsewhere))
    with pytest.raises(StorageDenied, match="the bucket is in eu-west-1") as caught:
        store.put("k", b"1")
    assert 'region = "eu-west-1"' in caught.value.hint


def test_missing_credentials_are_named_with_the_variables(server: StrictS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    with pytest.raises(StorageDenied, match="no complete S3 credentials") as caught:
        S3Store("bucket", options={"endpoint_url": server.endpoint}).put("k", b"1")
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint
    assert server.requests == []


def test_an_unreachable_endpoint_is_a_passing_trouble(clock: SteppedClock, server: StrictS3) -> None:
    store = S3Store("bucket", options={"endpoint_url": "http://127.0.0.1:9"}, clock=clock)
    with pytest.raises(StorageUnavailable, match="EndpointConnectionError"):
        store.get("k")


def test_an_upload_outlives_its_credentials_when_newer_ones_can_be_had(
    store: S3Store, server: StrictS3, big: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []

    def after_the_first_part(moved: int) -> None:
        sent.append(moved)
        if len(sent) == 1:
            monkeypatch.setenv("AWS_SESSION_TOKEN", "canary-token-2")
            server.expired_tokens.add("canary-token-1")

    store.upload("runs/x/big", big, progress=after_the_first_part)
    store.put("k", b"and on")
    assert server.buckets["bucket"]["root/runs/x/big"].data == big.read_bytes()
    assert server.requests[-1].token == "canary-token-2"


def test_an_upload_whose_credentials_ran_out_for_good_says_so(store: S3Store, server: StrictS3, big: Path) -> None:
    def expire(_moved: int) -> None:
        server.expired_tokens.add("canary-token-1")

    with pytest.raises(StorageDenied, match="ExpiredToken") as caught:
        store.upload("runs/x/big", big, progress=expire)
    assert "renew" in caught.value.hint
    assert "root/runs/x/big" not in server.buckets["bucket"]


def test_checksums_of_parts_are_repeated_when_they_are_joined(store: S3Store, server: StrictS3, big: Path) -> None:
    server.sums_parts = True
    assert store.upload("runs/x/big", big).size == 40 * MIB


def test_a_part_that_fails_once_is_sent_again_alone(store: S3Store, server: StrictS3, big: Path) -> None:
    server.on("UploadPart", 2, BUSY)
    info = store.upload("runs/x/big", big)
    assert info.version.endswith('-3"')
    assert server.buckets["bucket"]["root/runs/x/big"].data == big.read_bytes()
    assert len(server.seen("UploadPart")) == 4


def test_a_finished_upload_whose_answer_was_lost_is_finished(store: S3Store, server: StrictS3, big: Path) -> None:
    server.on("CompleteMultipartUpload", 1, Fault(hang_up=True, applied=True))
    assert store.upload("runs/x/big", big).size == 40 * MIB


def test_an_upload_that_fails_leaves_no_parts_behind(store: S3Store, server: StrictS3, big: Path) -> None:
    server.on("UploadPart", 2, Fault(code="AccessDenied", status=403))
    with pytest.raises(StorageDenied):
        store.upload("runs/x/big", big)
    assert server.uploads == {}
    assert server.buckets["bucket"] == {}


def test_what_killed_uploads_left_is_cleared_but_nobody_elses(store: S3Store, server: StrictS3, big: Path) -> None:
    now = datetime.now(UTC)
    for number in range(5):
        server.uploads[f"left{number}"] = Upload("root/runs/x/a1/blobs/z", now - timedelta(minutes=9 - number))
    server.uploads["young"] = Upload("root/runs/x/a1/blobs/z", now + timedelta(minutes=1))
    server.uploads["other run"] = Upload("root/runs/y/a1/blobs/z", now - timedelta(days=9))
    server.uploads["other root"] = Upload("elsewhere/runs/x/a1/blobs/z", now - timedelta(days=9))
    store.upload("runs/x/a2/blobs/big", big)
    assert set(server.uploads) == {"young", "other run", "other root"}
    assert store.warnings == []


@pytest.mark.parametrize("right", ["AbortMultipartUpload", "ListMultipartUploads"])
def test_a_right_that_only_tidies_up_may_be_missing(store: S3Store, server: StrictS3, big: Path, right: str) -> None:
    server.denied = {right}
    server.uploads["left"] = Upload("root/runs/x/z", datetime.now(UTC) - timedelta(minutes=9))
    store.upload("runs/x/one", big)
    store.upload("runs/x/two", big)
    assert len(store.warnings) == 1
    assert right in store.warnings[0]


def test_a_broken_download_goes_on_where_it_ended(store: S3Store, server: StrictS3, tmp_path: Path) -> None:
    data = secrets.token_bytes(5 * MIB)
    store.put("k", data)
    server.on("GetObject", 1, Fault(cut_body_at=3 * MIB))
    moved: list[int] = []
    store.download("k", tmp_path / "k", progress=moved.append)
    assert (tmp_path / "k").read_bytes() == data
    assert sum(moved) == len(data)
    assert server.requests[-1].headers["range"] == f"bytes={3 * MIB}-{5 * MIB - 1}"


def test_a_large_object_comes_in_stretches(store: S3Store, server: StrictS3, big: Path, tmp_path: Path) -> None:
    store.upload("k", big)
    moved: list[int] = []
    info = store.download("k", tmp_path / "copy", progress=moved.append)
    assert (tmp_path / "copy").read_bytes() == big.read_bytes()
    assert info.size == sum(moved) == 40 * MIB
    assert info.version == store.head("k").version
    edges = [0, 16 * MIB, 32 * MIB, 40 * MIB]
    asked = {request.headers["range"] for request in server.seen("GetObject") if "range" in request.headers}
    # The last byte of the first stretch is asked for before anybody knows how large the object is.
    assert asked >= {f"bytes={a}-{b - 1}" for a, b in itertools.pairwise(edges)}


@pytest.mark.parametrize("which", [1, 2, 3])
def test_a_broken_stretch_goes_on_where_it_ended(
    store: S3Store, server: StrictS3, big: Path, tmp_path: Path, which: int
) -> None:
    store.upload("k", big)
    server.on("GetObject", which, Fault(cut_body_at=3 * MIB))
    moved: list[int] = []
    store.download("k", tmp_path / "copy", progress=moved.append)
    assert (tmp_path / "copy").read_bytes() == big.read_bytes()
    assert sum(moved) == 40 * MIB


def test_stretches_of_two_versions_are_never_mixed(store: S3Store, server: StrictS3, big: Path, tmp_path: Path) -> None:
    store.upload("k", big)
    replaced: list[int] = []

    def replace(_moved: int) -> None:
        if not replaced:
            replaced.append(1)
            server.buckets["bucket"]["root/k"] = Stored(bytes(40 * MIB), '"other"', server.now(), {})

    (tmp_path / "in").mkdir()
    with pytest.raises(VersionConflict):
        store.download("k", tmp_path / "in" / "copy", progress=replace)
    assert list((tmp_path / "in").iterdir()) == []


def test_a_store_that_knows_no_ranges_sends_everything_at_once(
    store: S3Store, server: StrictS3, big: Path, tmp_path: Path
) -> None:
    server.ignores_ranges = True
    store.upload("k", big)
    server.on("GetObject", 1, Fault(cut_body_at=21 * MIB))
    moved: list[int] = []
    store.download("k", tmp_path / "copy", progress=moved.append)
    assert (tmp_path / "copy").read_bytes() == big.read_bytes()
    assert sum(moved) == 40 * MIB
    assert len([r for r in server.seen("GetObject") if r.key == "root/k"]) == 2


def test_a_download_never_mixes_two_versions(store: S3Store, server: StrictS3, tmp_path: Path) -> None:
    store.put("k", b"a" * 5 * MIB)
    server.on("GetObject", 1, Fault(cut_body_at=3 * MIB))
    store._connection._clock = _Meanwhile(lambda: store.put("k", b"b" * 5 * MIB))
    with pytest.raises(VersionConflict):
        store.download("k", tmp_path / "k")
    assert list(tmp_path.glob("*k*")) == []


def test_a_download_that_keeps_breaking_ends_and_leaves_nothing(
    store: S3Store, server: StrictS3, tmp_path: Path
) -> None:
    store.put("k", b"a" * 5 * MIB)
    for number in range(1, 100):
        server.on("GetObject", number, Fault(cut_body_at=0))
    folder = tmp_path / "in"
    folder.mkdir()
    with pytest.raises(StorageUnavailable):
        store.download("k", folder / "k")
    assert list(folder.iterdir()) == []


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    with (tmp_path / "f").open("rb") as file:
        section = Section(file.fileno(), 0, 10)
        assert section.read(5) == b"12345"
        with pytest.raises(StorageError, match="shorter"):
            section.read(5)


def test_sections_of_one_file_are_read_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    with (tmp_path / "f").open("rb") as file:
        one, two = Section(file.fileno(), 0, 5), Section(file.fileno(), 5, 5)
        assert (one.read(2), two.read(2), one.read(), two.read()) == (b"01", b"56", b"234", b"789")
        assert two.seek(-1, 2) == 4
        assert (two.read(9), two.tell(), len(two)) == (b"9", 5, 5)


@pytest.mark.parametrize("denied", [set(), {"GetObject"}])
def test_the_time_is_the_buckets_even_where_reading_is_denied(
    store: S3Store, server: StrictS3, denied: set[str]
) -> None:
    server.skew = timedelta(hours=3)
    server.denied = denied
    ahead = store.now() - datetime.now(UTC)
    assert timedelta(hours=2, minutes=59) < ahead < timedelta(hours=3, minutes=1)


def test_folders_made_by_a_web_console_are_no_objects(store: S3Store, server: StrictS3) -> None:
    store.put("runs/x", b"1")
    server.buckets["bucket"]["root/runs/"] = server.buckets["bucket"]["root/runs/x"]
    assert [info.key for info in store.scan("")] == ["runs/x"]
    assert list(store.children("runs/")) == ["x"]


def test_a_key_too_long_with_its_prefix_is_refused_before_it_is_sent(server: StrictS3) -> None:
    store = S3Store("bucket", "p" * 20, options={"endpoint_url": server.endpoint})
    with pytest.raises(StorageError, match="too long"):
        store.put("k" * 1010, b"")
    assert server.requests == []


def test_no_secret_is_written_to_a_log_or_an_error(
    store: S3Store, server: StrictS3, big: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said = []
    store.put("k", b"1")
    store.upload("runs/x/big", big)
    for code in ("SignatureDoesNotMatch", "ExpiredToken", "InternalError"):
        for number in range(1, ATTEMPTS + 1):
            server.on("PutObject", number, Fault(code=code, status=400))
        try:
            store.put("k", b"1")
        except StorageError as e:
            said.append(f"{e!r} {e.hint} {e.__cause__!r}")
        server.script.clear()
    assert len(said) == 3
    assert "canary" not in caplog.text + "".join(said)


def test_one_store_serves_many_threads(store: S3Store, server: StrictS3) -> None:
    from concurrent.futures import ThreadPoolExecutor

    start = Barrier(8)

    def write(number: int) -> None:
        start.wait()
        store.put(f"k{number}", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert len(list(store.scan("k"))) == 8
