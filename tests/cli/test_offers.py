"""`tune offers`: both markets in one list, full prices, and one that fails is a line."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator import survey
from orchestrator.cli import app
from orchestrator.clock import SystemClock
from orchestrator.types import Offer, Requirements
from tests.cli import stand

CHEAP = {
    "offer_id": "a-1",
    "usd": "0.30",
    "idle_usd_per_hour": "0.01",
    "region": "DE",
    "host_id": "77",
    "reliability": 0.991,
}
SPOT = {"offer_id": "b-1", "usd": "0.20", "spot": True, "download_usd_per_gb": "0.005", "upload_usd_per_gb": "0.002"}
BIG = {"offer_id": "b-2", "usd": "1.90", "gpu_name": "H100-SXM", "vram_gib": 80.0}


class Counter:
    """Two stands, and the command line in front of them."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._capsys = root, capsys
        self.config = root / "config.toml"
        tables = "".join(f"[providers.{name}]\nfolder = {json.dumps(str(root))}\n" for name in stand.NAMES)
        self.config.write_text(f"state_dir = {json.dumps(str(root / 'state'))}\n{tables}")

    def shelf(self, name: str, *offers: dict[str, Any], **more: Any) -> None:
        (self.root / f"{name}.json").write_text(json.dumps({"offers": offers, **more}))

    def tune(self, *args: str) -> tuple[int, str, str]:
        code = app.run(["--config", str(self.config), "offers", *args])
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def json(self, *args: str) -> dict[str, Any]:
        code, out, err = self.tune("--json", "--provider", "stand-a,stand-b", *args)
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found


@pytest.fixture
def counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Counter:
    monkeypatch.syspath_prepend(str(stand.plugged(tmp_path)))
    made = Counter(tmp_path, capsys)
    made.shelf("stand-a", CHEAP)
    made.shelf("stand-b", SPOT, BIG)
    return made


def ids(document: dict[str, Any]) -> list[str]:
    return [offer["offer_id"] for offer in document["offers"]]


def test_both_markets_stand_in_one_list_cheapest_first(counter: Counter) -> None:
    found = counter.json()
    assert ids(found) == ["b-1", "a-1", "b-2"]
    assert [(p["name"], p["offers"], p["trouble"]) for p in found["providers"]] == [
        ("stand-a", 1, ""),
        ("stand-b", 2, ""),
    ]


def test_a_person_sees_the_full_price_and_what_is_in_it(counter: Counter) -> None:
    code, out, _ = counter.tune("--provider", "stand-a,stand-b")
    assert code == 0
    lines = out.splitlines()
    assert [" ".join(line.split()) for line in lines[:3]] == [
        "PROVIDER GPU VRAM $/H DISK $/H IN/OUT $/GB KIND RELIABLE REGION HOST",
        "stand-b 1x RTX4090 24 GiB 0.200 - 0.005/0.002 spot - - -",
        "stand-a 1x RTX4090 24 GiB 0.300 0.010 0.000/0.000 on demand 99.1% DE 77",
    ]


@pytest.mark.parametrize(
    ("args", "left"),
    [
        (["--spot", "never"], ["a-1", "b-2"]),
        (["--spot", "require"], ["b-1"]),
        (["--max-usd", "$0.25"], ["b-1"]),
        (["--gpu", "H100 SXM"], ["b-2"]),
        (["--gpu", "H100 SXM", "--gpu", "RTX 4090", "--limit", "2"], ["b-1", "a-1"]),
        (["--gpus", "0"], ["b-1", "a-1", "b-2"]),
    ],
)
def test_wishes_narrow_it(counter: Counter, args: Sequence[str], left: Sequence[str]) -> None:
    assert ids(counter.json(*args)) == left


def test_a_recipe_says_what_must_fit(counter: Counter) -> None:
    recipe = counter.root / "recipe.yaml"
    recipe.write_text("base_model: me/x\ntune: {gpu: {min_vram: 40GB}, spot: never}\n")
    assert ids(counter.json(str(recipe))) == ["b-2"]
    assert ids(counter.json(str(recipe), "--set", "tune.gpu.min_vram=8GB")) == ["a-1", "b-2"]


def test_when_nothing_fits_the_nearest_are_shown_with_every_reason(counter: Counter) -> None:
    code, out, err = counter.tune("--provider", "stand-a,stand-b", "--max-usd", "0.10", "--gpus", "2")
    assert code == 12
    assert "stand-b: RTX4090 at $0.20/h: above the cap of $0.10/h, GPUs 1 of 2" in out
    assert "none of 3 offers fits" in err


