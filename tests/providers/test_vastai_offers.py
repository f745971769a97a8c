"""Vast.ai's market: every page of it, with the whole price, and a bid that can win."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal

import pytest

from orchestrator.errors import ProviderUnavailable, RateLimited, UsageError
from orchestrator.offers import rank, unmet
from orchestrator.providers.retrying import Retrying
from orchestrator.providers.vastai import gpus, prices
from orchestrator.types import Offer, Requirements
from tests.cloud import faults
from tests.cloud.vast_rows import Ask, market
from tests.support.vast import VastWorld

Made = Callable[..., VastWorld]


@pytest.fixture
def made() -> Iterator[Made]:
    worlds: list[VastWorld] = []

    def make(*asks: Ask, **options: str) -> VastWorld:
        worlds.append(VastWorld(*asks, options=options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


def offers(world: VastWorld, **want: object) -> list[Offer]:
    return list(world.provider.offers(Requirements(**{"disk_gb": 20.0, **want})))  # type: ignore[arg-type]


def searches(world: VastWorld) -> list[dict[str, object]]:
    return [json.loads(call.body) for call in world.cloud.calls("search")]


def test_the_disk_is_in_the_price_as_it_will_be_rented(made: Made) -> None:
    dear = Ask(usd=0.300, storage_cost=0.10)
    cheap = Ask(usd=0.310, storage_cost=0.0)
    first, second = offers(made(dear, cheap), disk_gb=200.0, spot="never")
    assert first.offer_id == str(cheap.id)
    assert second.usd_per_hour == Decimal("0.327778")
    assert second.idle_usd_per_hour == Decimal("0.027778")
    assert not second.starting_bills


def test_a_real_offer_costs_what_the_marketplace_says() -> None:
    # 5 GB at 0.00133333 $/GB/month were 0.00000926 $/h in an offer of 2024, whose dph_total was 0.2466759
    assert prices.disk_usd_per_hour(5, Decimal("0.0013333333333333335")) == Decimal("0.000009")
    assert prices.disk_usd_per_hour(10, Decimal("0.14933333333333335")) == Decimal("0.002074")


@pytest.mark.parametrize(("wanted", "rented"), [(0, 20), (1, 8), (8, 8), (40.2, 41)])
def test_the_disk_is_rented_in_whole_gigabytes_from_eight_on(wanted: float, rented: int) -> None:
    assert prices.disk_gb(wanted) == rented


def test_the_cheapest_of_150_is_found_although_64_come_at_a_time(made: Made) -> None:
    asks = market(150)
    world = made(*asks)
    found = offers(world, spot="never")
    assert [o.offer_id for o in found] == [str(ask.id) for ask in asks]
    assert len(searches(world)) == 3


def test_the_cheapest_is_found_although_the_order_is_ignored(made: Made) -> None:
    asks = market(150)
    world = made(*asks)
    world.cloud.unordered = True
    assert offers(world, spot="never")[0].offer_id == str(asks[0].id)
    assert len(searches(world)) <= 4


def test_a_hundred_offers_of_one_price_do_not_hide_the_dearer_ones(made: Made) -> None:
    asks = [Ask(usd=0.4) for _ in range(100)] + [Ask(usd=0.5)]
    world = made(*asks)
    assert str(asks[-1].id) in {o.offer_id for o in offers(world, spot="never")}
    assert len(searches(world)) <= 4


def test_searches_are_few_however_big_the_market_is(made: Made) -> None:
    world = made(*market(500))
    found = offers(world)
    assert len(searches(world)) <= 8
    assert {o.spot for o in found} == {True, False}
    assert len(found) >= 256


def test_a_server_that_ignores_filters_and_pages_is_asked_no_more(made: Made) -> None:
    world = made(*market(100))
    world.cloud.ignored_filters = frozenset({"dph_total"})
    assert len(offers(world, spot="never")) == 64
    assert len(searches(world)) <= 3


def test_what_comes_although_it_was_not_asked_for_is_left_out(made: Made) -> None:
    good = Ask(usd=0.9)
    odd = [
        Ask(fields={"verification": "unverified"}), Ask(fields={"rented": True}), Ask(fields={"rentable": False}),
        Ask(fields={"external": True}), Ask(fields={"gpu_arch": "amd"}), Ask(fields={"cpu_arch": "arm64"}),
        Ask(fields={"reliability2": 0.5}), Ask(fields={"dph_base": None}), Ask(fields={"dph_base": "a lot"}),
    ]  # fmt: skip
    world = made(good, *odd)
    world.cloud.ignored_filters = frozenset({"verified", "rented", "rentable", "external"})
    assert [o.offer_id for o in offers(world, spot="never")] == [str(good.id)]
    assert len(offers(world, spot="never", gpu_count=1)) == 1


@pytest.mark.parametrize("option", ["2", "-0.1", "much", "nan"])
def test_a_reliability_that_is_none_is_refused(made: Made, option: str) -> None:
    with pytest.raises(UsageError, match="min_reliability"):
        made(min_reliability=option)
    assert offers(made(Ask(fields={"reliability2": 0.5}), min_reliability="0.4"))


def test_a_search_is_narrowed_by_the_recipe_alone(made: Made) -> None:
    world = made()
    offers(
        world,
        gpu_count=1,
        vram_gib=24,
        gpu_names=("RTX4090", "A100-80GB"),
        min_cuda=12.4,
        expected_hours=2,
        spot="never",
    )
    asked = searches(world)[0]
    assert asked["num_gpus"] == {"gte": 1}
    assert asked["gpu_ram"] == {"gte": 24_330}
    assert asked["gpu_name"] == {"in": ["A100 PCIE", "A100 SXM4", "A100X", "RTX 4090"]}
    assert asked["cuda_max_good"] == {"gte": 12.4}
    assert asked["duration"] == {"gte": 7200}
    assert asked["allocated_storage"] == 20
    offers(world, gpu_names=("A card of tomorrow",), spot="never")
    assert "gpu_name" not in searches(world)[1]


def test_what_comes_nearest_is_shown_when_nothing_fits(made: Made) -> None:
    world = made(*market(3))
    want = Requirements(gpu_count=8, vram_gib=80, disk_gb=20, spot="never")
    found = world.provider.offers(want)
    assert len(found) == 3
    assert rank(found, want).fitting == ()
    assert "VRAM 24 of 80 GiB" in str(rank(found, want).nearest[0])
    assert len(searches(world)) == 2


def test_nominal_memory_finds_cards_whose_driver_keeps_some(made: Made) -> None:
    asks = [Ask(gpu_ram=ram) for ram in (24_564, 24_576, 16_376, 81_559, 46_068)]
    want = Requirements(gpu_count=1, vram_gib=24, disk_gb=20, spot="never")
    fitting = {o.offer_id for o in rank(made(*asks).provider.offers(want), want).fitting}
    assert fitting == {str(asks[n].id) for n in (0, 1, 3, 4)}
    assert "VRAM" in unmet(offers(made(asks[0]), spot="never")[0], Requirements(vram_gib=23.5 * 1.1))[0]


@pytest.mark.parametrize(
    ("ram_mb", "gib"),
    [(24_564, 24), (16_303, 16), (81_559, 80), (143_771, 141), (97_887, 96), (40_960, 40), (46_068, 45), (23_028, 22.49), (0, 0)],
)  # fmt: skip
def test_memory_is_what_is_on_the_box_only_where_a_little_is_missing(ram_mb: float, gib: float) -> None:
    assert gpus.vram_gib(ram_mb) == gib
    assert gpus.least_ram_mb(gib) <= ram_mb


@pytest.mark.parametrize(
    ("listed", "ram_mb", "ours"),
    [
        ("RTX 4090", 24_564, "RTX4090"), ("RTX 4080S", 16_376, "RTX4080SUPER"), ("RTX 4070S Ti", 16_376, "RTX4070TiSUPER"),
        ("RTX 3060 Ti", 8192, "RTX3060Ti"), ("RTX A6000", 49_140, "A6000"), ("RTX 6000Ada", 49_140, "RTX6000Ada"),
        ("A100 SXM4", 40_960, "A100-40GB"), ("A100 PCIE", 81_920, "A100-80GB"), ("H100 SXM", 81_559, "H100-SXM"),
        ("H100 PCIE", 81_559, "H100"), ("H100 NVL", 95_830, "H100NVL"), ("Tesla V100", 16_384, "V100"), ("L40S", 46_068, "L40S"),
        ("RTX PRO 6000 WS", 97_887, "RTXPRO6000"), ("Q RTX 8000", 49_152, "QuadroRTX8000"), ("Card of 2028", 1, "Cardof2028"),
    ],
)  # fmt: skip
def test_cards_have_one_name_whoever_rents_them_out(listed: str, ram_mb: float, ours: str) -> None:
    assert gpus.canonical(listed, ram_mb) == ours


def test_every_listed_name_can_be_asked_for() -> None:
    for listed in gpus.LISTED:
        for ram_mb in (40_960, 81_920):
            assert listed in (gpus.spellings([gpus.canonical(listed, ram_mb)]) or [])


def test_two_marketplaces_call_a_card_by_one_name() -> None:
    from orchestrator.providers.runpod import gpus as theirs

    ours = {gpus.canonical(listed, ram_mb) for listed in gpus.LISTED for ram_mb in (0, 81_920)}
    for gpu_id in ("NVIDIA GeForce RTX 4090", "NVIDIA A100 80GB PCIe", "NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL", "NVIDIA L40S",
                   "NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX A6000", "NVIDIA GeForce RTX 4080 SUPER", "NVIDIA H200"):  # fmt: skip
        assert theirs.known(gpu_id).name in ours


def test_a_bid_is_a_little_above_the_floor_and_never_above_the_fixed_price(made: Made) -> None:
    asks = [
        Ask(usd=0.40, min_bid=0.20),
        Ask(usd=0.40, min_bid=0.39),
        Ask(usd=0.40, min_bid=0.40),
        Ask(usd=9.0, min_bid=0.01),
    ]
    found = {o.offer_id: o for o in offers(made(*asks)) if o.spot}
    bids = {int(name.removesuffix("-bid")): o.details["bid"] for name, o in found.items()}
    assert {ask_id: Decimal(bid) for ask_id, bid in bids.items()} == {
        asks[0].id: Decimal("0.21"), asks[1].id: Decimal("0.40"), asks[3].id: Decimal("0.011"),
    }  # fmt: skip
    offer = found[f"{asks[0].id}-bid"]
    assert offer.usd_per_hour == Decimal("0.214")
    assert offer.idle_usd_per_hour == Decimal("0.004")


def test_bids_alone_are_searched_where_nothing_else_will_do(made: Made) -> None:
    world = made(Ask(usd=0.40, min_bid=0.20))
    (offer,) = offers(world, spot="require")
    assert offer.spot
    assert Decimal(offer.details["bid"]) == Decimal("0.21")
    assert [s["type"] for s in searches(world)] == ["bid"]
    assert not any(o.spot for o in offers(world, spot="never"))


def test_a_bid_price_without_sense_is_no_offer() -> None:
    assert prices.bid(Decimal(0), None) is None
    assert prices.bid(Decimal(200), None) is None
    assert prices.bid(Decimal("0.0001"), None) == Decimal("0.0011")


def test_everything_that_the_caller_decides_by_is_in_the_offer(made: Made) -> None:
    ask = Ask(num_gpus=2, inet_down_cost=0.003, inet_up_cost=0.02, fields={"cpu_ram": 257_572, "compute_cap": 1200})
    (offer,) = offers(made(ask), spot="never")
    assert (offer.gpu_name, offer.gpu_count, offer.vram_gib) == ("RTX4090", 2, 24)
    assert offer.host_ram_gib == pytest.approx(62.88, abs=0.01)  # a quarter of the machine's cores: a quarter of it
    assert offer.download_usd_per_gb == Decimal("0.003")
    assert offer.upload_usd_per_gb == Decimal("0.02")
    assert (offer.cuda, offer.compute_capability, offer.region) == (12.8, 12.0, "CN")
    assert (offer.download_mbps, offer.upload_mbps, offer.reliability) == (805.9, 777.7, 0.9700835)
    assert offer.host_id == str(ask.id + 1_000_000)
    assert offer.lasts_s == pytest.approx(13_356_528.56)


def test_fields_that_are_null_or_odd_do_not_hide_an_offer(made: Made) -> None:
    fields = dict.fromkeys(
        ("gpu_name", "gpu_ram", "num_gpus", "storage_cost", "geolocation", "duration", "cpu_cores", "cpu_ram")
    )
    ask = Ask(fields={**fields, "compute_cap": "new", "inet_down_cost": -1, "machine_id": None})
    (offer,) = offers(made(ask), spot="never")
    assert (offer.gpu_name, offer.gpu_count, offer.vram_gib, offer.host_id, offer.lasts_s) == ("", 0, 0, "", None)


def test_the_daily_quota_is_named_and_not_asked_again(made: Made) -> None:
    world = made()
    world.cloud.searches_left = 0
    with pytest.raises(RateLimited, match="00:00 UTC") as caught:
        Retrying(world.provider, clock=world.clock).offers(Requirements(spot="never"))
    assert caught.value.retry_after_s == 40_000
    assert len(searches(world)) == 1


def test_asked_too_often_it_waits_as_long_as_it_is_told(made: Made) -> None:
    world = made()
    world.cloud.faults.on("search", faults.rate_limited_for(2))
    assert Retrying(world.provider, clock=world.clock).offers(Requirements(spot="never"))
    assert len(world.clock.slept) == 1
    assert world.clock.slept[0] >= 2


def test_a_spacing_in_words_is_understood(made: Made) -> None:
    world = made()
    world.cloud.faults.on("search", faults.RATE_LIMITED)
    with pytest.raises(RateLimited) as caught:
        offers(world, spot="never")
    assert caught.value.retry_after_s == 4.5


def test_a_later_page_that_fails_leaves_the_cheaper_ones(made: Made) -> None:
    world = made(*market(150))
    world.cloud.faults.on("search", faults.HTML_502, nth=2)
    assert len(offers(world, spot="never")) == 64
    world.cloud.faults.on("search", faults.HTML_502)
    with pytest.raises(ProviderUnavailable):
        offers(world, spot="never")


def test_an_empty_market_is_an_answer(made: Made) -> None:
    world = made(Ask(fields={"rentable": False}))
    assert offers(world) == []
