"""tune schema"""

from __future__ import annotations

EXAMPLES = (
    "tune schema > tune.schema.json   then, at a recipe's top: # yaml-language-server: $schema=tune.schema.json",
)


def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    from orchestrator.cli.render import Renderer
    from orchestrator.recipe.schema import schema as make

    Renderer.current().document(make())
