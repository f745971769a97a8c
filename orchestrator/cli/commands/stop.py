"""tune stop"""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.commands._arguments import RunArgument

EXAMPLES = (
    "tune stop night         save a checkpoint, end the instance, wait until nothing is billing",
    "tune stop night --now   do not wait for a checkpoint",
)


def stop(
    run: RunArgument,
    now: Annotated[bool, typer.Option("--now", help="Do not give it time to save.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Only leave the request; cron carries it out.")] = False,
) -> None:
    """Stop a run, and wait until nothing is billing.

    Exits 0 once that is sure, and 21 while an instance may still be billing. `tune resume` goes on later.
    """
    from orchestrator.cli.follow import stop_and_wait
    from orchestrator.cli.session import Session

    session = Session()
    stop_and_wait(session, session.runs.resolve(run), now=now, wait=not no_wait)
