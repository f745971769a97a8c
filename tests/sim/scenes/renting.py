"""Renting: at most one instance, whatever happens between intent and record."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal

from orchestrator.errors import NoOfferFits
from orchestrator.types import (
    LaunchSpec,
    Limits,
    Phase,
    Requirements,
    Token,
    new_namespace,
    token_for,
)
from tests.sim.scenes.telling import LONG, pass_for, scene, true
from tests.sim.world import Broken, Killed, Product, World


@scene
def a_crash_between_create_and_its_record_is_mended_by_the_next_pass(product: Product) -> None:
    for when in ("before", "after"):
        world = World(product)
        strangers = _strangers(world)

        def die(at: str, what: str, when: str = when) -> None:
            if (at, what) == (when, "create"):
                raise Killed

        try:
            world.one_pass(die)
        except Killed:
            world.check()
        true(world.settle().phase is Phase.SUCCEEDED)
        true(len(world.rented()) == 1)
        world.advance(1000)
        world.sweep()
        world.advance(1000)
        world.sweep()
        alive = {b.instance_id for b in world.cloud.billing()}
        true(strangers <= alive, "somebody else's instance was ended")


def _strangers(world: World) -> set[str]:
    """What else the account holds: made by hand, by another user of ours, and without any label."""
    spec, offer = LaunchSpec("true", 1e9), world.cloud.offers(Requirements())[0]
    mine = world.runs.namespace()
    labels = [
        "tune-demo",
        "",
        token_for(new_namespace(), world.run_id, 1),
        f"{token_for(mine, world.run_id, 1)}0x",
        f"tune-{mine}",
    ]
    return {world.cloud.create(offer, spec, token=Token(label)).instance_id for label in labels}


@scene
def an_unclear_create_is_settled_by_looking(product: Product) -> None:
    for reply in ("lost", "never"):
        world = World(product)
        world.weather(creates=[reply])
        true(world.settle().phase is Phase.SUCCEEDED)
        true(len(world.rented()) == 1)


@scene
def an_instance_that_shows_up_long_after_its_time_is_ended(product: Product) -> None:
    world = World(product, LONG)
    world.weather(creates=["late"])
    for _ in range(100):  # the promise of one instance cannot hold: the provider broke its own
        world.tolerates_superseded = True
        try:
            world.one_pass()
        except Broken:
            true(world.now_s < 420, "it lives on")
        world.clock.sleep(10)
    living = world.living()
    true(len(living) == 1 and living[0].token.endswith("-a2"), [b.token for b in living])


@scene
def a_thin_market_does_not_use_up_the_attempts(product: Product) -> None:
    world = World(product, limits=Limits(max_attempts=2))
    world.weather(no_capacity=True)
    pass_for(world, 7200, every=20)
    true(world.run.phase in (Phase.PENDING, Phase.TERMINATING), f"{world.run.phase}: {world.run.reason}")
    true(len(world.run.attempts) <= 25, "the record grows for ever")
    true(world.settle().phase is Phase.SUCCEEDED)


@scene
def a_marketplace_that_is_down_does_not_use_up_the_attempts(product: Product) -> None:
    world = World(product, limits=Limits(max_attempts=2))
    world.weather(creates=["unavailable"] * 40)
    true(world.until(Phase.RUNNING, passes=2000).phase is Phase.RUNNING)


@scene
def attempts_are_bounded(product: Product) -> None:
    world = World(product, LONG, Limits(max_attempts=3))
    for _ in range(3):
        world.until(Phase.RUNNING)
        world.vanish()
        world.until(Phase.PENDING, Phase.FAILED)
    true(world.settle().phase is Phase.FAILED)
    true("3 attempts" in world.run.reason, world.run.reason)


@scene
def a_refused_offer_is_followed_by_the_next_one(product: Product) -> None:
    world = World(product)
    world.weather(refused_offers=["offer-0", "offer-1"])
    before = world.now_s
    world.until(Phase.RUNNING)
    true(world.run.attempts[-1].offer.offer_id == "offer-2")
    true(world.now_s - before < 150, "refusals need no waiting")


@scene
def an_offer_above_the_cap_is_never_taken(product: Product) -> None:
    world = World(product, want=Requirements(max_usd_per_hour=Decimal("0.10")))
    pass_for(world, 600)
    true(world.rented() == [])
    true(world.errors and isinstance(world.errors[0], NoOfferFits) and "$0.20" in str(world.errors[0]), world.errors)


@scene
def a_nap_between_intent_and_create_makes_the_intent_void(product: Product) -> None:
    world = World(product)

    def nap(when: str, what: str) -> None:
        if when == "after" and what.startswith("put_if") and world.run.phase is Phase.PROVISIONING:
            world.clock.sleep(40)

    world.one_pass(nap)
    true(world.rented() == [], "an old intent was acted on")
    true(world.settle().phase is Phase.SUCCEEDED)


@scene
def a_stop_between_intent_and_create_is_seen(product: Product) -> None:
    world = World(product)

    def stop(when: str, what: str) -> None:
        if when == "after" and what.startswith("put_if") and not world.run.stop_requested_at:
            world.stop()

    world.one_pass(stop)
    true(world.rented() == [], "it was rented although the user had said stop")
    true(world.settle().phase is Phase.CANCELLED)


@scene
def a_reply_that_comes_after_the_run_has_moved_on_leaves_nothing(product: Product) -> None:
    """The computer sleeps with the create on its way; when it wakes, the run is at its second attempt."""
    world = World(product, LONG)
    world.tolerates_superseded = True

    def sleep(when: str, what: str) -> None:
        if (when, what) == ("before", "create") and len(world.run.attempts) == 1:
            while not (world.run.phase is Phase.RUNNING and len(world.run.attempts) == 2):
                world.one_pass()
                world.clock.sleep(20)

    world.one_pass(sleep)
    pass_for(world, 300, every=10)
    true([b.token[-3:] for b in world.living()] == ["-a2"], [b.token for b in world.living()])


@scene
def what_somebody_rents_while_another_looks_is_no_stray(product: Product) -> None:
    """The record is read, somebody rents, and only then comes the list with an instance that the record knows not of."""
    world = World(product, replace(LONG, list_lag_s=0))

    def rent(when: str, what: str) -> None:
        if when == "read" and what.endswith("run.json") and world.run.phase is Phase.PENDING:
            world.one_pass()

    world.one_pass(rent)
    box = world.box()
    true(box is not None and box.dying_s is None, "it was ended at once")
    world.until(Phase.RUNNING)
    true(len(world.rented()) == 1)


@scene
def twenty_resumes_at_once_rent_one_instance(product: Product) -> None:
    for number in range(5):
        world = World(product)
        if number:
            world.stop()
            world.settle()

        def resume(_: int, world: World = world) -> None:
            world.reopen()
            for _ in range(6):
                product.reconcile.reconcile(world.context(), world.run_id)

        with ThreadPoolExecutor(20) as pool:
            list(pool.map(resume, range(20)))
        world.check()
        true(len(world.living()) == 1, len(world.living()))
        true(world.run.resumes == (1 if number else 0), world.run.resumes)
        true(world.settle().phase is Phase.SUCCEEDED)
