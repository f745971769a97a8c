"""tune reconcile"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from orchestrator.cli.session import Session
    from orchestrator.errors import TuneError
    from orchestrator.reconcile import Pass
    from orchestrator.types import RunId

EXAMPLES = (
    "tune reconcile --all     one pass over every active run, then a sweep; made for cron",
    "tune reconcile night",
)


def reconcile(
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="One run; with --all, every active one.")] = "",
    all_: Annotated[bool, typer.Option("--all", "-a", help="Every active run, then a sweep.")] = False,
) -> None:
    """Look once at what a run needs next, and do it. Several computers may do so at once.

    Exits 0 when every pass completed; runs may still be training. Exits 21 while an instance that should be gone may
    still be billing.
    """
    from orchestrator import reconcile as passes
    from orchestrator.cli.session import Session
    from orchestrator.errors import UsageError

    if bool(run) == all_:
        raise UsageError("name one run, or say --all", hint="run `tune reconcile --help`")
    session = Session()
    if run:
        done = passes.reconcile(session.context, session.runs.resolve(run))
        _say(session, done)
        done.check()
        return
    result = passes.reconcile_all(session.context)
    for done in result.passes.values():
        _say(session, done)
    for trouble in result.troubles:
        session.render.note(f"note: {trouble}")
    for run_id, error in result.errors.items():
        _say_error(session, run_id, error)
    swept = _sweep(session)
    if not result.passes and not result.errors:
        session.render.event({"event": "idle"}, "no active runs")
    unconfirmed = _unconfirmed(result.passes.values())  # first: nothing else costs money
    for error in (*unconfirmed, *result.errors.values(), *swept):  # one run's trouble has kept no other from its pass
        session.render.flush()
        raise error


def _unconfirmed(passes: Iterable[Pass]) -> Iterator[TuneError]:
    from orchestrator.errors import TerminationUnconfirmed

    for done in passes:
        try:
            done.check()
        except TerminationUnconfirmed as e:
            yield e


def _say(session: Session, done: Pass) -> None:
    run = done.run
    document = {
        "event": "pass",
        "run_id": run.run_id,
        "name": run.name,
        "phase": run.phase.value,
        "waiting_for": run.waiting_for,
        "events": list(done.events),
        "troubles": list(done.troubles),
        "next_in_s": done.wait_s,
    }
    lines = [
        f"{run.name} ({run.run_id}): {run.phase.value}",
        *done.events,
        *(f"! {trouble}" for trouble in done.troubles),
    ]
    session.render.event(document, "\n  ".join(lines))


def _say_error(session: Session, run_id: RunId, error: TuneError) -> None:
    document = {"event": "pass", "run_id": run_id, "error": type(error).__name__, "message": error.message}
    session.render.event(document, f"{run_id}: {error.message}")


def _sweep(session: Session) -> list[TuneError]:
    """What nobody owns is looked for with every cron pass."""
    from orchestrator.cli.commands.sweep import report, say
    from orchestrator.errors import TuneError

    try:
        swept = session.sweep()
    except TuneError as e:
        session.render.event({"event": "sweep", "error": type(e).__name__, "message": e.message}, f"sweep: {e.message}")
        return [e]
    session.render.event({"event": "sweep", **report(swept)}, "")
    say(session, swept, quiet=True)
    try:
        swept.check()
    except TuneError as e:
        return [e]
    return []
