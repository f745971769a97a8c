"""Runs, attempts and instances made to measure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from orchestrator.states import Seen
from orchestrator.types import (
    ArtifactManifest,
    Attempt,
    ExitRecord,
    Heartbeat,
    Instance,
    InstanceId,
    InstanceState,
    Namespace,
    Offer,
    Outcome,
    Phase,
    Run,
    RunId,
    token_for,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NAMESPACE = Namespace("abcdef")
RUN_ID = RunId("0123456789")
OFFER = Offer("sim", "offer-0", Decimal("0.36"), spot=True, host_id="host-0")


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def ahead(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def attempt(number: int = 1, **changes: Any) -> Attempt:
    """An attempt whose instance has been up for an hour."""
    base = Attempt(
        number=number,
        token=token_for(NAMESPACE, RUN_ID, number),
        provider="sim",
        offer=OFFER,
        intended_at=ago(3600),
        quiet_after=ago(3400),
        instance_id=InstanceId(f"i-{number}"),
        created_at=ago(3590),
        first_seen_at=ago(3580),
    )
    return replace(base, **changes)


def ended(number: int, outcome: Outcome = Outcome.PREEMPTED, **changes: Any) -> Attempt:
    """An attempt that is over, its instance proved gone."""
    return attempt(number, **{"outcome": outcome, "reason": "it ended", "ended_at": ago(60), **changes})


def run(phase: Phase, *attempts: Attempt, **changes: Any) -> Run:
    base = Run(
        run_id=RUN_ID,
        name="a run",
        namespace=NAMESPACE,
        created_at=ago(4000),
        recipe_sha256="r" * 64,
        data_sha256="d" * 64,
        provider="sim",
        phase=phase,
        attempts=attempts,
    )
    return replace(base, **changes)


def instance(number: int = 1, state: InstanceState = InstanceState.RUNNING, **changes: Any) -> Instance:
    base = Instance(
        instance_id=InstanceId(f"i-{number}"), token=token_for(NAMESPACE, RUN_ID, number), provider="sim", state=state
    )
    return replace(base, **changes)


def seen(*listed: Instance, **changes: Any) -> Seen:
    """A complete list, and nothing else, unless said otherwise."""
    return replace(Seen(listed=listed), **changes)


def beat(age_s: float = 10, **changes: Any) -> dict[str, Any]:
    """A heartbeat that the store received so long ago."""
    return {"heartbeat": replace(Heartbeat(1, 5, "training", step=40), **changes), "heartbeat_at": ago(age_s)}


def exit_record(number: int, code: int, outcome: Outcome) -> ExitRecord:
    return ExitRecord(number, code, outcome, f"exit {code}", step=50, max_steps=100)


def artifact(number: int) -> ArtifactManifest:
    return ArtifactManifest(RUN_ID, 100, 100, number, NOW, (), "r" * 64, "d" * 64)
