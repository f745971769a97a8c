"""tune resume"""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.commands._arguments import RunArgument

EXAMPLES = (
    "tune resume night            watch and drive a run, or go on with one that failed or was stopped",
    "tune resume 3f2k --no-wait   only re-open it; cron does the rest",
)


def resume(
    run: RunArgument,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return at once; cron or another terminal drives it.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Leave once it trains.")] = False,
) -> None:
    """Carry a run on: watch an active one, re-open one that failed or was stopped.

    A finished run says so and exits 0, so that a nightly cron line is harmless. A re-opened run goes on from its newest
    checkpoint that verifies, with fresh limits.
    """
    from orchestrator.cli.follow import detach_when_running, follow, reopen, say_finished
    from orchestrator.cli.session import Session
    from orchestrator.types import Phase

    session = Session()
    run_id = session.runs.resolve(run)
    current = session.runs.load(run_id).run
    if current.phase is Phase.SUCCEEDED:
        say_finished(session, current)
        return
    if current.phase.is_terminal:
        current = reopen(session, run_id)
    if no_wait:
        session.render.result(session.document(current), f"run {current.name} ({run_id}) is {current.phase.value}")
    elif detach:
        detach_when_running(session, run_id)
    else:
        follow(session, run_id)
