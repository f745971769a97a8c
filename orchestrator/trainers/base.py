"""What a trainer is to the launcher: a judge of recipes, and a maker of the files that an instance runs."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from orchestrator.errors import Problem
from orchestrator.handover import JobSpec
from orchestrator.recipe.model import Recipe

if TYPE_CHECKING:
    from orchestrator.recipe.data import DataReport


class Scratch:
    """A folder for files that are too big for memory; gone when the last one who holds it lets go."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="tune-job-"))
        self._finish = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def discard(self) -> None:
        """Remove it now. Harmless twice."""
        self._finish()


@dataclass(frozen=True, slots=True)
class RenderedJob:
    """How the trainer is started, and every file it needs below `job/`.

    Values of `files` are bytes, or paths to stream from. Some of those are temporary: keep this object until they are
    uploaded, or use it as a context manager.
    """

    spec: JobSpec
    files: Mapping[str, bytes | Path]
    scratch: Scratch | None = field(default=None, repr=False, compare=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.scratch is not None:
            self.scratch.discard()


class Trainer(Protocol):
    """One training stack. No method rents, prints, or touches the network."""

    @property
    def name(self) -> str: ...

    def problems(self, recipe: Recipe) -> Sequence[Problem]:
        """Everything in the recipe that this trainer cannot honour, each with its place. Empty: it can be launched."""
        ...

    def notices(self, recipe: Recipe) -> Sequence[str]:
        """Keys that are accepted and change nothing here, each with the reason."""
        ...

    def prepare(self, recipe: Recipe, *, progress: Callable[[str], None] | None = None) -> Any | None:
        """Make ready on this machine what the recipe names, once; `progress` is told what takes a while.

        Returns the tokenizer for the dataset check where the check could not find it by itself, else None.
        """
        ...

    def render(self, recipe: Recipe, report: DataReport, *, is_elsewhere: bool = False) -> RenderedJob:
        """The job. Raises RecipeError where `problems` is not empty.

        `is_elsewhere`: it will run on another computer, so that models which lie on this one are sent along.
        """
        ...
