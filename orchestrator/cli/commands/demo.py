"""tune demo"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from orchestrator.cli.session import Session
    from orchestrator.types import Run

EXAMPLES = ("tune demo", "tune demo --no-answers   without asking the model before and after")


def demo(
    folder: Annotated[str, typer.Option(help="Where to put the adapter.")] = "demo-adapter",
    recipe: Annotated[str, typer.Option(metavar="RECIPE", help="Another recipe for this machine.")] = "",
    answers: Annotated[bool, typer.Option("--answers/--no-answers", help="Ask the model before and after.")] = True,
) -> None:
    """Fine-tune a small language model on this machine, lose the instance half-way, and carry on.

    Needs no account and no network. May be run again: each time is a new run.
    """
    from orchestrator import recipe as recipes
    from orchestrator.cli.demo import RECIPE, Marketplace, demo_storage, recipes_folder
    from orchestrator.cli.drive import Goal
    from orchestrator.cli.follow import follow
    from orchestrator.cli.session import Session
    from orchestrator.launch import launch, prepare

    loaded = recipes.load(recipe or recipes_folder() / RECIPE)
    session = Session(recipe_storage=demo_storage())
    say = session.render.say
    say("A small language model is fine-tuned on this machine; half-way its instance is taken away.")
    with session.render.progress("rows checked") as rows:
        prepared = prepare(loaded, provider="local", on_note=session.render.note, on_rows=rows.reach)
    with session.render.progress("uploading", total=prepared.upload_bytes, unit="bytes") as sent:
        run = launch(prepared, session.runs, now=session.runs.store.now(), on_bytes=sent.add).run
    session.render.event(
        {"event": "launched", "run_id": run.run_id, "name": run.name}, f"run {run.name} ({run.run_id}) launched"
    )
    market = Marketplace(session, steps=prepared.report.steps)
    run = follow(session, run.run_id, Goal(on_look=market.look))
    _show_that_it_carried_on(session, run, market.taken_at)
    _fetch(session, run, Path(folder).absolute())
    if answers and not session.render.json_mode:
        _ask(session, Path(folder).absolute())


def _show_that_it_carried_on(session: Session, run: Run, taken_at: int | None) -> None:
    from orchestrator.errors import RunFailed

    if taken_at is None or len(run.attempts) < 2:
        raise RunFailed("the training was over before its instance could be taken away", hint="run `tune demo` again")
    heard = session.runs.heartbeat(run.run_id, run.attempts[-1].number)
    restored = heard[0].restored_step if heard else None
    last = heard[0].step if heard else run.attempts[-1].last_step
    session.render.event(
        {"event": "carried_on", "taken_at_step": taken_at, "restored_step": restored, "last_step": last},
        f"taken away at step {taken_at}; attempt {run.attempts[-1].number} went on from step {restored} "
        f"and finished at step {last}",
    )


def _fetch(session: Session, run: Run, folder: Path) -> None:
    from orchestrator.cli.pulling import artifact_files, pull

    with session.render.progress("downloading", unit="bytes") as count:
        pulled = pull(session.runs.store, artifact_files(session.runs, run), folder, count=count.add, replace=True)
    session.render.event(
        {"event": "pulled", "folder": str(folder), "files": len(pulled.files)}, f"the adapter is in {folder}"
    )


def _ask(session: Session, folder: Path) -> None:
    """Run the very snippet that is shown, in a process of its own: torch stays out of here."""
    import os
    import subprocess
    import sys

    from orchestrator.cli.demo import QUESTION, SNIPPET

    say, snippet = session.render.say, SNIPPET.format(folder=str(folder), question=QUESTION)
    say(f"\nTo use it:\n\n{snippet}\n\nRunning exactly that; the question is: {QUESTION}\n")
    session.render.flush()
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
    argv = [sys.executable, "-c", snippet]
    asked = subprocess.run(argv, env={**os.environ, **quiet}, capture_output=True, text=True, timeout=600, check=False)
    if asked.returncode:
        session.render.note(f"the model could not be asked:\n{asked.stderr[-2000:]}")
        return
    say(asked.stdout.rstrip())
