"""When a trainer that is still alive counts as hung. Pure: it looks at what progress says and at the time."""

from __future__ import annotations

from orchestrator.agent.progress import Progress

# Announced phases may take longer than a step, yet not for ever: a model download or an evaluation can hang too.
PATIENCE = {"loading": 4.0, "evaluating": 4.0, "saving": 2.0, "finishing": 4.0}


def is_hung(progress: Progress, hang_timeout_s: float, *, now: float) -> bool:
    """No step, and no other sign that counts, for longer than the present phase allows. `now` is monotonic."""
    if progress.phase in PATIENCE:
        # Announcing the phase is the sign; within it nothing needs to happen.
        return now - max(progress.last_sign_at, progress.last_step_at) > hang_timeout_s * PATIENCE[progress.phase]
    since = progress.last_step_at if progress.steps_seen else progress.last_sign_at
    return now - max(since, progress.phase_at) > hang_timeout_s
