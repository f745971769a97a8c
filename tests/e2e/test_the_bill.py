"""The ledger against the marketplace's own meter: while a run goes on, and once the bill is there."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator import keys, reconcile
from orchestrator.types import Outcome, Phase
from tests.e2e.stepped import SteppedWorld, stepped_world

LOOK_EVERY_S = 15  # the longest time between two passes over a run that bills
A_HUNDREDTH = Decimal("0.01")
HOW = ("outbid", "vanish")


def check_running(world: SteppedWorld) -> None:
    """Per attempt: no further off than what one interval costs. Traffic is only on the bill.

    What is missing counts on until it is proved gone: it may be there after all, and then it has billed.
    """
    attempts = {a.number: a for a in world.run.attempts}
    for entry, name, own in world.entries():
        missing_since = attempts[entry.attempt].missing_since if entry.is_open else None
        doubtful_s = (world.clock.now() - missing_since).total_seconds() if missing_since else 0.0
        charged = world.meter(name).charges(own)
        off = abs(entry.usd - charged.gpu_usd - charged.disk_usd)
        assert off <= entry.usd_per_hour * Decimal(LOOK_EVERY_S + doubtful_s) / 3600, (entry, charged)


def preempted_twice(world: SteppedWorld, how: str) -> None:
    for stored in (20, 50):
        while world.stored_step() < stored:
            world.go_on(lambda: check_running(world))
        world.let_pass(7)  # in the middle between two looks
        world.preempt(how)
    run = world.until(Phase.SUCCEEDED, Phase.FAILED, check=lambda: check_running(world))
    assert [a.outcome for a in run.attempts if not a.refused] == [
        Outcome.PREEMPTED,
        Outcome.PREEMPTED,
        Outcome.SUCCEEDED,
    ]
    assert world.longest_wait_s <= LOOK_EVERY_S


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["runpod", "vastai"])
def test_while_a_run_goes_on_its_ledger_is_no_further_off_than_one_look(tmp_path: Path, name: str, how: str) -> None:
    with stepped_world(tmp_path, name) as world:
        preempted_twice(world, how)
        check_running(world)
        assert Decimal("0.1") < world.ledger.total_usd < Decimal(1)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["runpod", "vastai"])
def test_once_the_bill_is_there_the_ledger_says_what_was_charged(tmp_path: Path, name: str, how: str) -> None:
    with stepped_world(tmp_path, name) as world:
        preempted_twice(world, how)
        meter = world.meter(name)
        for _, _, own in world.entries():
            meter.traffic(own, down_gb=14.0, up_gb=2.5)  # at a price where the marketplace has one
        assert [*world.bucket.children(keys.UNBILLED)] == [world.run_id]
        world.let_pass(2 * 3600)
        assert reconcile.reconcile_all(world.context).troubles == []
        rented = {entry.attempt for entry, _, _ in world.entries()}
        assert rented == {entry.attempt for entry in world.ledger.entries if entry.is_billed}
        off = abs(world.ledger.total_usd - meter.total_usd())
        assert off <= meter.total_usd() * A_HUNDREDTH
        assert [*world.bucket.children(keys.UNBILLED)] == []
        if name == "vastai":
            assert meter.charges(meter.ever()[0]).traffic_usd > Decimal("0.05")
