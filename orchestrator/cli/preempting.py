"""Playing the marketplace that takes an instance back: for the demo, and for people who want to see it happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.errors import RunConflict

if TYPE_CHECKING:
    from orchestrator.cli.session import Session
    from orchestrator.types import InstanceId, Run


def preempt(session: Session, run: Run, *, outbid: bool = False) -> InstanceId:
    """Take the current instance of a run on the local provider away. Returns which one it was."""
    from orchestrator.providers.local import LocalProvider

    current = run.attempt
    if run.provider != "local" or current is None or current.instance_id is None or current.ended_at is not None:
        raise RunConflict(
            f"run {run.name} has no instance on this machine now; it is {run.phase.value}",
            hint=f"run `tune status {run.run_id}`",
        )
    settings = session.provider_settings("local")
    LocalProvider(settings.state_dir, settings.options).preempt(current.instance_id, "outbid" if outbid else "vanish")
    return current.instance_id
