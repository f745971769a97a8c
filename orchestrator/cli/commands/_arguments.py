"""Arguments that several commands share."""

from typing import Annotated

import typer

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's id, the unique beginning of one, or its name.")
]
RecipeArgument = Annotated[str, typer.Argument(metavar="RECIPE", help="The recipe, a YAML file.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one key of the recipe, such as tune.budget_usd=3. Repeatable."
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
