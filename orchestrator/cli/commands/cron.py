"""tune cron"""

from __future__ import annotations

import typer

app = typer.Typer(
    help="Carry runs on while nobody is looking.",
    rich_markup_mode=None,
    no_args_is_help=False,
    invoke_without_command=True,
)


@app.callback()
def cron(context: typer.Context) -> None:
    """Carry runs on while nobody is looking: print the line for `crontab -e`."""
    if context.invoked_subcommand is None:
        print_()


@app.command("print")
def print_() -> None:
    """Print a crontab line that reconciles every active run. It needs nothing from the environment."""
    from orchestrator.cli.crontab import active_line, line
    from orchestrator.cli.session import Session

    session = Session()
    try:  # the shell that cron starts opens the log before anything of ours could make its folder
        session.settings.state_dir.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        session.render.note(f"warning: {session.settings.state_dir} cannot be made ({e.strerror}); the line needs it")
    wanted, active = line(session.settings), active_line()
    session.render.result({"line": wanted, "active": active}, wanted)
    session.render.note(
        f"# active already: {active}"
        if active
        else "# add it with: crontab -e   (keys that a bucket or provider needs must be set there, too)"
    )
