"""The ledger: what was rented, for how long, at what price."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from orchestrator.money import ledger
from orchestrator.types import Bill, Offer, Outcome, Phase
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


def test_a_price_read_back_from_the_marketplace_is_the_one_that_counts() -> None:
    told = ledger(run(Phase.RUNNING, attempt(usd_per_hour=Decimal("0.50"))), NOW)
    assert told.total_usd == Decimal("0.50")


def test_while_stopped_only_the_disk_costs() -> None:
    outbid = ended(1, running_at=ago(3600), stopped_at=ago(1800), ended_at=NOW, offer=_with_idle("0.02"))
    assert ledger(run(Phase.PENDING, outbid), NOW).total_usd == Decimal("0.18") + Decimal("0.01")


def test_a_marketplace_that_charges_no_gpu_while_it_starts_is_not_counted_so() -> None:
    boots = attempt(running_at=ago(1800), offer=_with_idle("0.02", starting_bills=False))
    assert ledger(run(Phase.RUNNING, boots), NOW).total_usd == Decimal("0.01") + Decimal("0.18")


def test_the_first_not_found_is_the_end_of_billing_and_the_second_the_proof() -> None:
    gone = ended(1, missing_since=ago(1830), ended_at=ago(1800))
    assert ledger(run(Phase.PENDING, gone), NOW).total_usd == Decimal("0.177")


def test_what_the_marketplace_has_charged_replaces_what_our_clock_says() -> None:
    bill = Bill(gpu_usd=Decimal("0.2"), disk_usd=Decimal("0.01"), traffic_usd=Decimal("0.03"), is_final=True)
    told = ledger(run(Phase.PENDING, ended(1, bill=bill)), NOW)
    assert told.total_usd == Decimal("0.24")
    assert told.entries[0].is_billed


def test_a_bill_that_is_not_the_last_word_only_adds() -> None:
    late = ended(1, bill=Bill(gpu_usd=Decimal("0.01")))
    assert ledger(run(Phase.PENDING, late), NOW).total_usd == ledger(run(Phase.PENDING, ended(1)), NOW).total_usd
    dear = ended(1, bill=Bill(gpu_usd=Decimal(9)))
    assert ledger(run(Phase.PENDING, dear), NOW).total_usd == 9


def _with_idle(usd: str, **changes: object) -> Offer:
    return replace(attempt().offer, idle_usd_per_hour=Decimal(usd), **changes)  # type: ignore[arg-type]
