"""tune ls"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from orchestrator.cli.session import Session
    from orchestrator.types import Run, RunId

DEFAULT_LIMIT = 20
EXAMPLES = ("tune ls          active runs and the latest of the others", "tune ls --all    every run")


def ls(
    all_: Annotated[bool, typer.Option("--all", "-a", help="Every run there is.")] = False,
    limit: Annotated[
        int, typer.Option(min=1, help="How many of the latest runs, besides the active ones.")
    ] = DEFAULT_LIMIT,
) -> None:
    """List runs: the active ones and the latest, newest first. Exits 18 when a record cannot be read."""
    from orchestrator.cli.session import Session
    from orchestrator.cli.words import plural
    from orchestrator.errors import RecordCorrupt

    session = Session()
    runs, unreadable = _runs(session, None if all_ else limit)
    document = {
        "runs": [session.document(run) for run in runs],
        "unreadable": unreadable,
        "storage": session.settings.storage,
    }
    session.render.result(document, lambda: _say(session, runs) if runs or not unreadable else None)
    if unreadable:
        raise RecordCorrupt(
            "\n  ".join([f"not listed: {plural(len(unreadable), 'record')} that cannot be read", *unreadable]),
            hint="nothing was overwritten; restore each, or move it away",
        )


def _runs(session: Session, limit: int | None) -> tuple[list[Run], list[str]]:
    """One read per run shown. An unreadable record is named and left alone."""
    from concurrent.futures import ThreadPoolExecutor

    from orchestrator.errors import RecordCorrupt, RunNotFound

    wanted: dict[RunId, None] = dict.fromkeys([*session.runs.recent(limit or 1_000_000), *session.runs.active()])

    def read(run_id: RunId) -> Run | str:
        try:
            return session.runs.load(run_id).run
        except RunNotFound:
            return ""  # uploaded, or only marked, by a launch that is still under way or died there
        except RecordCorrupt as e:
            return e.message

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read, sorted(wanted, reverse=True)))
    return [run for run in found if not isinstance(run, str)], [
        text for text in found if isinstance(text, str) and text
    ]


def _say(session: Session, runs: list[Run]) -> None:
    from orchestrator.cli.view import spent_usd
    from orchestrator.cli.words import ago, usd

    if not runs:
        session.render.say(f"no runs in {session.settings.storage}; `tune init` writes a recipe to start with")
        return
    moment = session.runs.store.now()
    session.render.table(
        ("RUN", "NAME", "PHASE", "ATTEMPTS", "STEP", "SPENT", "LAUNCHED", "WHY"),
        [
            (
                run.run_id,
                run.name,
                run.phase.value,
                str(len(run.attempts)),
                str(max((attempt.last_step for attempt in run.attempts), default=0) or "-"),
                usd(spent_usd(run, moment)),
                ago((moment - run.created_at).total_seconds()),
                run.waiting_for or run.reason,
            )
            for run in runs
        ],
    )
