"""How patient to be with a provider, and how long an instance may live by itself."""

from __future__ import annotations

from decimal import Decimal

import pytest

from orchestrator.policy import instance_life_s, policy_for
from orchestrator.types import Limits, Phase, Run
from tests.unit.cases import NOW, ago, run


def test_a_marketplace_gets_half_a_minute_between_two_absences_and_time_for_a_create_under_way() -> None:
    policy = policy_for(list_lag_s=20, create_timeout_s=60)
    assert policy.absence_gap_s == 30
    assert policy.quiet_s == 30 + 60 + 20


def test_this_very_machine_is_believed_quickly_but_not_at_once() -> None:
    assert 0 < policy_for(list_lag_s=0, create_timeout_s=10).absence_gap_s <= 1


def life(limits: Limits, *, price: str = "0.50", spent: str = "0", **changes: object) -> float:
    given: Run = run(Phase.PENDING, limits=limits, created_at=ago(600), **changes)
    return instance_life_s(given, usd_per_hour=Decimal(price), spent_usd=Decimal(spent), now=NOW)


@pytest.mark.parametrize(
    ("limits", "spent", "seconds"),
    [
        (Limits(), "0", 86_400),
        (Limits(instance_deadline_s=300), "0", 300),  # what the recipe says, however short
        (Limits(budget_usd=Decimal(1)), "0", 7200 + 300),
        (Limits(budget_usd=Decimal(1)), "0.75", 1800 + 300),
        (Limits(budget_usd=Decimal(1)), "5", 600),  # never shorter than it takes to start and save
        (Limits(budget_usd=Decimal(1000)), "0", 86_400),
        (Limits(deadline_s=3600), "0", 3000 + 300),
        (Limits(deadline_s=60), "0", 600),
    ],
)
def test_the_tightest_limit_is_the_instances_own(limits: Limits, spent: str, seconds: float) -> None:
    assert life(limits, spent=spent) == seconds


def test_what_costs_nothing_is_not_limited_by_the_budget() -> None:
    assert life(Limits(budget_usd=Decimal(0)), price="0") == 86_400


def test_a_deadline_counts_from_the_last_resume() -> None:
    assert life(Limits(deadline_s=3600), resumed_at=NOW) == 3600 + 300
