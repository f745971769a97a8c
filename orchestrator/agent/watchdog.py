"""When a trainer that is still alive has to be stopped. Pure: it looks at what progress says and at the time."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.agent.progress import Progress

# Announced phases may take longer than a step, yet not for ever: a model download or an evaluation can hang too.
PATIENCE = {"loading": 4.0, "evaluating": 4.0, "saving": 2.0, "finishing": 4.0}


@dataclass(frozen=True, slots=True)
class Limits:
    """What counts as a hang, and as a divergence."""

    hang_timeout_s: float
    bad_loss_logs: int


def is_hung(progress: Progress, limits: Limits, *, now: float) -> bool:
    """No step, and no other sign that counts, for longer than the present phase allows. `now` is monotonic."""
    if progress.phase in PATIENCE:
        # Announcing the phase is the sign; within it nothing needs to happen.
        return (
            now - max(progress.last_sign_at, progress.last_step_at) > limits.hang_timeout_s * PATIENCE[progress.phase]
        )
    since = progress.last_step_at if progress.steps_seen else progress.last_sign_at
    return now - max(since, progress.phase_at) > limits.hang_timeout_s


def has_diverged(progress: Progress, limits: Limits) -> bool:
    """So many bad losses in a row that the weights are lost."""
    return progress.bad_logs >= limits.bad_loss_logs
