"""Ten minutes in which a marketplace does not answer, at every stage of a run: never does that rent a second instance."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.types import Outcome, Phase
from tests.cloud import faults
from tests.e2e.stepped import SteppedWorld, stepped_world

OUTAGE_S = 600.0
BOOT_S = {"runpod": 7.0, "vastai": 40.0}  # of the fakes: stages of a second, and what stepped.py asks for
KINDS = {
    "503": faults.UNAVAILABLE,
    "a broken connection": faults.RESET,
    "a proxy's page": faults.HTML_502,
    "success: false": faults.UNSUCCESSFUL,
    "nothing": faults.EMPTY,
    "slow down": faults.rate_limited_for(60),
}
NAMES = ("runpod", "vastai")
OFFERS = {"runpod": "catalog", "vastai": "search"}  # the call that tells of them
# Every kind while training, when a run lives longest; at each stage before it the two that say least.
SCENES = [
    *itertools.product(NAMES, KINDS, [Phase.RUNNING]),
    *itertools.product(NAMES, ["a broken connection", "nothing"], [Phase.PROVISIONING, Phase.BOOTSTRAPPING]),
]


def outage(world: SteppedWorld, name: str, kind: str, *, check: Callable[[], None]) -> None:
    """Nothing but errors for ten minutes, and passes as often as they ask for."""
    began = world.clock.monotonic()
    world.fakes[name].faults.from_now_on(faults.ANY, KINDS[kind])
    while world.clock.monotonic() - began < OUTAGE_S:
        world.go_on(check)
    world.fakes[name].faults.clear()
    assert world.fakes[name].faults.met, "nothing was asked meanwhile"


def at_most(world: SteppedWorld, count: int) -> Callable[[], None]:
    def check() -> None:
        assert len(world.living()) <= 1, world.living()
        assert len(world.ever()) <= count, world.ever()

    return check


@pytest.mark.parametrize(("name", "kind", "phase"), SCENES)
def test_a_run_outlasts_an_outage_on_the_instance_it_has(tmp_path: Path, name: str, kind: str, phase: Phase) -> None:
    with stepped_world(tmp_path, name) as world:
        only_one = at_most(world, 1)
        world.until(phase, check=only_one)
        outage(world, name, kind, check=only_one)
        run = world.until(Phase.SUCCEEDED, Phase.FAILED, check=only_one)
        assert [a.outcome for a in run.attempts] == [Outcome.SUCCEEDED]


@pytest.mark.parametrize("is_rented", [True, False], ids=["rented", "not rented"])
@pytest.mark.parametrize("name", NAMES)
def test_an_outage_that_swallows_the_answer_to_create(tmp_path: Path, name: str, *, is_rented: bool) -> None:
    with stepped_world(tmp_path, name) as world:
        lost = faults.RESET.after_effect() if is_rented else faults.RESET
        world.fakes[name].faults.on("create", lost)
        only_one = at_most(world, 1)
        while not world.run.attempts:
            world.go_on(only_one)
        assert len(world.ever()) == int(is_rented)
        outage(world, name, "503", check=at_most(world, int(is_rented)))
        run = world.until(Phase.SUCCEEDED, Phase.FAILED, check=only_one)
        assert run.phase is Phase.SUCCEEDED
        assert len(world.ever()) == 1


@pytest.mark.parametrize("name", NAMES)
def test_an_outage_in_which_the_instance_is_silent_too(tmp_path: Path, name: str) -> None:
    """Our own line is down, or a data center: nobody answers, and the instance trains on or waits."""
    with stepped_world(tmp_path, name) as world:
        only_one = at_most(world, 1)
        world.until(Phase.RUNNING, check=only_one)
        world.is_cut_off = True
        outage(world, name, "a broken connection", check=only_one)
        world.is_cut_off = False
        run = world.until(Phase.SUCCEEDED, Phase.FAILED, check=only_one)
        assert [a.outcome for a in run.attempts] == [Outcome.SUCCEEDED]


@pytest.mark.parametrize("how", ["outbid", "vanish"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_lost_in_an_outage_is_replaced_after_it(tmp_path: Path, name: str, how: str) -> None:
    with stepped_world(tmp_path, name) as world:
        while world.stored_step() < 20:
            world.go_on(at_most(world, 1))
        world.preempt(how)
        outage(world, name, "503", check=at_most(world, 1))
        first = len(world.ever())
        run = world.until(Phase.SUCCEEDED, Phase.FAILED, check=at_most(world, first + 2))
        assert [a.outcome for a in run.attempts if not a.refused] == [Outcome.PREEMPTED, Outcome.SUCCEEDED]


def test_of_two_marketplaces_one_goes_down_and_the_other_goes_on(tmp_path: Path) -> None:
    """The run is at the one that is up: the other's silence is none of its business, and nothing is rented there."""
    with stepped_world(tmp_path, "runpod", "vastai") as world:
        world.until(Phase.RUNNING)
        (here,) = {one.partition("/")[0] for one in world.living()}
        (there,) = {"runpod", "vastai"} - {here}
        world.fakes[there].faults.from_now_on(faults.ANY, faults.UNAVAILABLE)
        run = world.until(Phase.SUCCEEDED, Phase.FAILED, check=at_most(world, 1))
        assert [(a.outcome, a.offer.provider) for a in run.attempts] == [(Outcome.SUCCEEDED, here)]


@pytest.mark.parametrize("how", ["outbid", "vanish"])
def test_what_one_marketplace_takes_the_other_gives(tmp_path: Path, how: str) -> None:
    """The cheapest wins; it takes the instance away, and has no more offers then."""
    with stepped_world(tmp_path, *NAMES) as world:
        while world.stored_step() < 20:
            world.go_on(at_most(world, 1))
        (here,) = {one.partition("/")[0] for one in world.living()}
        (there,) = set(NAMES) - {here}
        world.fakes[here].faults.from_now_on(OFFERS[here], faults.UNAVAILABLE)
        world.preempt(how)
        run = world.until(Phase.SUCCEEDED, Phase.FAILED, check=at_most(world, 2))
        rented = [(a.outcome, a.offer.provider) for a in run.attempts if not a.refused]
        assert rented == [(Outcome.PREEMPTED, here), (Outcome.SUCCEEDED, there)]


@pytest.mark.parametrize("how", ["outbid", "vanish"])
@pytest.mark.parametrize("name", NAMES)
def test_from_gone_to_training_again_takes_half_a_minute_and_the_boot(tmp_path: Path, name: str, how: str) -> None:
    """Outbid, from the first look that sees it stopped; vanished, from the second "not found" that it takes to believe it."""
    with stepped_world(tmp_path, name) as world:
        while world.stored_step() < 20:
            world.go_on()
        world.preempt(how)
        told_at = world.clock.now()  # the next look is at once
        while not world.is_training():
            world.go_on()
        lost = world.run.attempts[0]
        assert lost.ended_at is not None
        if how == "vanish":
            told_at = lost.ended_at
        assert (world.clock.now() - told_at).total_seconds() < 30 + BOOT_S[name]
        world.until(Phase.SUCCEEDED, Phase.FAILED)
