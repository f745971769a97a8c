"""Renting at RunPod: once, for the price that was offered, or not at all."""

from __future__ import annotations

import base64
import json
import shlex
import socket
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import pytest

from orchestrator.errors import (
    AuthRejected,
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
from orchestrator.providers.boot import boot_script
from orchestrator.providers.runpod.provider import RunPodProvider, farewell, start_args
from orchestrator.providers.runpod.rest import Rest
from orchestrator.types import InstanceState, LaunchSpec, Offer, Requirements, parse_token
from tests.cloud import faults
from tests.cloud.faults import Fault
from tests.cloud.runpod import NO_CAPACITY, problem
from tests.cloud.wire import Answer
from tests.support.runpod import PUBLIC_KEY, RunPodWorld, new_token


@pytest.fixture
def world() -> Iterator[RunPodWorld]:
    world = RunPodWorld()
    yield world
    world.close()


def creates(world: RunPodWorld) -> int:
    return len(world.cloud.calls("create"))


def sent(world: RunPodWorld) -> dict[str, object]:
    (call,) = world.cloud.calls("create")
    return dict(json.loads(call.body))


def test_the_request_says_what_is_wanted_and_holds_no_key_but_the_public_one(world: RunPodWorld) -> None:
    token = new_token()
    offer = next(o for o in world.provider.offers(Requirements(gpu_count=2, disk_gb=33)) if "4090" in o.offer_id)
    world.provider.create(offer, replace(world.spec, disk_gb=33), token=token)
    body = sent(world)
    script = boot_script(replace(world.spec, disk_gb=33), token, farewell(world.cloud.url), foreground=True)
    assert body == {
        "name": token,
        "image": "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404",
        "gpu": {"id": "NVIDIA GeForce RTX 4090", "count": 2},
        "cloud": "COMMUNITY",
        "disk": 33,
        "ports": ["22/tcp"],
        "env": {"PUBLIC_KEY": PUBLIC_KEY, "TUNE_DEADLINE_S": "3600"},
        "startSsh": True,
        "args": start_args(script),
    }
    assert world.cloud.account_key not in str(body) + script


def test_the_recipes_image_and_cuda_floor_reach_the_pod(world: RunPodWorld) -> None:
    offer = world.provider.offers(Requirements(min_cuda=12.0))[0]
    world.provider.create(offer, replace(world.spec, image="me/mine:1"), token=new_token())
    assert (sent(world)["image"], sent(world)["gpu"]) == (
        "me/mine:1",
        {"id": "NVIDIA RTX A4000", "count": 1, "minCudaVersion": "12.0"},
    )


@pytest.mark.parametrize("script", ["echo hi", "printf '%s\\n' \"$HOME\" `id` $(id)\n# ü 'x\"\\\n", "x" * 4000])
def test_the_start_command_survives_any_quoting(script: str) -> None:
    line = start_args(script)
    words = shlex.split(line)
    assert words[:2] == ["sh", "-c"]
    assert len(words) == 3
    assert not set('$`"\\\n') & set(line), "nothing that another parser could take for its own"
    packed = words[2].split("echo ")[1].split(" ")[0]
    assert base64.b64decode(packed).decode() == script


@pytest.mark.parametrize("value", ['a"b', "line\nbreak", "back\\slash", 'x", gpuCount: 8, name: "', "{}$(id)'ü\u2028"])
def test_hostile_values_stay_values(world: RunPodWorld, value: str) -> None:
    spec = replace(world.spec, env={"TUNE_DEADLINE_S": "60", "NOTE": value})
    token = new_token()
    created = world.provider.create(world.cheapest(), spec, token=token)
    pod = world.cloud.pods[created.instance_id]
    assert pod.body["env"]["NOTE"] == value
    assert (pod.gpu_count, pod.name, created.token) == (1, token, token)


def test_what_comes_back_is_an_instance_that_starts(world: RunPodWorld) -> None:
    offer = world.cheapest()
    made = world.provider.create(offer, world.spec, token=new_token())
    assert (made.state, made.usd_per_hour, made.spot) == (InstanceState.STARTING, offer.usd_per_hour, False)
    assert made.console_url.startswith("https://console.runpod.io/")
    assert made.says == "PROVISIONING"


@pytest.mark.parametrize("key", ["", "null", "None", "ssh-ed25519", PUBLIC_KEY + "\n" + PUBLIC_KEY, "-----BEGIN KEY"])
def test_nothing_is_rented_that_nobody_could_log_in_to(world: RunPodWorld, key: str) -> None:
    with pytest.raises(ProviderRejected, match="no public key"):
        world.provider.create(world.cheapest(), replace(world.spec, public_key=key), token=new_token())
    assert creates(world) == 0


@pytest.mark.parametrize(
    "change",
    [{"provider": "vastai"}, {"offer_id": "33402296"}, {"offer_id": "NVIDIA L4/1/ALL"}, {"spot": True}],
    ids=str,
)
def test_only_offers_of_its_own_are_rented(world: RunPodWorld, change: dict[str, object]) -> None:
    with pytest.raises(ProviderRejected, match="not an offer"):
        world.provider.create(replace(world.cheapest(), **change), world.spec, token=new_token())  # type: ignore[arg-type]
    assert creates(world) == 0


def test_too_many_variables_or_too_long_a_name_are_refused_here(world: RunPodWorld) -> None:
    many = replace(world.spec, env={f"V{n}": "x" for n in range(50)})
    with pytest.raises(ProviderRejected, match="50 environment variables"):
        world.provider.create(world.cheapest(), many, token=new_token())
    with pytest.raises(ProviderRejected, match="characters"):
        world.provider.create(world.cheapest(), world.spec, token=type(new_token())("x" * 192))
    assert creates(world) == 0


V1_REFUSAL = Answer(401, b'{"error": "key revoked", "status": 401}')


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(400, NO_CAPACITY), InsufficientCapacity),
        (problem(400, NO_CAPACITY.replace("requested", "request")), InsufficientCapacity),
        (problem(400, "There are no longer any instances available with enough disk space."), InsufficientCapacity),
        (problem(400, "There are not enough free GPUs on the host machine to start this pod."), InsufficientCapacity),
        (problem(400, "mounts.persistent and mounts.network are mutually exclusive"), ProviderRejected),
        (problem(400, "Insufficient balance. You need at least $3.59 (current: $3.01)."), OutOfFunds),
        (problem(400, "You have reached your spend limit"), QuotaExceeded),
        (problem(401, "invalid bearer token"), AuthRejected),
        (V1_REFUSAL, AuthRejected),
        (problem(402, "insufficient balance"), OutOfFunds),
        (problem(403, "access denied"), AuthRejected),
        (problem(403, "account cannot access the requested pool"), InsufficientCapacity),
        (problem(404, "template not found"), ProviderRejected),
        (problem(410, "gone"), ProviderRejected),
        (problem(422, "Request validation failed.", "$: additional properties 'x' not allowed"), ProviderRejected),
        (problem(429, "rate limit exceeded for the minute window"), RateLimited),
        (Answer(429, b"<html>slow down</html>", "text/html"), RateLimited),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Answer) else value.__name__,
)
def test_each_refusal_has_its_own_name_and_rents_nothing(
    world: RunPodWorld, answer: Answer, error: type[TuneError]
) -> None:
    world.cloud.refuses = answer
    with pytest.raises(TuneError) as caught:
        world.rent()
    assert type(caught.value) is error
    assert (creates(world), world.billing()) == (1, [])


