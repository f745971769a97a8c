"""Renting on Vast.ai: once, as a bid where a bid was offered, and nothing left behind by what goes wrong."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from orchestrator.errors import (
    AuthRejected,
    InstanceNotFound,
    InsufficientCapacity,
    OutcomeUnknown,
    OutOfFunds,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
    QuotaExceeded,
    RateLimited,
    TuneError,
)
from orchestrator.providers.vastai.api import Api
from orchestrator.providers.vastai.provider import VastProvider
from orchestrator.types import InstanceId, InstanceState, LaunchSpec, Offer, parse_token
from tests.cloud import faults
from tests.cloud.faults import Fault
from tests.cloud.vast_rows import Ask
from tests.support.vast import PUBLIC_KEY, SPEC, TOKEN, VastWorld


@pytest.fixture
def world() -> Iterator[VastWorld]:
    made = VastWorld(Ask(usd=0.40, min_bid=0.20, slots=9))
    yield made
    made.close()


def saying(status: int, **body: Any) -> Fault:
    return Fault(f"{status} {body}", status, json.dumps(body).encode())


def create(world: VastWorld, offer: Offer, spec: LaunchSpec = SPEC, **more: Any) -> Any:
    return world.provider.create(offer, spec, token=TOKEN, **more)


def test_a_bid_is_sent_as_one_and_read_back_as_one(world: VastWorld) -> None:
    offer = world.offer(spot="require")
    created = create(world, offer)
    assert world.body()["price"] == 0.21
    assert created.spot is True
    assert created.usd_per_hour == offer.usd_per_hour == Decimal("0.214")
    assert created.host_id == offer.host_id
    assert world.contract(created).is_bid


def test_on_demand_is_rented_without_a_price(world: VastWorld) -> None:
    created = world.rent(spot="never")
    assert world.body()["price"] is None
    assert created.spot is False
    assert created.usd_per_hour == Decimal("0.404")


def test_the_request_says_all_that_an_instance_needs_and_no_secret(world: VastWorld) -> None:
    world.rent(spot="never")
    body = world.body()
    assert body["env"] == {"TUNE_DEADLINE_S": "3600"}
    assert body["label"] == TOKEN
    assert body["disk"] == 20
    assert body["runtype"] == "ssh_direc ssh_proxy"
    assert body["cancel_unavail"] is True
    assert len(body["onstart"]) <= 4000
    script = gzip.decompress(base64.b64decode(body["onstart"].partition("echo ")[2].partition("|")[0])).decode()
    assert PUBLIC_KEY in script
    assert f"{world.cloud.url}/api/v0/instances/" in script
    assert "CONTAINER_API_KEY" in script
    assert world.body("attach") == {"ssh_key": PUBLIC_KEY}
    assert all(world.api.key.encode() not in call.body for call in world.cloud.log)


def test_the_deadline_of_the_launch_and_its_image_are_passed_on(world: VastWorld) -> None:
    create(world, world.offer(), replace(SPEC, env={"TUNE_DEADLINE_S": "77", "OTHER": "x"}, image="me/mine:1"))
    assert world.body()["env"] == {"TUNE_DEADLINE_S": "77"}
    assert world.body()["image"] == "me/mine:1"


@pytest.mark.parametrize("key", ["", "null", "None", "not a key", "ssh-ed25519", f"{PUBLIC_KEY}\n{PUBLIC_KEY}"])
def test_nothing_is_rented_that_nobody_could_log_in_to(world: VastWorld, key: str) -> None:
    with pytest.raises(ProviderRejected, match="public key"):
        create(world, world.offer(), replace(SPEC, public_key=key))
    assert world.cloud.calls("create") == []


def test_offers_that_are_not_its_own_are_not_rented(world: VastWorld) -> None:
    offer = world.offer(spot="require")
    for wrong in (
        replace(offer, provider="runpod"), replace(offer, offer_id="x"), replace(offer, spot=False), replace(offer, details={}),
        replace(offer, offer_id=f"{offer.offer_id}/../1"),
    ):  # fmt: skip
        with pytest.raises(ProviderRejected):
            create(world, wrong)
    with pytest.raises(ProviderRejected):
        world.provider.create(offer, SPEC, token="x" * 257)  # type: ignore[arg-type]
    assert world.cloud.calls("create") == []


def test_a_bid_that_became_an_on_demand_rental_is_destroyed(world: VastWorld) -> None:
    world.cloud.forgets_price = True
    with pytest.raises(InsufficientCapacity, match="on demand, not as a bid"):
        create(world, world.offer(spot="require"))
    assert world.cloud.living() == []
    assert len(world.cloud.calls("create")) == 1


@pytest.mark.parametrize("spot", ["require", "never"])
def test_what_turns_out_dearer_is_destroyed(world: VastWorld, spot: str) -> None:
    offer = world.offer(spot=spot)
    lower = {name: value for name, value in offer.details.items() if name == "bid"}
    with pytest.raises(InsufficientCapacity, match=r"costs \$"):
        create(world, replace(offer, usd_per_hour=Decimal("0.1"), details=lower))
    assert world.cloud.living() == []


@pytest.mark.parametrize(("cap", "is_rented"), [("0.35", False), ("0.40", True)])
def test_a_price_that_rose_since_is_taken_only_below_the_cap(cap: str, *, is_rented: bool) -> None:
    world = VastWorld(Ask(usd=0.30, storage_cost=0.0, price_at_create=0.36))
    try:
        offer = world.offer(spot="never", max_usd_per_hour=Decimal(cap))
        if is_rented:
            assert create(world, offer).usd_per_hour == Decimal("0.36")
        else:
            with pytest.raises(InsufficientCapacity, match=r"\$0\.36\d*/h instead of \$0\.3"):
                create(world, offer)
        assert len(world.cloud.living()) == is_rented
    finally:
        world.close()


def test_another_number_of_gpus_is_not_what_was_offered(world: VastWorld) -> None:
    with pytest.raises(InsufficientCapacity, match="came with 1 GPUs instead of 2"):
        create(world, replace(world.offer(), gpu_count=2))
    assert world.cloud.living() == []


def test_a_bid_below_another_one_leaves_nothing(world: VastWorld) -> None:
    next(iter(world.cloud.asks.values())).top_bid = 0.3
    with pytest.raises(InsufficientCapacity, match="rented, and not started"):
        create(world, world.offer(spot="require"))
    assert world.cloud.living() == []
    assert len(world.cloud.contracts) == 1


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "invalid_args", ProviderRejected), (410, "no_such_ask", InsufficientCapacity), (500, "oops", InsufficientCapacity),
        (200, "resources_unavailable", InsufficientCapacity), (400, "insufficient_credit", OutOfFunds),
    ],
)  # fmt: skip
def test_a_contract_named_in_an_error_is_destroyed(
    world: VastWorld, status: int, code: str, expected: type[ProviderError]
) -> None:
    world.cloud.leftover = (status, code)
    with pytest.raises(expected):
        create(world, world.offer())
    assert len(world.cloud.contracts) == 1
    assert world.cloud.living() == []


@pytest.mark.parametrize("call", ["destroy", "show"])
@pytest.mark.parametrize(
    "fault", [faults.SERVER_ERROR, faults.RESET, faults.UNSUCCESSFUL, faults.NULL, faults.RATE_LIMITED]
)
def test_a_leftover_whose_end_is_not_confirmed_is_not_forgotten(world: VastWorld, call: str, fault: Fault) -> None:
    world.cloud.leftover = (400, "invalid_args")
    world.cloud.faults.on(call, fault)
    with pytest.raises(OutcomeUnknown) as caught:
        create(world, world.offer())
    assert caught.value.token == TOKEN


def test_a_leftover_that_is_still_listed_is_not_gone(world: VastWorld) -> None:
    world.cloud.leftover, world.cloud.gone_after_s = (400, "invalid_args"), 10
    with pytest.raises(OutcomeUnknown, match="still listed"):
        create(world, world.offer())


def test_a_leftover_that_is_not_known_yet_is_not_gone_either(world: VastWorld) -> None:
    world.cloud.leftover = (400, "invalid_args")
    world.cloud.faults.on("destroy", saying(404, success=False, error="no_such_instance", msg="none"))
    with pytest.raises(OutcomeUnknown):
        create(world, world.offer())


def test_what_is_not_shown_yet_is_rented_all_the_same(world: VastWorld) -> None:
    world.cloud.shown_after_s = world.cloud.listed_after_s = 20
    offer = world.offer()
    created = create(world, offer)
    assert (created.state, created.token, created.usd_per_hour) == (InstanceState.STARTING, TOKEN, offer.usd_per_hour)
    assert created.spot is None
    assert world.cloud.living() == [int(created.instance_id)]


def test_what_the_list_does_not_show_is_looked_at_by_its_id(world: VastWorld) -> None:
    world.cloud.listed_after_s, world.cloud.forgets_price = 20, True
    with pytest.raises(InsufficientCapacity):
        create(world, world.offer(spot="require"))
    assert world.cloud.living() == []


@pytest.mark.parametrize("goes_wrong", [False, True])
def test_no_call_comes_too_soon_after_another_of_its_kind(world: VastWorld, *, goes_wrong: bool) -> None:
    """Renting and taking it back again ask each thing once: the next show is taken two seconds later (their docs)."""
    world.cloud.spacing_s = {"create": 4.5, "destroy": 3.0, "show": 2.0, "list": 1.0, "attach": 1.0}
    world.cloud.forgets_price = goes_wrong
    if goes_wrong:
        with pytest.raises(InsufficientCapacity):
            create(world, world.offer(spot="require"))
    else:
        create(world, world.offer(spot="require"))
    assert 429 not in {call.status for call in world.cloud.log}
    assert len(world.cloud.living()) == (not goes_wrong)


def test_a_list_that_ignores_its_filter_does_no_harm(world: VastWorld) -> None:
    world.cloud.ignored_filters, world.cloud.list_rows = frozenset({"label"}), 2
    assert create(world, world.offer()).spot is not None


def test_a_key_that_is_not_taken_now_comes_with_the_start_command(world: VastWorld) -> None:
    world.cloud.faults.on("attach", faults.SERVER_ERROR)
    assert create(world, world.offer()).token == TOKEN


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (saying(404, success=False, error="invalid_args", msg="error 404/3603: no_such_ask Instance type by id 1 is not available."), InsufficientCapacity),
        (saying(410, success=False, error="no_such_ask", msg="no longer available"), InsufficientCapacity),
        (saying(400, success=False, error="no_such_ask", msg="no longer available"), InsufficientCapacity),
        (saying(200, success=False, error="no_such_ask", msg="gone"), InsufficientCapacity),
        (saying(400, success=False, error="invalid_price", msg="bid"), InsufficientCapacity),
        (saying(400, success=False, error="no_ssh_key_for_vm", msg="no key"), InsufficientCapacity),
        (saying(403, success=False, error="forbidden", msg="cannot rent your own machine"), InsufficientCapacity),
        (saying(400, success=False, error="insufficient_credit", msg="Your account lacks credit"), OutOfFunds),
        (saying(200, success=False, error="missing_billing", msg="add a card"), OutOfFunds),
        (saying(400, success=False, error="spend_rate_limit", msg="too much"), QuotaExceeded),
        (saying(401, success=False, error="auth_error", msg="Invalid user key"), AuthRejected),
        (saying(403, success=False, error="forbidden", msg="no"), AuthRejected),
        (saying(400, success=False, error="invalid_args", msg="our bug"), ProviderRejected),
        (saying(200, success=False, error="invalid_args", msg="our bug"), ProviderRejected),
        (faults.RATE_LIMITED, RateLimited),
        (saying(200, success=False, error="resources_unavailable", msg="state change queued."), OutcomeUnknown),
        (saying(200, success=False, error="a new word", msg="who knows"), OutcomeUnknown),
        (saying(200, success=True), OutcomeUnknown),
        (saying(200, success=True, new_contract="many"), OutcomeUnknown),
        (saying(408, success=False, error="timeout", msg="slow"), OutcomeUnknown),
        (Fault("404 page", 404, b"<html>no such page</html>", "text/html"), OutcomeUnknown),
        (Fault("413", 413, b"", "text/plain"), OutcomeUnknown),
        (Fault("a list", 200, b"[1]"), OutcomeUnknown),
        (Fault("half", 200, b'{"success": tr'), OutcomeUnknown),
        (Fault("deep", 200, b"[" * 100_000), OutcomeUnknown),
    ],
    ids=str,
)  # fmt: skip
def test_each_refusal_means_one_thing(world: VastWorld, answer: Fault, expected: type[TuneError]) -> None:
    world.cloud.faults.on("create", answer)
    with pytest.raises(expected) as caught:
        create(world, world.offer())
    assert type(caught.value) is expected
    assert len(world.cloud.calls("create")) == 1


@pytest.mark.parametrize("fault", faults.EVERY_KIND, ids=str)
def test_a_create_is_sent_once_and_its_end_is_known_or_said_to_be_unknown(world: VastWorld, fault: Fault) -> None:
    offer = world.offer()
    world.cloud.faults.on("create", fault)
    with pytest.raises(TuneError) as caught:
        create(world, offer, timeout_s=0.5)
    assert len(world.cloud.calls("create")) == 1
    if fault.has_effect:
        assert isinstance(caught.value, OutcomeUnknown)
    left = world.provider.find(namespace=parse_token(TOKEN).namespace)  # type: ignore[union-attr]
    assert len(left) == len(world.cloud.living()) == fault.has_effect


@pytest.mark.parametrize("call", ["list", "show", "attach"])
@pytest.mark.parametrize("fault", [f for f in faults.EVERY_KIND if not f.is_silent], ids=str)
def test_what_fails_after_the_renting_loses_nothing(world: VastWorld, call: str, fault: Fault) -> None:
    offer = world.offer()
    world.cloud.faults.on("show", faults.HTML_502)
    world.cloud.faults.on(call, fault)
    created = create(world, offer)
    assert world.cloud.living() == [int(created.instance_id)]


def test_who_cannot_be_reached_has_rented_out_nothing(world: VastWorld) -> None:
    offer = world.offer()
    nobody = VastProvider(Api("http://127.0.0.1:9", "canary-key"))  # the discard port: nobody listens
    with pytest.raises(ProviderUnavailable, match="no connection"):
        nobody.create(offer, SPEC, token=TOKEN)
    with pytest.raises(ProviderUnavailable):
        nobody.get(InstanceId("5"))


READS = {
    "offers": lambda world, i: world.offer(),
    "get": lambda world, i: world.provider.get(i),
    "find": lambda world, i: world.provider.find(namespace="abc123"),
    "terminate": lambda world, i: world.provider.terminate(i),
    "balance": lambda world, i: world.account.balance_usd(),
    "billed": lambda world, i: world.account.billed(i, since=world.now(), until=world.now()),
    "rebid": lambda world, i: world.account.rebid(i, Decimal("0.3")),
}
CALLS = {
    "offers": "search",
    "get": "show",
    "find": "list",
    "terminate": "destroy",
    "balance": "user",
    "billed": "charges",
    "rebid": "bid",
}


@pytest.mark.parametrize("asked", READS)
@pytest.mark.parametrize("fault", [f for f in faults.EVERY_KIND if not f.is_silent], ids=str)
def test_an_answer_that_is_none_proves_nothing(world: VastWorld, asked: str, fault: Fault) -> None:
    rented = world.rent(spot="require").instance_id
    world.cloud.faults.from_now_on(CALLS[asked], fault)
    with pytest.raises(ProviderUnavailable) as caught:
        READS[asked](world, rented)
    assert isinstance(caught.value, RateLimited) == (fault.status == 429)
    assert world.api.key not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("asked", ["get", "find", "terminate"])
def test_silence_ends_when_the_time_is_up(world: VastWorld, asked: str) -> None:
    rented = world.rent().instance_id
    world.cloud.faults.on(CALLS[asked], faults.TIMEOUT)
    ask = {
        "get": lambda: world.provider.get(rented, timeout_s=0.2),
        "find": lambda: world.provider.find(namespace="abc123", timeout_s=0.2),  # type: ignore[arg-type]
        "terminate": lambda: world.provider.terminate(rented, timeout_s=0.2),
    }
    with pytest.raises(ProviderUnavailable, match="in time"):
        ask[asked]()


def test_a_wrong_key_is_said_so_by_every_call(world: VastWorld) -> None:
    rented, offer = world.rent().instance_id, world.offer()
    world.provider = VastProvider(Api(world.cloud.url, "canary-of-another"))
    for ask in READS.values():
        if ask in (READS["balance"], READS["billed"], READS["rebid"]):
            continue
        with pytest.raises(AuthRejected) as caught:
            ask(world, rented)
        assert "canary-of-another" not in str(caught.value)
    with pytest.raises(AuthRejected):
        create(world, offer)


@pytest.mark.parametrize(
    "answer",
    [
        saying(404, success=False, error="no_such_instance", msg="none"), saying(404, success=False, error="another word"),
        saying(200, success=False, error="no_such_instance", msg="gone"), saying(200, success=False, msg="already destroyed"),
    ],
    ids=str,
)  # fmt: skip
def test_terminating_what_is_gone_is_told_as_that(world: VastWorld, answer: Fault) -> None:
    rented = world.rent().instance_id
    world.cloud.faults.on("destroy", answer)
    with pytest.raises(InstanceNotFound):
        world.provider.terminate(rented)


@pytest.mark.parametrize(
    "answer",
    [
        saying(404, message="no Route matched with those values"), Fault("page", 404, b"<html>", "text/html"),
        saying(200, instances=[]), saying(200, instances={}), saying(200, instances={"id": 5}), saying(200),
        saying(410, success=False, error="deprecated_endpoint", msg="use v2"), saying(403, success=False, error="x", msg="y"),
    ],
    ids=str,
)  # fmt: skip
def test_nothing_else_is_proof_of_absence(world: VastWorld, answer: Fault) -> None:
    rented = world.rent().instance_id
    world.cloud.faults.on("show", answer)
    with pytest.raises(TuneError) as caught:
        world.provider.get(rented)
    assert not isinstance(caught.value, InstanceNotFound)
