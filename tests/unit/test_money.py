"""The ledger: what was rented, for how long, at what price."""

from __future__ import annotations

from decimal import Decimal

from orchestrator.money import ledger
from orchestrator.types import Outcome, Phase
from tests.unit.cases import NOW, ago, attempt, ended, run


def test_a_living_instance_costs_until_now() -> None:
    told = ledger(run(Phase.RUNNING, attempt()), NOW)
    assert told.total_usd == Decimal("0.36")
    assert told.usd_per_hour == Decimal("0.36")
    assert [(e.hours, e.is_open) for e in told.entries] == [(Decimal(1), True)]


def test_an_instance_costs_until_it_is_proved_gone_and_not_until_it_was_asked_to_go() -> None:
    gone = ended(1, terminate_asked_at=ago(2000), ended_at=ago(1800))
    told = ledger(run(Phase.PENDING, gone), NOW)
    assert told.total_usd == Decimal("0.18")
    assert told.usd_per_hour == 0


def test_what_was_never_rented_costs_nothing() -> None:
    refused = ended(1, Outcome.NOT_LAUNCHED, instance_id=None, first_seen_at=None)
    assert ledger(run(Phase.PENDING, refused), NOW).total_usd == 0


def test_what_never_appeared_may_have_billed_until_it_was_believed_absent() -> None:
    sought = ended(
        1, Outcome.NOT_LAUNCHED, instance_id=None, first_seen_at=None, missing_since=ago(1830), ended_at=ago(1800)
    )
    assert ledger(run(Phase.PENDING, sought), NOW).total_usd == Decimal("0.18")


def test_what_may_have_been_rented_costs_from_the_intent_on() -> None:
    unclear = attempt(instance_id=None, first_seen_at=None, created_at=None)
    assert ledger(run(Phase.PROVISIONING, unclear), NOW).total_usd == Decimal("0.36")


def test_an_id_is_a_bill_even_if_the_instance_never_appeared() -> None:
    odd = ended(1, Outcome.NOT_LAUNCHED, first_seen_at=None, ended_at=NOW)
    assert ledger(run(Phase.PENDING, odd), NOW).total_usd == Decimal("0.36")


def test_attempts_add_up_and_a_resume_starts_a_new_allowance() -> None:
    both = run(Phase.RUNNING, ended(1, ended_at=ago(1800)), attempt(2), attempts_at_resume=1)
    told = ledger(both, NOW)
    assert told.total_usd == Decimal("0.54")
    assert told.allowance_usd == Decimal("0.36")


def test_a_clock_that_jumped_back_never_pays_out() -> None:
    assert ledger(run(Phase.RUNNING, attempt(intended_at=NOW)), ago(100)).total_usd == 0
