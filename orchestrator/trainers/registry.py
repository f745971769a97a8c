"""Which trainers there are. Loaded by name, when one is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

from orchestrator.errors import Problem, RecipeError
from orchestrator.recipe.model import TRAINERS, Recipe
from orchestrator.trainers.base import RenderedJob, Trainer

if TYPE_CHECKING:
    from orchestrator.recipe.data import DataReport

_RUNNABLE = {"trl": "orchestrator.trainers.trl:TrlTrainer"}


class LaterTrainer:
    """A trainer of the vocabulary that this version cannot start: its recipes validate, and are refused at launch."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def problems(self, recipe: Recipe) -> Sequence[Problem]:
        """One, always: which trainer this version has, and how to switch."""
        written = recipe.place("tune.trainer")
        how = "set `trainer: trl` in the `tune:` block" if written else "add `tune: {trainer: trl}` to the recipe"
        return [
            Problem(
                "tune.trainer",
                f"this version of tune trains with trl only; {self._name} recipes can be validated, not launched",
                hint=f"{how} (or pass `--set tune.trainer=trl`): the training keys are the same",
                path=str(recipe.path),
                line=written,
            )
        ]

    def notices(self, recipe: Recipe) -> Sequence[str]:  # noqa: ARG002 - the protocol's signature
        """None: nothing of the recipe is read."""
        return []

    def prepare(self, recipe: Recipe, *, progress: Callable[[str], None] | None = None) -> None:
        """Nothing: the dataset check finds the tokenizer by itself."""

    def render(self, recipe: Recipe, report: DataReport, *, is_elsewhere: bool = False) -> RenderedJob:  # noqa: ARG002 - the protocol's signature
        """Raises RecipeError, always."""
        raise RecipeError("this recipe cannot be launched", self.problems(recipe))


def names() -> tuple[str, ...]:
    """Every trainer a recipe may name."""
    return TRAINERS


def runnable() -> tuple[str, ...]:
    """Those that this version can start."""
    return tuple(_RUNNABLE)


def get_trainer(name: str) -> Trainer:
    """The trainer of that name, or RecipeError with the names there are."""
    if name in _RUNNABLE:
        module, _, attribute = _RUNNABLE[name].partition(":")
        return cast("Trainer", getattr(import_module(module), attribute)())
    if name in TRAINERS:
        return LaterTrainer(name)
    raise RecipeError(f"there is no trainer {name!r}", hint=f"trainers: {', '.join(TRAINERS)}")
