"""What there is to say of a run: gathered once, shown as lines, as a live view or as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.errors import StorageError

if TYPE_CHECKING:
    from datetime import datetime
    from decimal import Decimal

    from orchestrator.storage.runs import RunStore, StoredCheckpoint
    from orchestrator.types import Attempt, Heartbeat, Run


@dataclass(frozen=True, slots=True)
class View:
    """A run as the bucket shows it at one moment of the store's clock."""

    run: Run
    now: datetime
    spent_usd: Decimal
    heartbeat: Heartbeat | None = None
    heard_at: datetime | None = None
    checkpoint: StoredCheckpoint | None = None
    has_artifact: bool = False
    problem: str = ""  # what could not be read

    @property
    def step(self) -> int:
        last = max((attempt.last_step for attempt in self.run.attempts), default=0)
        return self.heartbeat.step if self.heartbeat and self.heartbeat.step else last

    @property
    def max_steps(self) -> int:
        return self.heartbeat.max_steps if self.heartbeat else 0

    @property
    def elapsed_s(self) -> float:
        """Since the launch, until now or until the end."""
        end = self.run.phase_since if self.run.phase.is_terminal and self.run.phase_since else self.now
        return max(0.0, (end - self.run.created_at).total_seconds())

    @property
    def remaining_s(self) -> float | None:
        """At the pace of this attempt; None while there is none."""
        beat, attempt = self.heartbeat, self.run.attempt
        if not beat or not attempt or not attempt.running_at or not self.heard_at or self.run.phase.is_terminal:
            return None
        done = beat.step - (beat.restored_step or 0)
        took = (self.heard_at - attempt.running_at).total_seconds()
        if done <= 0 or took <= 0 or not beat.max_steps:
            return None
        return (beat.max_steps - beat.step) * took / done

    @property
    def safe_until(self) -> datetime | None:
        """Until when the instance needs nobody: its keys to the bucket expire then. None: they never do."""
        attempt = self.run.attempt
        if attempt is None or attempt.ended_at or self.run.phase.is_terminal:
            return None
        return attempt.keys_until

    @property
    def outlasts_its_keys(self) -> bool:
        """At its pace the training goes on when the keys have expired; somebody must have renewed them by then."""
        from datetime import timedelta

        if self.safe_until is None or self.remaining_s is None:
            return False
        return self.now + timedelta(seconds=self.remaining_s) > self.safe_until

    @property
    def checkpoint_age_s(self) -> float | None:
        return max(0.0, (self.now - self.checkpoint.modified_at).total_seconds()) if self.checkpoint else None

    @property
    def heartbeat_age_s(self) -> float | None:
        return max(0.0, (self.now - self.heard_at).total_seconds()) if self.heard_at else None


def observe(runs: RunStore, run: Run, *, now: datetime) -> View:
    """Look at the run's attempt. A torn heartbeat leaves a gap and a note, not a failure."""
    heard = checkpoint = None
    artifact = False
    problem = ""
    try:
        if run.attempt:
            heard = runs.heartbeat(run.run_id, run.attempt.number)
            checkpoint = next(iter(runs.checkpoints(run.run_id)), None)
        artifact = bool(run.phase.is_terminal and runs.artifact(run.run_id))
    except StorageError as e:
        problem = e.message
    return View(
        run=run,
        now=now,
        spent_usd=spent_usd(run, now),
        heartbeat=heard[0] if heard else None,
        heard_at=heard[1] if heard else None,
        checkpoint=checkpoint,
        has_artifact=artifact,
        problem=problem,
    )


def spent_usd(run: Run, now: datetime) -> Decimal:
    """What the run has cost so far, all attempts together."""
    from decimal import Decimal

    from orchestrator.money import ledger

    return ledger(run, now).total_usd.quantize(Decimal("0.000001"))


def summary(run: Run, *, now: datetime) -> dict[str, Any]:
    """A run as `tune ls --json` lists it: its record alone, without a look at the instance."""
    return {
        "run_id": run.run_id,
        "name": run.name,
        "phase": run.phase.value,
        "outcome": run.outcome.value if run.outcome else None,
        "reason": run.reason,
        "provider": run.provider,
        "created_at": run.created_at,
        "waiting_for": run.waiting_for,
        "attempts": len(run.attempts),
        "step": max((attempt.last_step for attempt in run.attempts), default=0),
        "spent_usd": str(spent_usd(run, now)),
    }


def document(view: View, *, storage: str) -> dict[str, Any]:
    """`tune status --json`. Money is text, durations are seconds, times are UTC."""
    run, beat = view.run, view.heartbeat
    return {
        "run_id": run.run_id,
        "name": run.name,
        "phase": run.phase.value,
        "outcome": run.outcome.value if run.outcome else None,
        "reason": run.reason,
        "provider": run.provider,
        "storage": storage,
        "created_at": run.created_at,
        "phase_since": run.phase_since,
        "waiting_for": run.waiting_for,
        "not_before": run.not_before,
        "stop_requested_at": run.stop_requested_at,
        "resumes": run.resumes,
        "step": view.step,
        "max_steps": view.max_steps,
        "stage": beat.stage if beat else "",
        "loss": beat.loss if beat else None,
        "learning_rate": beat.learning_rate if beat else None,
        "tokens_per_s": beat.tokens_per_s if beat else None,
        "notes": list(beat.notes) if beat else [],
        "problem": view.problem,
        "heartbeat_age_s": view.heartbeat_age_s,
        "elapsed_s": view.elapsed_s,
        "remaining_s": view.remaining_s,
        "spent_usd": str(view.spent_usd),
        "safe_until": view.safe_until,
        "outlasts_its_keys": view.outlasts_its_keys,
        "checkpoint": _checkpoint(view),
        "has_artifact": view.has_artifact,
        "attempts": [_attempt(attempt) for attempt in run.attempts],
    }


def _checkpoint(view: View) -> dict[str, Any] | None:
    if not view.checkpoint:
        return None
    newest = view.checkpoint
    return {
        "step": newest.step,
        "attempt": newest.attempt,
        "stored_at": newest.modified_at,
        "age_s": view.checkpoint_age_s,
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "provider": attempt.offer.provider or attempt.provider,
        "token": attempt.token,
        "instance_id": attempt.instance_id,
        "gpu": attempt.offer.gpu_name,
        "spot": attempt.offer.spot,
        "usd_per_hour": str(attempt.usd_per_hour or attempt.offer.usd_per_hour),
        "intended_at": attempt.intended_at,
        "running_at": attempt.running_at,
        "ended_at": attempt.ended_at,
        "outcome": attempt.outcome.value if attempt.outcome else None,
        "reason": attempt.reason,
        "last_step": attempt.last_step,
    }
