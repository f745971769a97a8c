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
    price = attempt.offer.usd_per_hour
    if _was_never_rented(attempt):
        return Entry(attempt.number, price, Decimal(0), Decimal(0), is_open=False)
    until = attempt.ended_at or now
    seconds = max(Decimal(0), Decimal(str((until - attempt.intended_at).total_seconds())))
    hours = seconds / 3600
    return Entry(attempt.number, price, hours, hours * price, is_open=attempt.ended_at is None)


def _was_never_rented(attempt: Attempt) -> bool:
    """The provider said so. What never appeared may have lived and vanished between two looks, and may have billed."""
    was_looked_for = attempt.missing_since is not None
    is_over = attempt.outcome is Outcome.NOT_LAUNCHED and attempt.ended_at is not None
    return is_over and attempt.instance_id is None and not was_looked_for
