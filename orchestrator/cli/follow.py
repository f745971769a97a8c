"""What launch, resume and stop have in common: drive a run and say how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli import words
from orchestrator.cli.drive import UNCONFIRMED_AFTER_S, Detached, Goal, check_end, drive, say_detached
from orchestrator.cli.live import safe_until
from orchestrator.cli.render import PipeClosed
from orchestrator.types import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.cli.session import Session
    from orchestrator.cli.view import View
    from orchestrator.types import Run, RunId


def follow(session: Session, run_id: RunId, goal: Goal | None = None) -> Run:
    """Drive to the end; the exit code follows from it."""
    run = _drive(session, run_id, goal or Goal(on_look=SafeUntil()))
    check_end(run)
    say_finished(session, run)
    return run


class SafeUntil:
    """Says once until when nobody needs to look, and once more if that turns out to be too short."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, view: View, say: Callable[[str], None]) -> None:
        """Look at a view of the run; speak when there is something new to say."""
        state = "short" if view.outlasts_its_keys else "long" if view.safe_until else ""
        if state and state != self._said:
            self._said = state
            say(f"safe until {safe_until(view)}")


def say_finished(session: Session, run: Run) -> None:
    """It is done, and how to get the result."""
    document = {"event": "finished", **session.document(run)}
    attempts = words.plural(len(run.attempts), "attempt")
    session.render.event(
        document,
        f"run {run.name} ({run.run_id}) succeeded after {attempts}; nothing is billing\n"
        f"  fetch the result:  tune pull {run.run_id} DIR",
    )


def detach_when_running(session: Session, run_id: RunId) -> None:
    """Drive until it trains, then say what goes on without this computer."""
    run = _drive(session, run_id, Goal(lambda run: run.phase is Phase.RUNNING))
    if run.phase.is_terminal:
        check_end(run)
        say_finished(session, run)
        return
    from orchestrator.cli.crontab import active_line
    from orchestrator.cli.view import observe

    cron = active_line()
    view = observe(session.runs, session.runs.load(run_id).run, now=session.runs.store.now())
    until_s = safe_for_s(session, run)
    keeps = (
        "a cron line of this user carries it on"
        if cron
        else "no cron line was found: nobody replaces a lost instance; see `tune cron print`"
    )
    safe = (
        f"its instance ends itself in {words.duration(until_s)} at the latest"
        if until_s is not None
        else "its instance has not said when it ends itself"
    )
    session.render.event(
        {
            "event": "detached",
            "run_id": run_id,
            "phase": run.phase.value,
            "cron": bool(cron),
            "ends_itself_in_s": until_s,
            "safe_until": view.safe_until,
        },
        f"run {run.name} ({run_id}) is {run.phase.value}\n  {keeps}\n  {safe}\n"
        + (f"  safe until {safe_until(view)}\n" if view.safe_until else "")
        + f"  watch it:  tune resume {run_id}\n  stop it:   tune stop {run_id}",
    )


def safe_for_s(session: Session, run: Run) -> float | None:
    """Until when no one needs to look: the instance ends by itself then. None when it cannot, or has not said so."""
    heard = session.runs.heartbeat(run.run_id, run.attempt.number) if run.attempt else None
    if not heard or not heard[0].can_end_itself or heard[0].ends_at_latest_s is None:
        return None
    return max(0.0, heard[0].ends_at_latest_s - (session.runs.store.now() - heard[1]).total_seconds())


def reopen(session: Session, run_id: RunId) -> Run:
    """Open a failed or cancelled run again, once, however many ask for it together."""
    from orchestrator.reconcile import reopen as open_again

    return open_again(session.context, run_id)


def stop_and_wait(session: Session, run_id: RunId, *, now: bool, wait: bool) -> None:
    """Leave the request, then drive until nothing can be billing."""
    from orchestrator.reconcile import request_stop

    run = request_stop(session.context, run_id, at_once=now)
    if not run.phase.is_terminal and wait:
        run = _drive(session, run_id, Goal(gives_up_after_s=UNCONFIRMED_AFTER_S))
    if run.phase.is_terminal:
        text = f"run {run.name} ({run_id}) is {run.phase.value}; nothing is billing"
    else:
        text = f"run {run.name} ({run_id}) will be stopped by the next `tune reconcile --all`"
    event = "stopped" if run.phase.is_terminal else "stop_requested"
    session.render.event({"event": event, **session.document(run)}, text)


def _drive(session: Session, run_id: RunId, goal: Goal | None = None) -> Run:
    try:
        return drive(session, run_id, goal)
    except (Detached, PipeClosed) as e:
        say_detached(session, run_id, to_stderr=isinstance(e, PipeClosed))
        raise