def test_the_reason_of_a_refused_request_is_told(world: RunPodWorld) -> None:
    world.cloud.refuses = problem(422, "Request validation failed.", "$: additional properties 'x' not allowed")
    with pytest.raises(ProviderRejected, match=r"validation failed.*additional properties 'x'"):
        world.rent()


@pytest.mark.parametrize(
    "fault",
    [
        *faults.EVERY_KIND,
        faults.UNAVAILABLE,
        Fault("a redirect", 307, b"", headers={"Location": "http://127.0.0.1:9/"}),
        Fault("half a body", 201, b'{"id": "abc'),
        Fault("no id", 201, b'{"name": "x"}').after_effect(),
        Fault("404 of a proxy", 404, b"<html>not here</html>", "text/html"),
        Fault("403 of the edge", 403, b"<html>error code: 1010</html>", "text/html"),
        Fault("408", 408, problem(408, "too slow").body),
    ],
    ids=str,
)
def test_a_create_is_sent_once_and_its_error_never_lies(world: RunPodWorld, fault: Fault) -> None:
    token = new_token()
    offer = world.cheapest()
    world.cloud.faults.on("create", fault)
    with pytest.raises(ProviderError) as caught:
        world.provider.create(offer, world.spec, token=token, timeout_s=1)
    assert creates(world) == 1
    if fault.status == 429:
        assert type(caught.value) is RateLimited
        assert not world.billing()
        return
    assert isinstance(caught.value, OutcomeUnknown)
    assert caught.value.token == token
    parts = parse_token(token)
    assert parts
    seen = world.provider.find(namespace=parts.namespace)
    assert [i.instance_id for i in seen] == world.billing()
    assert bool(seen) is fault.has_effect


