"""Weather and people in any order: after every step the promises hold, and in fair weather the run comes to its end."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from orchestrator.types import Limits, Outcome, Phase
from tests.sim.world import QUICK, Killed, Product, World

BRIEF = replace(QUICK, total_steps=4, checkpoint_steps=1, step_s=60.0)
GAPS = st.sampled_from([0.0, 0.0, 1.0, 5.0, 15.0, 29.0, 31.0, 60.0, 130.0, 400.0, 1000.0, 4000.0])
SELDOM = st.integers(0, 7)  # rules that end a run act on one draw of eight, or the interesting phases are never reached
AT = st.integers(0, 5)  # few passes have more side effects
WHEN = st.sampled_from(["before", "after", "read"])
WARM = st.sampled_from(
    [Phase.PENDING, Phase.PENDING, Phase.PROVISIONING, Phase.BOOTSTRAPPING, Phase.RUNNING, Phase.TERMINATING]
)
CREATES = st.sampled_from(["ok", "refused", "lost", "never", "unavailable"])


class Machine(RuleBasedStateMachine):
    """One run, and everything that can befall it."""

    product = Product()

    @initialize(
        start=WARM,
        attempts=st.integers(1, 4),
        budget=st.sampled_from([None, None, "0.05"]),
        ends_itself=st.booleans(),
        lag_s=st.sampled_from([0.0, 20.0]),
        creates=st.lists(CREATES, max_size=2),
        then=st.sampled_from(["fair", "fair", "partition", "outbid", "vanish"]),
    )
    def begin(
        self,
        *,
        start: Phase,
        attempts: int,
        budget: str | None,
        ends_itself: bool,
        lag_s: float,
        creates: list[str],
        then: str,
    ) -> None:
        """Start anywhere, with something having happened already."""
        limits = Limits(max_attempts=attempts, budget_usd=Decimal(budget) if budget else None)
        self.world = World(self.product, replace(BRIEF, ends_itself=ends_itself, list_lag_s=lag_s), limits)
        self.world.least_wait_s = 10.0
        self.empty_lists = 0
        self.world.weather(creates=list(creates))
        if start is Phase.TERMINATING:
            self.world.until(Phase.RUNNING, Phase.FAILED)
            self.world.outbid()
        self.world.until(start, Phase.SUCCEEDED, Phase.FAILED, passes=2000)
        if start in (Phase.BOOTSTRAPPING, Phase.RUNNING):
            getattr(self.world, then)()

    @rule(gap=GAPS)
    def time_passes(self, gap: float) -> None:
        self.world.advance(gap)

    @rule(gap=GAPS, times=st.integers(1, 4))
    def somebody_looks(self, gap: float, times: int) -> None:
        for _ in range(times):
            self.world.one_pass()
            self.world.advance(gap)

    @rule(at=AT, when=st.sampled_from(["before", "after"]))
    def an_orchestrator_dies(self, at: int, when: str) -> None:
        self._interrupt(at, when, self._die)

    @rule(at=AT, when=WHEN, gap=st.sampled_from([0.0, 1.0, 20.0]))
    def two_look_at_once(self, at: int, when: str, gap: float) -> None:
        def other() -> None:
            self.world.advance(gap)
            self.world.one_pass()

        self._interrupt(at, when, other)

    @rule(at=AT, when=WHEN, at_once=st.booleans(), seldom=SELDOM)
    def the_user_stops_it(self, at: int, when: str, at_once: bool, seldom: int) -> None:
        if seldom == 0:
            self._interrupt(at, when, lambda: self.world.stop(at_once=at_once))

    @precondition(lambda self: self.world.run.phase in (Phase.FAILED, Phase.CANCELLED))
    @rule()
    def the_user_opens_it_again(self) -> None:
        self.world.reopen()

    @rule(
        what=st.sampled_from(
            ["api_down", "terminate_broken", "remote_down", "bucket_down", "never_boots", "no_capacity"]
        ),
        on=st.booleans(),
    )
    def the_weather_changes(self, what: str, on: bool) -> None:
        self.world.weather(**{what: on})

    @rule(how=st.lists(CREATES, min_size=1, max_size=3))
    def creates_will_go(self, how: list[str]) -> None:
        self.world.weather(creates=list(how))

    @rule(times=st.integers(1, 2))
    def the_list_is_empty_by_mistake(self, times: int) -> None:
        """While no id is known, two such lists are a proof by the rules; so much bad luck is not simulated."""
        current = self.world.run.attempt
        if current and current.instance_id is None and not current.ended_at and (self.empty_lists or times > 1):
            return
        self.empty_lists += 1
        self.world.weather(lists_nothing=True)
        for _ in range(times):
            self.world.one_pass()
        self.world.weather(lists_nothing=False)

    @rule(what=st.sampled_from(["outbid", "vanish", "wake", "partition", "fair"]))
    def something_befalls_the_instance(self, what: str) -> None:
        getattr(self.world, what)()

    @rule(
        outcome=st.sampled_from([Outcome.USER_ERROR, Outcome.SETUP_FAILED, Outcome.HOST_FAULT, Outcome.OOM]),
        seldom=SELDOM,
    )
    def the_recipe_fails(self, outcome: Outcome, seldom: int) -> None:
        if seldom == 0:
            self.world.fail(outcome)

    @rule(seldom=SELDOM, then=st.sampled_from(["nothing", "outbid", "partition", "vanish"]), silently=st.booleans())
    def the_recipe_finishes(self, seldom: int, then: str, silently: bool) -> None:
        if seldom > 1:
            return
        if silently:
            self.world.die_before_exit()
        self.world.finish()
        if then != "nothing":
            getattr(self.world, then)()

    @rule(gap=GAPS)
    def somebody_sweeps(self, gap: float) -> None:
        self.world.sweep(confirm_s=10)
        self.world.check()
        self.world.advance(gap)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()

    def _die(self) -> None:
        raise Killed

    def _interrupt(self, at: int, when: str, happens: Any) -> None:
        seen = 0

        def tap(now: str, _what: str) -> None:
            nonlocal seen
            if now == when:
                seen += 1
                if seen == at + 1:
                    happens()

        try:
            self.world.one_pass(tap)
        except Killed:
            self.world.check()


def explore(machine: type[Machine], *, examples: int, steps: int, **more: Any) -> None:
    """Search; hypothesis shows the shortest story that breaks a promise."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            **more,
        ),
    )


def test_whatever_happens_nothing_is_left_billing_and_the_run_ends() -> None:
    explore(Machine, examples=2000, steps=12)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whatever_happens_for_longer() -> None:
    explore(Machine, examples=6000, steps=30)
