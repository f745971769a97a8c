"""What RunPod has on its shelves, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest

from orchestrator.errors import AuthRejected, ProviderUnavailable, RateLimited, UsageError
from orchestrator.offers import rank
from orchestrator.providers.runpod.gpus import known
from orchestrator.providers.runpod.provider import RunPodProvider
from orchestrator.providers.runpod.rest import Rest
from orchestrator.types import Offer, Requirements
from tests.cloud import faults
from tests.cloud.faults import Fault
from tests.cloud.runpod_pods import gpu
from tests.support.runpod import RunPodWorld


@pytest.fixture
def world() -> Iterator[RunPodWorld]:
    world = RunPodWorld()
    yield world
    world.close()


def by_id(world: RunPodWorld, **want: object) -> dict[str, Offer]:
    return {offer.offer_id: offer for offer in world.provider.offers(Requirements(**want))}  # type: ignore[arg-type]


def test_both_clouds_are_asked_for_what_is_in_stock(world: RunPodWorld) -> None:
    offers = world.provider.offers(Requirements(gpu_count=2))
    asked = [{name: values[0] for name, values in call.query.items()} for call in world.cloud.calls("catalog")]
    same = {"include": "AVAILABILITY", "product": "POD", "count": "2"}
    assert sorted(asked, key=str) == [{**same, "cloud": "COMMUNITY"}, {**same, "cloud": "SECURE"}]
    assert [o.offer_id for o in offers][:2] == ["NVIDIA RTX A4000/2/COMMUNITY", "NVIDIA RTX A4000/2/SECURE"]


def test_what_is_not_sold_or_gone_or_not_nvidias_is_left_out(world: RunPodWorld) -> None:
    told = by_id(world)
    assert "NVIDIA L4/1/SECURE" in told
    assert "NVIDIA L4/1/COMMUNITY" not in told, "its price there is null"
    assert not any("H100" in name for name in told), "out of stock"
    assert not any("AMD" in name for name in told), "the trainers need CUDA"
    assert not any("A4000" in name for name in by_id(world, gpu_count=8)), "no machine has eight of them"


def test_the_price_holds_every_gpu_and_the_disk_that_is_rented(world: RunPodWorld) -> None:
    offer = by_id(world, gpu_count=4, disk_gb=71.5)["NVIDIA GeForce RTX 4090/4/SECURE"]
    assert offer.usd_per_hour == Decimal("0.69") * 4 + Decimal("0.01")  # 72 GB x $0.10 / 720 h
    assert (offer.disk_gb, offer.gpu_count, offer.vram_gib) == (72, 4, 24)
    assert offer.idle_usd_per_hour == 0
    assert (offer.download_usd_per_gb, offer.upload_usd_per_gb) == (0, 0)


def test_whoever_needs_no_gpu_gets_the_cheapest_pod_there_is(world: RunPodWorld) -> None:
    first = world.provider.offers(Requirements(gpu_count=0))[0]
    assert (first.gpu_count, first.gpu_name) == (1, "A4000")


def test_an_offer_says_what_the_requirements_ask_about(world: RunPodWorld) -> None:
    want = Requirements(gpu_count=1, vram_gib=24, disk_gb=50, host_ram_gib=16, min_cuda=12.4, gpu_names=("RTX4090",))
    fitting = rank(world.provider.offers(want), want).fitting
    assert [o.details["cloud"] for o in fitting] == ["COMMUNITY", "SECURE"]
    assert (fitting[0].compute_capability, fitting[0].cuda) == (8.9, 12.8)
    assert (fitting[0].region, fitting[0].details["data_centers"]) == ("US-KS-2", "US-KS-2")
    assert {call.query["minCudaVersion"][0] for call in world.cloud.calls("catalog")} == {"12.4"}


def test_cuda_versions_are_numbers_not_decimals(world: RunPodWorld) -> None:
    world.cloud.catalog = [gpu("NVIDIA L4", 24, 0.43, None, cuda=("12.2", "12.11", "11.8"))]
    assert world.cheapest().cuda == 12.11


def test_the_price_is_the_one_of_this_very_moment(world: RunPodWorld) -> None:
    before = world.cheapest().usd_per_hour
    world.cloud.catalog = [gpu("NVIDIA RTX A4000", 16, 0.36, None)]
    assert world.cheapest().usd_per_hour > before


def test_nothing_interruptible_is_offered_and_the_reason_is_said(world: RunPodWorld) -> None:
    said = world.provider.capabilities
    assert (said.spot, said.rebid) == (False, False)
    assert said.no_spot_reason == "RunPod sells no interruptible capacity"
    for wish in ("require", "prefer", "never"):
        found = world.provider.offers(Requirements(spot=wish))
        assert not any(offer.spot for offer in found)
        assert bool(rank(found, Requirements(spot=wish)).fitting) is (wish != "require")
    assert not world.cloud.calls("graphql"), "nothing is asked of the API that used to sell it"


@pytest.mark.parametrize(("option", "clouds"), [("", 2), ("secure", 1), (" Community ", 1)])
def test_one_cloud_can_be_left_out(option: str, clouds: int) -> None:
    world = RunPodWorld(cloud=option)
    found = {offer.details["cloud"] for offer in world.provider.offers(Requirements())}
    world.close()
    assert len(found) == clouds
    assert not option or found == {option.strip().upper()}


def test_a_cloud_that_is_none_is_said_before_anything_is_asked(world: RunPodWorld) -> None:
    with pytest.raises(UsageError, match="neither secure nor community"):
        RunPodProvider(world.rest, {"cloud": "all"})


def test_one_cloud_that_does_not_answer_does_not_hide_the_other(world: RunPodWorld) -> None:
    world.cloud.faults.on("catalog", faults.HTML_502)
    assert len({offer.details["cloud"] for offer in world.provider.offers(Requirements())}) == 1
    world.cloud.faults.from_now_on("catalog", faults.HTML_502)
    with pytest.raises(ProviderUnavailable, match="502 with a web page"):
        world.provider.offers(Requirements())


def test_a_refused_key_is_not_hidden_by_anything(world: RunPodWorld) -> None:
    provider = RunPodProvider(Rest(world.cloud.url, "rpa_somebody_elses", world.clock))
    with pytest.raises(AuthRejected) as caught:
        provider.offers(Requirements())
    assert "console.runpod.io" in caught.value.hint
    assert "rpa_somebody" not in str(caught.value)


@pytest.mark.parametrize("fault", [*faults.EVERY_KIND, Fault("no list", 200, b'{"gpus": null}')], ids=str)
def test_an_answer_that_is_none_is_never_an_empty_market(world: RunPodWorld, fault: Fault) -> None:
    world.cloud.faults.from_now_on("catalog", fault)
    with pytest.raises(ProviderUnavailable) as caught:
        world.provider.offers(Requirements(), timeout_s=0.2)
    assert isinstance(caught.value, RateLimited) is (fault.status == 429)
    assert not world.cloud.crashes


def test_an_odd_row_does_not_hide_the_others(world: RunPodWorld) -> None:
    odd = gpu("NVIDIA Brand New 7000", 48, 0.1, 0.2)
    odd |= {"price": {"secure": "free?", "community": None}, "maxCount": None, "cudaVersions": "all", "name": 7}
    rows = [odd, {**gpu("NVIDIA L4", 24, 0.43, None), "news": {"x": [1]}}]
    import json

    world.cloud.faults.from_now_on("catalog", Fault("odd", 200, json.dumps({"gpus": rows}).encode()))
    assert [o.offer_id for o in RunPodProvider(world.rest, {"cloud": "secure"}).offers(Requirements())] == [
        "NVIDIA L4/1/SECURE"
    ]


@pytest.mark.parametrize(
    ("gpu_id", "name", "vram_gib"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX4090", 24),
        ("NVIDIA H100 80GB HBM3", "H100-SXM", 80),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB", 80),
        ("Tesla V100-SXM2-32GB", "V100", 32),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb", "RTXPRO6000-MIG", 0),
        ("NVIDIA GeForce RTX 6090", "RTX6090", 0),
        ("", "", 0),
    ],
)
def test_names_are_ours_and_a_slice_is_not_the_whole(gpu_id: str, name: str, vram_gib: float) -> None:
    assert (known(gpu_id).name, known(gpu_id).vram_gib) == (name, vram_gib)
