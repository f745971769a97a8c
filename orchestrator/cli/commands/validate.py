"""tune validate"""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.commands._arguments import RecipeArgument, SetOption

EXAMPLES = ("tune validate recipe.yaml", "tune validate recipe.yaml --no-data   only the file itself")


def validate(
    recipe: RecipeArgument,
    data: Annotated[bool, typer.Option("--data/--no-data", help="Read the datasets, too.")] = True,
    set_: SetOption = None,
) -> None:
    """Check a recipe and its data. Every problem at once, with its line; exits 10 when there is one."""
    from orchestrator import recipe as recipes
    from orchestrator.cli.data_text import report_lines
    from orchestrator.cli.session import Session
    from orchestrator.trainers.registry import get_trainer

    loaded = recipes.load(recipe, overrides=set_ or ())
    session = Session()
    trainer = get_trainer(loaded.tune.trainer)
    report = None
    if data:
        from orchestrator.recipe.data import check

        with session.render.progress("rows checked") as rows:
            tokenizer = trainer.prepare(loaded, progress=session.render.note)
            report = check(loaded, tokenizer=tokenizer, progress=rows.reach)
    cannot = [str(problem) for problem in trainer.problems(loaded)]
    notices = [*loaded.notices, *trainer.notices(loaded)]
    document = {
        "recipe": str(loaded.path),
        "valid": True,
        "recipe_sha256": loaded.sha256,
        "trainer": loaded.tune.trainer,
        "launchable": not cannot,
        "obstacles": cannot,
        "notices": notices,
        "data": session.plain(report) if report else None,
    }

    def say() -> None:
        session.render.say(f"{loaded.path}: in order")
        for line in report_lines(report) if report else ():
            session.render.say(f"  {line}")
        for notice in notices:
            session.render.say(f"  note: {notice}")
        for obstacle in cannot:
            session.render.say(f"  cannot be launched yet: {obstacle}")

    session.render.result(document, say)
