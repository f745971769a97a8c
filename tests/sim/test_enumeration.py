"""Crash enumeration: at every side effect of an orchestrator something else happens, and the right end still comes."""

from __future__ import annotations

import pytest

from tests.sim import enumeration
from tests.sim.enumeration import BETWEEN_READS, INTERRUPTIONS, SCENARIOS, Interruption, Scenario
from tests.sim.world import Broken, Product

QUICK_STEP = 3  # every third moment, each interruption starting at another one


def _play(scenario: Scenario, interruption: Interruption, *, start: int, every: int, reads: bool = False) -> int:
    product = Product()
    count, length_s = enumeration.moments(scenario, product, reads=reads)
    for moment in range(start, count, every):
        world = enumeration.interrupted(scenario, interruption, moment, product, reads=reads)
        latest_s = enumeration.latest_end_s(length_s, interruption)
        if world.now_s > latest_s:
            raise Broken(f"moment {moment}: took {world.now_s:.0f} s instead of {latest_s:.0f} at most")
    return len(range(start, count, every))


@pytest.mark.parametrize("interruption", INTERRUPTIONS, ids=lambda i: i.name)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_the_right_end_comes_in_time(scenario: Scenario, interruption: Interruption) -> None:
    start = INTERRUPTIONS.index(interruption) % QUICK_STEP
    assert _play(scenario, interruption, start=start, every=QUICK_STEP) >= 5


@pytest.mark.parametrize("interruption", BETWEEN_READS, ids=lambda i: i.name)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_what_was_read_a_moment_ago_is_not_trusted_too_far(scenario: Scenario, interruption: Interruption) -> None:
    start = BETWEEN_READS.index(interruption)
    assert _play(scenario, interruption, start=start, every=QUICK_STEP, reads=True) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("interruption", BETWEEN_READS, ids=lambda i: i.name)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_what_was_read_at_any_moment_is_not_trusted_too_far(scenario: Scenario, interruption: Interruption) -> None:
    assert _play(scenario, interruption, start=0, every=1, reads=True) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("interruption", INTERRUPTIONS, ids=lambda i: i.name)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_the_right_end_comes_in_time_at_every_moment(scenario: Scenario, interruption: Interruption) -> None:
    assert _play(scenario, interruption, start=0, every=1) >= 20
