"""tune itself"""

from __future__ import annotations

from typing import Annotated

import typer


def _version(show: bool) -> None:
    if show:
        import orchestrator
        from orchestrator.cli.render import Renderer

        Renderer.current().result({"version": orchestrator.__version__}, f"tune {orchestrator.__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Fine-tune open LLMs on rented GPUs, and never pay for an instance that does nothing.

    A run goes on until a verified adapter is in your storage and nothing is billing. Start with `tune init`.
    """
