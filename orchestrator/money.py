"""The ledger: what was rented, for how long, at what price. Pure, and rather a cent too much than one too little."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from orchestrator.types import Attempt, Outcome, Run


@dataclass(frozen=True, slots=True)
class Entry:
    """What one attempt has cost so far. `is_open` while its instance may still bill."""

    attempt: int
    usd_per_hour: Decimal
    hours: Decimal
    usd: Decimal
    is_open: bool
    is_billed: bool = False  # by the marketplace's own word, not by our clock


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every attempt's cost. `allowance_usd` counts only from the last re-opening: that is what the budget limits."""

    entries: tuple[Entry, ...]
    total_usd: Decimal
    allowance_usd: Decimal

    @property
    def usd_per_hour(self) -> Decimal:
        """What the run costs right now."""
        return sum((e.usd_per_hour for e in self.entries if e.is_open), Decimal(0))


def ledger(run: Run, now: datetime) -> Ledger:
    """From the first moment an instance may have billed to the moment it was proved gone, or to now."""
    entries = tuple(_entry(attempt, now) for attempt in run.attempts)
    total = sum((e.usd for e in entries), Decimal(0))
    allowance = sum((e.usd for e in entries if e.attempt > run.attempts_at_resume), Decimal(0))
    return Ledger(entries, total, allowance)


def _entry(attempt: Attempt, now: datetime) -> Entry:
    # The intent is when billing may begin: a create whose answer was lost bills all the same.
    price = attempt.usd_per_hour if attempt.usd_per_hour is not None else attempt.offer.usd_per_hour
    if _was_never_rented(attempt):
        return Entry(attempt.number, price, Decimal(0), Decimal(0), is_open=False)
    hours = _hours(attempt.intended_at, _end(attempt, now))
    is_open = attempt.ended_at is None
    if attempt.bill is not None and attempt.bill.is_final:
        return Entry(attempt.number, price, hours, attempt.bill.usd, is_open=is_open, is_billed=True)
    idle_hours = min(hours, _idle_hours(attempt, now))
    told = attempt.offer.idle_usd_per_hour
    idle_price = price if told is None else min(price, told)
    usd = (hours - idle_hours) * price + idle_hours * idle_price
    if attempt.bill is not None:  # not yet the last word: billing runs behind, but what is charged is charged
        usd = max(usd, attempt.bill.usd)
    return Entry(attempt.number, price, hours, usd, is_open=is_open)


def _end(attempt: Attempt, now: datetime) -> datetime:
    """When billing was over. It takes two "not found" to be certain; of what had an id, the first was the end."""
    if attempt.ended_at is None:
        return now
    return (attempt.missing_since or attempt.ended_at) if attempt.instance_id else attempt.ended_at


def _idle_hours(attempt: Attempt, now: datetime) -> Decimal:
    """How long only its disk was billed: stopped, and, where the marketplace charges so, starting."""
    end, running = _end(attempt, now), attempt.running_at
    idle = Decimal(0)
    if attempt.stopped_at:
        idle += _hours(max(attempt.stopped_at, running or attempt.stopped_at), end)
    if not attempt.offer.starting_bills:
        idle += _hours(attempt.intended_at, running or attempt.stopped_at or end)
    return idle


def _hours(since: datetime, until: datetime) -> Decimal:
    return max(Decimal(0), Decimal(str((until - since).total_seconds()))) / 3600


def _was_never_rented(attempt: Attempt) -> bool:
    """The provider said so. What never appeared may have lived and vanished between two looks, and may have billed."""
    was_looked_for = attempt.missing_since is not None
    is_over = attempt.outcome is Outcome.NOT_LAUNCHED and attempt.ended_at is not None
    return is_over and attempt.instance_id is None and not was_looked_for
