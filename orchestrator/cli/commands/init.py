"""tune init"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = ("tune init                  writes recipe.yaml", "tune init my-recipe.yaml")


def init(
    path: Annotated[
        str, typer.Argument(metavar="[PATH]", help="The file to write; it must not exist.")
    ] = "recipe.yaml",
) -> None:
    """Write a commented recipe to start from."""
    from orchestrator.cli.render import Renderer
    from orchestrator.errors import UsageError
    from orchestrator.recipe.init import template

    target = Path(path)
    try:
        with target.open("x", encoding="utf-8", newline="\n") as file:
            file.write(template())
    except FileExistsError:
        raise UsageError(f"{path} exists already", hint="name another file: tune init other.yaml") from None
    except OSError as e:
        raise UsageError(
            f"{path} cannot be written: {e.strerror}", hint="name a file in a folder that exists"
        ) from None
    text = f"wrote {path}; put your data and model in, then: tune validate {path}"
    Renderer.current().result({"path": str(target.absolute())}, text)
