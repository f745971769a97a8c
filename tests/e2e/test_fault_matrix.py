"""Every call to a marketplace, failing in every way there is: one instance at most, and nothing billing at the end."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator import reconcile
from orchestrator.errors import TuneError
from orchestrator.providers.retrying import ATTEMPTS
from orchestrator.providers.sim.state import Climate
from orchestrator.types import Outcome, Phase, Run
from tests.cloud.faults import EVERY_KIND, Fault
from tests.cloud.meter import Meter, Rates
from tests.e2e.stepped import SteppedWorld

HASTE_S = 0.4  # of real time, until an answer that never comes is given up; anything else comes at once
SHORT = Climate(total_steps=10, step_s=12.0, checkpoint_steps=5)
CALLS = {
    "vastai": ("search", "create", "attach", "list", "show", "destroy", "charges"),
    "runpod": ("catalog", "create", "list", "get", "delete", "billing"),
}
MATRIX = [(name, call, fault) for name in sorted(CALLS) for call, fault in itertools.product(CALLS[name], EVERY_KIND)]
LASTING = [cell for cell in MATRIX if not cell[2].is_silent]


class _Hurried:
    """A provider or an account whose every call gives up soon."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        return (lambda *args, **kwargs: real(*args, **{**kwargs, "timeout_s": HASTE_S})) if callable(real) else real


class _CountingMeter(Meter):
    """Looks in the very moment of renting, not only between two passes."""

    most = 0

    def created(self, instance_id: str, rates: Rates) -> None:
        super().created(instance_id, rates)
        self.most = max(self.most, len(self.live()))


class _World(SteppedWorld):
    def _vastai(self) -> tuple[Any, Any, Any]:
        provider, account, farewell = super()._vastai()
        self.fakes["vastai"].meter = _CountingMeter(self.clock)
        return _Hurried(provider), _Hurried(account), farewell

    def _runpod(self) -> tuple[Any, Any, Any]:
        provider, account, farewell = super()._runpod()
        self.fakes["runpod"].meter = _CountingMeter(self.clock)
        return _Hurried(provider), _Hurried(account), farewell

    def check(self) -> None:
        assert len(self.living()) <= 1, self.living()


@contextlib.contextmanager
def _world(root: Path, name: str) -> Iterator[_World]:
    world = _World(root, [name], climate=SHORT)
    try:
        yield world
    finally:
        world.close()
    meter = world.meter(name)
    assert isinstance(meter, _CountingMeter)
    assert meter.most <= 1, "two were rented at once"
    assert world.living() == [], "something is still billing"


def live(world: _World, name: str) -> Run:
    """Rent, lose the instance, rent again, come to an end, and ask for the bills once they are there."""
    while world.stored_step() < SHORT.checkpoint_steps and not world.run.phase.is_terminal:
        world.go_on(world.check)
    if not world.run.phase.is_terminal:
        world.preempt()
    run = world.until(Phase.SUCCEEDED, Phase.FAILED, check=world.check)
    world.clock.step(2 * 3600)
    for _ in range(2):  # what fails once is asked for again
        reconcile.reconcile_all(world.context)
    return run


def check_bills(world: _World, name: str) -> None:
    """What was rented is billed; beside that the ledger doubts what nobody can prove never to have been."""
    entries = world.ledger.entries
    charged = world.meter(name).total_usd()
    assert abs(sum(e.usd for e in entries if e.is_billed) - charged) <= charged / 100
    assert world.ledger.total_usd >= charged * Decimal("0.99")


@pytest.mark.parametrize(("name", "call", "fault"), MATRIX, ids=str)
def test_a_call_that_fails_once_costs_nothing_but_time(tmp_path: Path, name: str, call: str, fault: Fault) -> None:
    with _world(tmp_path, name) as world:
        script = world.fakes[name].faults
        script.on(call, fault)
        run = live(world, name)
        assert script.met == [(call, fault)]
        assert run.phase is Phase.SUCCEEDED, (run.reason, world.troubles)
        rented = [a.outcome for a in run.attempts if not a.refused and a.outcome is not Outcome.NOT_LAUNCHED]
        assert rented == [Outcome.PREEMPTED, Outcome.SUCCEEDED]
        check_bills(world, name)


@pytest.mark.slow
@pytest.mark.parametrize("times", [ATTEMPTS, 3 * ATTEMPTS])
@pytest.mark.parametrize(("name", "call", "fault"), LASTING, ids=str)
def test_a_call_that_fails_for_long_ends_in_success_or_in_a_reason(
    tmp_path: Path, name: str, call: str, fault: Fault, times: int
) -> None:
    """Longer than one call is repeated, so that whole passes come to nothing."""
    with _world(tmp_path, name) as world:
        script = world.fakes[name].faults
        script.on(call, fault, times=times)
        run = live(world, name)
        assert script.met
        assert run.phase is Phase.SUCCEEDED or (call == "create" and run.reason), (run.reason, world.troubles)


ASKED = {"vastai": {"balance": "user", "billed": "charges", "rebid": "bid"}, "runpod": {"balance": "graphql"}}


@pytest.mark.parametrize("fault", EVERY_KIND, ids=str)
@pytest.mark.parametrize(("name", "question"), [(name, asked) for name in sorted(ASKED) for asked in ASKED[name]])
def test_a_question_about_money_is_answered_or_refused_in_words(
    tmp_path: Path, name: str, question: str, fault: Fault
) -> None:
    """No run asks these while it goes on; commands do, and print what they are told."""
    with _world(tmp_path, name) as world:
        world.until(Phase.BOOTSTRAPPING)
        attempt = world.run.attempt
        assert attempt is not None
        assert attempt.instance_id is not None
        account = world.context.bound(name).account
        assert account is not None
        now = world.clock.now()
        ask: dict[str, Callable[[], object]] = {
            "balance": account.balance_usd,
            "billed": lambda: account.billed(attempt.instance_id, since=attempt.intended_at, until=now),  # type: ignore[arg-type]
            "rebid": lambda: account.rebid(attempt.instance_id, Decimal("0.3")),  # type: ignore[arg-type]
        }
        script = world.fakes[name].faults
        script.from_now_on(ASKED[name][question], fault)
        answer = None
        with contextlib.suppress(TuneError):  # anything else is a bug
            answer = ask[question]()
            assert question == "balance", "a fault was taken for an answer"
        assert answer is None
        assert script.met
        script.clear()
        world.until(Phase.SUCCEEDED)
