"""`tune launch` on other people's computers: what is refused, asked and sent before anything is rented."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from orchestrator.cli import app
from tests.assets.tiny import Tiny
from tests.cli import stand
from tests.cli.hub import running_hub
from tests.cloud.s3 import StrictS3, strict_bucket
from tests.storage.moto_s3 import running_moto

OFFER = {"offer_id": "a-1", "usd": "0.30"}
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDTEST", "AWS_SECRET_ACCESS_KEY": "canary-aws-secret", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with running_moto() as url:
        yield url


class Desk:
    """A user with a bucket, two marketplaces and a recipe whose model lies beside it."""

    def __init__(
        self, root: Path, endpoint: str, tiny: Tiny, capsys: pytest.CaptureFixture[str], *, bucket: str = ""
    ) -> None:
        self.root, self._capsys, self.endpoint = root, capsys, endpoint
        self.config = root / "config.toml"
        self.bucket = boto3.client(
            "s3", endpoint_url=endpoint, aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1"
        )
        self.name = bucket or f"b-{abs(hash(str(root))) % 10**12}"
        if not bucket:
            self.bucket.create_bucket(Bucket=self.name)
        self.store_in(f"s3://{self.name}/tune")
        self.tiny = tiny
        self.shelf("stand-a", OFFER, balance="10")
        self.shelf("stand-b", {"offer_id": "b-1", "usd": "0.50"}, balance="10")
        self.recipe()

    def store_in(self, url: str) -> None:
        tables = "".join(f"[providers.{name}]\nfolder = {json.dumps(str(self.root))}\n" for name in stand.NAMES)
        self.config.write_text(
            f'state_dir = {json.dumps(str(self.root / "state"))}\nprovider = "stand-a"\n'
            f"[storage]\nurl = {json.dumps(url)}\nendpoint_url = {json.dumps(self.endpoint)}\n{tables}"
        )

    def shelf(self, name: str, *offers: dict[str, Any], **more: Any) -> None:
        (self.root / f"{name}.json").write_text(json.dumps({"offers": offers, **more}))

    def recipe(self, *, tune: dict[str, Any] | None = None, **training: Any) -> Path:
        given = {
            "base_model": str(self.tiny.model), "adapter": "lora", "lora_r": 8, "lora_alpha": 16, "lora_target_linear": True,
            "datasets": [{"path": str(self.tiny.alpaca), "type": "alpaca"}], "sequence_len": 128, "micro_batch_size": 2,
            "max_steps": 10, "learning_rate": 0.001, **training,
        }  # fmt: skip
        path = self.root / "recipe.yaml"
        path.write_text(json.dumps({**given, "tune": {"trainer": "trl", **(tune or {})}}))
        return path

    def launch(self, *args: str) -> tuple[int, str, str]:
        code = app.run(["--config", str(self.config), "launch", str(self.root / "recipe.yaml"), *args])
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def dry(self, *args: str) -> dict[str, Any]:
        code, out, err = self.launch("--json", "--dry-run", *args)
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    @property
    def objects(self) -> list[str]:
        return [item["Key"] for item in self.bucket.list_objects_v2(Bucket=self.name).get("Contents", [])]

    @property
    def asked(self) -> set[str]:
        return {line for path in self.root.glob("*.asked") for line in path.read_text().split()}


@pytest.fixture
def desk(
    tmp_path: Path,
    endpoint: str,
    tiny_assets: Tiny,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Desk:
    monkeypatch.syspath_prepend(str(stand.plugged(tmp_path)))
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return Desk(tmp_path, endpoint, tiny_assets, capsys)


def test_a_folder_on_this_computer_is_no_place_for_a_rented_instance(desk: Desk) -> None:
    desk.store_in(f"file://{desk.root}/bucket")
    for more in ([], ["--dry-run"]):
        code, out, err = desk.launch(*more)
        assert (code, out) == (2, "")
        assert "it is a folder on this computer" in err and "s3://my-bucket/tune" in err
    assert desk.asked == set(), "before anything"
    assert not (desk.root / "bucket").exists()


def test_a_dry_run_asks_everybody_and_stores_nothing(desk: Desk) -> None:
    plan = desk.dry()
    assert {f["what"]: f["status"] for f in plan["preflight"]}["offer"] == "ok"
    assert "1x RTX4090 at stand-a for $0.300" in str(plan["preflight"])
    assert desk.objects == []
    assert desk.asked == {"offers"}


def test_a_person_reads_the_same(desk: Desk) -> None:
    code, out, _ = desk.launch("--dry-run")
    assert code == 0
    assert "in order. Nothing was stored or rented." in out
    assert "asked before renting:" in out and "$10.00 left" in out


def test_a_local_model_is_among_what_would_be_sent_and_nothing_else_of_its_folder(desk: Desk) -> None:
    plan = desk.dry()
    sent = {file["path"]: file["size"] for file in plan["files"]}
    weights = desk.tiny.model / "model.safetensors"
    assert sent["model/model.safetensors"] == weights.stat().st_size
    assert plan["upload_bytes"] == sum(sent.values()) > weights.stat().st_size
    own = {name for name in sent if not name.startswith(("model/", "trainer/"))}
    assert own == {"data/000.jsonl"}


def test_every_problem_is_told_before_a_byte_is_stored(desk: Desk) -> None:
    desk.shelf("stand-a", OFFER, balance="0.10")
    desk.recipe(tune={"publish": {"hub": "me/out"}})
    desk.store_in("s3://no-such-bucket-at-all/tune")
    code, out, err = desk.launch("--json")
    said = json.loads(err)
    assert (code, out) == (14, "")
    assert said["error"] == "OutOfFunds"
    assert "2 problems" in said["message"]
    assert "NoSuchBucket" in said["message"] or "no-such-bucket-at-all" in said["message"]
    assert "create" not in desk.asked


def test_a_dry_run_that_finds_a_problem_shows_the_plan_and_fails(desk: Desk) -> None:
    desk.shelf("stand-a", OFFER, balance="0.10")
    code, out, err = desk.launch("--json", "--dry-run")
    assert code == 14
    assert [f["status"] for f in json.loads(out)["preflight"] if f["what"] == "balance"] == ["fail"]
    assert json.loads(err)["error"] == "OutOfFunds"
    code, out, _ = desk.launch("--dry-run")
    assert code == 14 and "cannot be launched yet" in out
    assert desk.objects == []


def test_a_missing_key_is_told_together_with_the_rest(desk: Desk) -> None:
    desk.shelf("stand-a", no_key=True)
    desk.store_in("s3://no-such-bucket-at-all/tune")
    code, _, err = desk.launch()
    assert code == 11
    assert "no key of stand-a: tried $STAND_KEY, ~/.stand" in err and "no-such-bucket-at-all" in err


def test_several_marketplaces_compete_and_any_means_all(desk: Desk) -> None:
    assert desk.dry("--provider", "stand-b, stand-a")["provider"] == "stand-a,stand-b"
    desk.shelf("stand-b", {"offer_id": "b-1", "usd": "0.10"}, balance="10")
    assert "at stand-b for $0.100" in str(desk.dry("--provider", "stand-a,stand-b")["preflight"])
    desk.recipe(tune={"provider": ["stand-b", "stand-a"]})
    assert desk.dry()["provider"] == "stand-a,stand-b"
    assert set(desk.dry("--provider", "any")["provider"].split(",")) >= set(stand.NAMES)


def test_the_hub_may_be_left_out_with_a_warning(desk: Desk) -> None:
    desk.recipe(tune={"publish": {"hub": "me/out"}})
    found = desk.dry("--offline-check")["preflight"]
    assert [f["status"] for f in found if f["what"] == "hub"] == ["warn"]


def test_seconds_between_checkpoints_are_fine_without_a_gpu(desk: Desk) -> None:
    desk.recipe(tune={"gpu": {"count": 0}, "checkpoint_every": "2s"})
    assert desk.dry()["resolved"]["tune"]["gpu_count"] == 0
    desk.recipe(tune={"checkpoint_every": "2s"})
    code, _, err = desk.launch("--dry-run")
    assert code == 10 and "outside 5m to 60m" in err


def test_keys_for_the_instance_are_made_on_trial_before_anything_is_rented(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {f["what"]: f["status"] for f in desk.dry()["preflight"]}["bucket keys"] == "ok"
    with running_hub() as other:  # a store without temporary keys: what answers there speaks another language
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", other.url)
        code, out, err = desk.launch("--json", "--dry-run")
    assert code == 11 and json.loads(err)["error"] == "CredentialsMissing"
    for way in ("GetFederationToken", "role_arn", "TUNE_WORKER_ACCESS_KEY_ID", "send_own_keys"):
        assert way in json.loads(err)["hint"]
    monkeypatch.setenv("TUNE_WORKER_ACCESS_KEY_ID", "AKIDWORKER")
    monkeypatch.setenv("TUNE_WORKER_SECRET_ACCESS_KEY", "canary-worker-secret")
    code, out, err = desk.launch("--dry-run")
    assert code == 0, err
    assert (out + err).count("do not expire") == 1, "the risk is said, once"
    assert "canary" not in out + err


def test_no_key_of_this_computer_is_shown(desk: Desk) -> None:
    for more in ([], ["--json"]):
        _, out, err = desk.launch("--dry-run", *more)
        assert "canary" not in out + err


@pytest.mark.parametrize(
    ("model", "token", "exits", "says"),
    [
        ("big/gated", "", 11, "is gated, and there is no HF_TOKEN"),
        ("big/gated", "hf_good", 11, "licence has not been accepted"),
        ("me/gone", "hf_good", 10, "no model me/gone"),
        ("me/open@v9", "hf_good", 10, "no revision 'v9'"),
    ],
)
def test_what_the_hub_will_not_hand_out_costs_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, model: str, token: str, *, exits: int, says: str
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_TOKEN", token)
    desk.recipe(base_model=model)
    with running_hub() as hub:
        hub.tokens["hf_good"] = {}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        code, _, err = desk.launch()
        assert (code, desk.objects) == (exits, []), err
        assert says in err
        code, _, err = desk.launch("--dry-run", "--offline-check")
        assert code == 0, "whoever knows better may go on"
    assert desk.asked == {"offers"}, "zero paid calls"


class TestRightsInTheBucket:
    """Found out before anything is rented, with the store's own code, and nothing of it left behind."""

    @pytest.fixture
    def s3(self) -> Iterator[StrictS3]:
        with strict_bucket() as running:
            yield running

    @pytest.fixture
    def strict(
        self,
        tmp_path: Path,
        s3: StrictS3,
        tiny_assets: Tiny,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> Desk:
        monkeypatch.syspath_prepend(str(stand.plugged(tmp_path)))
        for name, value in KEYS.items():
            monkeypatch.setenv(name, value)
        return Desk(tmp_path, s3.url, tiny_assets, capsys, bucket="bucket")

    def test_with_every_right_it_goes_ahead_and_leaves_nothing(self, strict: Desk, s3: StrictS3) -> None:
        assert {f["status"] for f in strict.dry()["preflight"]} == {"ok"}
        assert s3.buckets["bucket"] == {}

    @pytest.mark.parametrize("action", ["PutObject", "GetObject", "ListObjectsV2"])
    def test_a_right_that_is_missing_is_refused_by_its_name(self, strict: Desk, s3: StrictS3, action: str) -> None:
        s3.deny(action)
        code, _, err = strict.launch("--json")
        assert code == 18
        assert "AccessDenied" in json.loads(err)["message"]
        assert strict.asked == {"offers"}, "zero creates"
        assert s3.buckets["bucket"] == {}

    def test_a_right_that_only_costs_money_is_a_warning(self, strict: Desk, s3: StrictS3) -> None:
        s3.deny("AbortMultipartUpload")
        found = [f for f in strict.dry()["preflight"] if f["what"] == "storage"]
        assert "warn" in {f["status"] for f in found} and "fail" not in {f["status"] for f in found}

    def test_a_store_that_ignores_conditions_is_refused_unless_nobody_else_writes_there(
        self, strict: Desk, s3: StrictS3
    ) -> None:
        s3.ignores_conditions = True
        code, _, err = strict.launch("--json")
        assert code == 18
        assert "If-None-Match" in err and "single_writer = true" in err
        text = strict.config.read_text().replace("[storage]\n", "[storage]\nsingle_writer = true\n")
        strict.config.write_text(text)
        found = [f for f in strict.dry()["preflight"] if f["what"] == "storage"]
        assert {f["status"] for f in found} == {"ok", "note"}

    def test_temporary_keys_that_open_more_than_one_run_are_pointed_out(self, strict: Desk, s3: StrictS3) -> None:
        s3.forgets_policies = True
        found = [f for f in strict.dry()["preflight"] if f["status"] == "warn"]
        assert ["it opens other runs, too" in f["text"] for f in found] == [True]

    def test_a_store_without_temporary_keys_asks_for_a_worker_key_or_consent(self, strict: Desk, s3: StrictS3) -> None:
        s3.sts_calls = frozenset()
        code, _, err = strict.launch("--json")
        assert code == 11 and "TUNE_WORKER_ACCESS_KEY_ID" in json.loads(err)["hint"]
        text = strict.config.read_text().replace("[storage]\n", "[storage]\nsend_own_keys = true\n")
        strict.config.write_text(text)
        code, out, err = strict.launch("--dry-run")
        assert code == 0, err
        assert (out + err).count("do not expire") == 1
        assert "canary" not in out + err