def test_a_wait_that_is_asked_for_is_handed_on(world: RunPodWorld) -> None:
    world.cloud.faults.on("create", faults.rate_limited_for(7))
    with pytest.raises(RateLimited) as caught:
        world.rent()
    assert caught.value.retry_after_s == 7


def test_where_nobody_listens_nothing_can_have_been_rented() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        provider = RunPodProvider(Rest(f"http://127.0.0.1:{taken.getsockname()[1]}", "k"))
        offer = Offer("runpod", "NVIDIA L4/1/SECURE", Decimal("0.44"), spot=False)
        launch = LaunchSpec("true", 60, public_key=PUBLIC_KEY)
        with pytest.raises(ProviderUnavailable, match="no connection"):
            provider.create(offer, launch, token=new_token(), timeout_s=5)


@pytest.mark.parametrize("lie", ["price", "gpus", "name"])
def test_what_is_not_as_offered_is_given_back(world: RunPodWorld, lie: str) -> None:
    world.cloud.surcharge = Decimal("0.10") if lie == "price" else Decimal(0)
    world.cloud.gives_gpus = 2 if lie == "gpus" else None
    world.cloud.gives_name = "something else" if lie == "name" else None
    with pytest.raises(InsufficientCapacity, match="given back"):
        world.rent()
    assert (world.billing(), creates(world)) == ([], 1)


def test_a_price_in_other_decimals_is_no_other_price(world: RunPodWorld) -> None:
    world.cloud.surcharge = Decimal("0.0004")
    assert world.rent().instance_id in world.billing()


def test_a_lower_price_is_welcome(world: RunPodWorld) -> None:
    offer = world.cheapest()
    world.cloud.surcharge = Decimal("-0.05")
    made = world.provider.create(offer, world.spec, token=new_token())
    assert made.usd_per_hour == offer.usd_per_hour - Decimal("0.05")


@pytest.mark.parametrize("fault", [faults.SERVER_ERROR, faults.TIMEOUT, faults.RATE_LIMITED, faults.EMPTY], ids=str)
def test_giving_back_is_not_believed_before_it_is_seen(world: RunPodWorld, fault: Fault) -> None:
    world.cloud.surcharge = Decimal(1)
    world.cloud.faults.on("delete", fault)
    token = new_token()
    provider = RunPodProvider(_Impatient(world.cloud.url, world.cloud.account_key, world.clock))
    with pytest.raises(OutcomeUnknown) as caught:
        provider.create(world.cheapest(), world.spec, token=token)
    assert caught.value.token == token
    assert len(world.billing()) == 1


def test_one_that_is_still_dying_is_not_gone(world: RunPodWorld) -> None:
    world.cloud.surcharge, world.cloud.dies_for_s = Decimal(1), 60
    with pytest.raises(OutcomeUnknown, match="still listed"):
        world.rent()


def test_dead_offers_are_told_apart_from_living_ones(world: RunPodWorld) -> None:
    offers = world.provider.offers(Requirements())
    for row in world.cloud.catalog:
        if "L4" not in row["id"]:
            row["availability"] = "NONE"  # gone between the look and the grasp
    refused = []
    for offer in offers:
        try:
            made = world.provider.create(offer, world.spec, token=new_token())
        except InsufficientCapacity:
            refused.append(offer)
            continue
        break
    assert len(refused) == offers.index(offer) >= 3
    assert world.billing() == [made.instance_id]


class _Impatient(Rest):
    """Waits a fifth of a second where the real one waits ten."""

    def call(self, method, path, *, timeout_s, query=None, body=None):  # type: ignore[no-untyped-def]
        limit_s = 0.2 if method == "DELETE" else timeout_s
        return super().call(method, path, timeout_s=limit_s, query=query, body=body)
