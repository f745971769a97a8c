"""tune local"""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.commands._arguments import RunArgument

app = typer.Typer(help="Play the marketplace on this machine.", rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def local() -> None:
    """Play the marketplace on this machine, to see how a run takes it."""


@app.command("preempt")
def preempt(
    run: RunArgument,
    outbid: Annotated[bool, typer.Option("--outbid", help="Stop the instance instead of taking it away.")] = False,
) -> None:
    """Take a run's instance away without notice, as a marketplace does."""
    from orchestrator.cli.preempting import preempt as take
    from orchestrator.cli.session import Session

    session = Session()
    record = session.runs.load(session.runs.resolve(run)).run
    instance_id = take(session, record, outbid=outbid)
    session.render.result(
        {"run_id": record.run_id, "instance_id": instance_id},
        f"instance {instance_id} of {record.name} was {'outbid' if outbid else 'taken away'}",
    )
