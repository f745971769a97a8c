"""Which offer is taken, and what is said when none is."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.offers import NEAREST, rank, unmet
from orchestrator.types import Offer, Requirements

BASE = Offer(
    "sim", "base", Decimal("0.50"), spot=True, gpu_name="A", gpu_count=1, vram_gib=24, disk_gb=100, host_ram_gib=32
)
WANT = Requirements(gpu_count=1, vram_gib=24, disk_gb=100, host_ram_gib=32, max_usd_per_hour=Decimal("0.50"))


def test_what_meets_every_requirement_exactly_fits() -> None:
    assert unmet(BASE, WANT) == ()


@pytest.mark.parametrize(
    ("changes", "wants", "reason"),
    [
        ({"usd_per_hour": Decimal("0.51")}, {}, "above the cap of $0.50/h"),
        ({"vram_gib": 23.9}, {}, "VRAM 23.9 of 24 GiB"),
        ({"disk_gb": 99}, {}, "disk 99 of 100 GB"),
        ({"host_ram_gib": 16}, {}, "RAM 16 of 32 GiB"),
        ({"gpu_count": 0}, {}, "GPUs 0 of 1"),
        ({"spot": False}, {"spot": "require"}, "not spot"),
        ({}, {"spot": "never"}, "spot, which the recipe rules out"),
    ],
)
def test_each_reason_names_both_numbers(changes: dict[str, object], wants: dict[str, object], reason: str) -> None:
    offer, want = replace(BASE, **changes), replace(WANT, **wants)  # type: ignore[arg-type]
    assert unmet(offer, want) == (reason,)


def test_spot_and_kept_instances_both_do_when_spot_is_only_preferred() -> None:
    assert rank([BASE, replace(BASE, offer_id="kept", spot=False)], WANT).fitting[0].offer_id == "kept", (
        "same price, less risk"
    )


def test_the_cheapest_comes_first_and_then_the_bigger_card() -> None:
    offers = [
        replace(BASE, offer_id="dear"),
        replace(BASE, offer_id="small", usd_per_hour=Decimal("0.20")),
        replace(BASE, offer_id="big", usd_per_hour=Decimal("0.20"), vram_gib=48),
    ]
    assert [o.offer_id for o in rank(offers, WANT).fitting] == ["big", "small", "dear"]


def test_tried_offers_and_blamed_hosts_are_kept_apart() -> None:
    offers = [BASE, replace(BASE, offer_id="b", host_id="bad"), replace(BASE, offer_id="c", host_id="good")]
    ranked = rank(offers, WANT, excluded_offers=["base"], excluded_hosts=["bad"])
    assert [o.offer_id for o in ranked.fitting] == ["c"]
    assert {o.offer_id for o in ranked.avoided} == {"base", "b"}


def test_an_offer_without_a_host_is_never_blamed_for_one() -> None:
    assert rank([BASE], WANT, excluded_hosts=[""]).fitting == (BASE,)


def test_the_nearest_misses_come_with_every_reason() -> None:
    poor = replace(BASE, offer_id="poor", gpu_name="", vram_gib=8, disk_gb=10)
    near = replace(BASE, offer_id="near", usd_per_hour=Decimal("0.55"))
    missed = rank([poor, near], WANT).nearest
    assert [str(m) for m in missed] == [
        "A at $0.55/h: above the cap of $0.50/h",
        "poor at $0.50/h: VRAM 8 of 24 GiB, disk 10 of 100 GB",
    ]


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 80), st.booleans()), max_size=20), st.integers(1, 100))
def test_every_offer_lands_in_one_place_and_what_fits_fits(drawn: list[tuple[int, int, bool]], cap: int) -> None:
    offers = [
        replace(BASE, offer_id=str(n), usd_per_hour=Decimal(cents) / 100, vram_gib=vram, spot=spot)
        for n, (cents, vram, spot) in enumerate(drawn)
    ]
    want = replace(WANT, max_usd_per_hour=Decimal(cap) / 100)
    ranked = rank(offers, want, excluded_offers={"0", "1"})
    misses = [o for o in offers if unmet(o, want)]
    assert len(ranked.fitting) + len(ranked.avoided) + len(misses) == len(offers)
    assert len(ranked.nearest) == min(NEAREST, len(misses))
    assert not any(unmet(o, want) for o in ranked.fitting)
    prices = [o.usd_per_hour for o in ranked.fitting]
    assert prices == sorted(prices)