def test_one_market_that_fails_is_a_line(counter: Counter) -> None:
    counter.shelf("stand-a", trouble="AuthRejected")
    code, out, err = counter.tune("--provider", "stand-a,stand-b")
    assert code == 0
    assert "stand-b" in out
    assert "stand-a: stand-a says AuthRejected" in err
    assert counter.json()["providers"][0]["trouble"] == "stand-a says AuthRejected"


def test_one_market_without_a_key_is_a_line(counter: Counter) -> None:
    counter.shelf("stand-a", no_key=True)
    found = counter.json()
    assert ids(found) == ["b-1", "b-2"]
    assert [p["trouble"] for p in found["providers"] if p["name"] == "stand-a"] == [
        "no key of stand-a: tried $STAND_KEY, ~/.stand"
    ]


def test_all_that_fail_are_an_error_that_names_each(counter: Counter) -> None:
    counter.shelf("stand-a", no_key=True)
    counter.shelf("stand-b", trouble="ProviderUnavailable")
    code, out, err = counter.tune("--provider", "stand-a,stand-b")
    assert (code, out) == (15, "")
    assert "stand-a: no key" in err and "stand-b: stand-b says ProviderUnavailable" in err


def test_any_is_every_market_that_can_be_used(counter: Counter) -> None:
    code, out, err = counter.tune("--json")
    assert code == 0, err
    assert {offer["provider"] for offer in json.loads(out)["offers"]} == set(stand.NAMES)


def test_a_disk_that_is_free_while_stopped_still_has_its_price(counter: Counter) -> None:
    counter.shelf("stand-a", {**CHEAP, "idle_usd_per_hour": "0", "details": {"disk_usd_per_hour": "0.007"}})
    _, out, _ = counter.tune("--provider", "stand-a")
    assert " 0.300  0.007 " in out


def test_why_a_market_has_nothing_interruptible_is_said(counter: Counter) -> None:
    counter.shelf("stand-a", CHEAP, no_spot_reason="Stand A sells no interruptible capacity")
    code, out, _ = counter.tune("--provider", "stand-a,stand-b")
    assert code == 0 and "stand-a: Stand A sells no interruptible capacity" in out
    code, _, err = counter.tune("--provider", "stand-a", "--spot", "require")
    assert code == 12 and "Stand A sells no interruptible capacity" in err


@pytest.mark.parametrize(("args", "says"), [(["--spot", "maybe"], "not one of"), (["--max-usd", "x"], "not an amount"),
                                            (["--max-usd", "-1"], "not an amount"), (["--provider", "stnd-a"], "did you mean stand-a")])  # fmt: skip
def test_what_cannot_be_meant_is_a_usage_error(counter: Counter, args: Sequence[str], says: str) -> None:
    code, out, err = counter.tune(*args)
    assert (code, out) == (2, "")
    assert says in err


def test_nothing_is_rented_by_looking(counter: Counter) -> None:
    counter.json()
    assert {(counter.root / f"{name}.asked").read_text() for name in stand.NAMES} == {"offers\n"}


def test_all_markets_are_asked_at_the_same_time() -> None:
    """Each answers only once the other has been asked: one after the other would wait for ever."""
    both = threading.Barrier(2, timeout=30)

    class Patient(stand.Stand):
        def offers(self, want: Requirements, *, timeout_s: float = 30) -> Sequence[Offer]:
            both.wait()
            return super().offers(want)

    bounds = {name: stand.bound(name, offers=[CHEAP]) for name in stand.NAMES}
    asked = {
        name: type(bound)(Patient(name, lambda: {"offers": [CHEAP]}, lambda _: None), bound.connect, is_elsewhere=True)
        for name, bound in bounds.items()
    }
    answers = survey.ask(asked, Requirements(), clock=SystemClock())
    assert [len(answer.offers) for answer in answers] == [1, 1]


def test_a_bug_in_one_adapter_does_not_hide_the_other() -> None:
    class Broken(stand.Stand):
        def offers(self, want: Requirements, *, timeout_s: float = 30) -> Sequence[Offer]:
            raise KeyError("canary-in-a-reply")

    good = stand.bound("stand-b", offers=[CHEAP])
    broken = type(good)(Broken("stand-a", dict, lambda _: None), good.connect, is_elsewhere=True)
    first, second = survey.ask({"stand-a": broken, "stand-b": good}, Requirements(), clock=SystemClock())
    assert first.trouble is not None and "KeyError" in first.trouble.message and "canary" not in first.trouble.message
    assert len(second.offers) == 1
