"""How patient to be with a provider, and how long an instance may live. Pure."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from orchestrator.absence import Policy
from orchestrator.types import Run

EMBEDDED_GAP_S = 1.0  # a provider without list lag is this very machine: its answers do not hiccup
EMBEDDED_LOOK_S = 1.0  # and asking it costs nothing
SAVING_MARGIN_S = 300.0  # beyond the budget's end, for the last save and upload
SHORTEST_LIFE_S = 600.0  # shorter, and an instance ends itself before its agent has started


def policy_for(*, list_lag_s: float, create_timeout_s: float) -> Policy:
    """The patience that a provider's declared behaviour calls for."""
    if list_lag_s <= 0:
        return Policy(
            list_lag_s=0,
            create_timeout_s=create_timeout_s,
            absence_gap_s=EMBEDDED_GAP_S,
            look_every_s=EMBEDDED_LOOK_S,
        )
    return Policy(list_lag_s=list_lag_s, create_timeout_s=create_timeout_s)


def instance_life_s(run: Run, *, usd_per_hour: Decimal, spent_usd: Decimal, now: datetime) -> float:
    """The limit the instance itself keeps, so that budget and deadline hold even if nobody ever looks again."""
    limits = run.limits
    life = limits.instance_deadline_s
    if limits.budget_usd is not None and usd_per_hour > 0:
        left = max(Decimal(0), limits.budget_usd - spent_usd)
        life = min(life, float(left / usd_per_hour) * 3600 + SAVING_MARGIN_S)
    if limits.deadline_s is not None:
        since = run.resumed_at or run.created_at
        life = min(life, limits.deadline_s - (now - since).total_seconds() + SAVING_MARGIN_S)
    return max(SHORTEST_LIFE_S, life) if life < limits.instance_deadline_s else life
