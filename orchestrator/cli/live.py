"""How a run looks while it is being watched: redrawn at a terminal, one line per event elsewhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

from orchestrator.cli import words
from orchestrator.cli.redact import harmless, redact
from orchestrator.cli.view import document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType
    from rich.live import Live

    from orchestrator.cli.render import Renderer
    from orchestrator.cli.view import View

NOTES_SHOWN = 3
LINE_EVERY_S = 10.0  # without a terminal: how often progress alone is worth a line
NARROW = 60


class Watch:
    """Shows one run until it is closed. The caller hands in what it has seen; nothing here looks by itself."""

    def __init__(self, render: Renderer, *, storage: str) -> None:
        self._render, self._storage = render, storage
        self._live: Live | None = None
        self._last_words = ""
        self._last_step: tuple[int, int] = (0, -1)
        self._line_at: float | None = None
        self._trouble = ""

    def __enter__(self) -> Self:
        if self._render.is_terminal:
            from rich.console import Console
            from rich.live import Live

            console = Console(highlight=False, no_color=bool(os.environ.get("NO_COLOR")) or None)
            self._live = Live(console=console, auto_refresh=False, transient=False, redirect_stdout=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def event(self, text: str) -> None:
        """Something happened to the run."""
        if text == self._last_words:
            return
        self._last_words = text
        self._tell({"event": "note", "text": text}, text)

    def trouble(self, text: str) -> None:
        """Something could not be done now; it will be tried again. Said once, not once per try."""
        if text != self._trouble:
            self._trouble = text
            self._tell({"event": "trouble", "text": text}, f"! {text} (trying again)")

    def well(self) -> None:
        """The last try worked."""
        if self._trouble:
            self._trouble = ""
            self._tell({"event": "recovered"}, "  it works again")

    def show(self, view: View, *, monotonic_s: float) -> None:
        """The run as it is now."""
        if self._live:
            self._live.update(panel(view, plain=not self._render.speaks_unicode), refresh=True)
            return
        attempt = view.run.attempt.number if view.run.attempt else 0
        seen = (attempt, view.step)
        if not view.heartbeat or seen == self._last_step:
            return
        if self._line_at is not None and monotonic_s - self._line_at < LINE_EVERY_S and not view.run.phase.is_terminal:
            return
        self._line_at, self._last_step = monotonic_s, seen
        self._render.event(progress_document(view, self._storage), progress_line(view))

    def _tell(self, document: Mapping[str, Any], text: str) -> None:
        if self._live:
            self._live.console.print(harmless(redact(text)), markup=False)
        else:
            self._render.event(document, text)


def progress_document(view: View, storage: str) -> dict[str, Any]:
    """One JSON line of a watched run."""
    whole = document(view, storage=storage)
    kept = (
        "run_id",
        "phase",
        "stage",
        "step",
        "max_steps",
        "loss",
        "tokens_per_s",
        "elapsed_s",
        "remaining_s",
        "spent_usd",
    )
    return {
        "event": "progress",
        "attempt": view.run.attempt.number if view.run.attempt else 0,
        "checkpoint_step": view.checkpoint.step if view.checkpoint else None,
        **{key: whole[key] for key in kept},
    }


def progress_line(view: View) -> str:
    beat = view.heartbeat
    parts = [f"{view.run.phase.value} a{view.run.attempt.number if view.run.attempt else 0}"]
    if beat:
        parts += [beat.stage, f"step {beat.step}/{beat.max_steps}" if beat.max_steps else ""]
        parts += [f"loss {words.number(beat.loss)}" if beat.loss is not None else ""]
        parts += [f"{beat.tokens_per_s:,.0f} tok/s" if beat.tokens_per_s else ""]
    parts += [f"left {words.duration(view.remaining_s)}" if view.remaining_s is not None else ""]
    parts += [f"checkpoint {view.checkpoint.step}" if view.checkpoint else ""]
    parts += [words.usd(view.spent_usd) if view.spent_usd else ""]
    return "  " + ", ".join(part for part in parts if part)


def facts(view: View, *, plain: bool) -> list[tuple[str, str]]:
    """What a person wants to know, label and value, in the order of interest."""
    run, beat = view.run, view.heartbeat
    attempt = run.attempt
    phase = run.phase.value + (f" ({beat.stage})" if beat and beat.stage and not run.phase.is_terminal else "")
    rows = [("phase", phase + (f": {run.reason}" if run.reason else ""))]
    if run.waiting_for:
        rows.append(("waiting for", run.waiting_for))
    if run.stop_requested_at and not run.phase.is_terminal:
        rows.append(("stopping", "asked to save and end"))
    if attempt:
        offer = attempt.offer
        what = " ".join(part for part in (offer.gpu_name, "spot" if offer.spot else "") if part)
        rows.append(
            ("attempt", f"{attempt.number} on {offer.provider or attempt.provider}" + (f" ({what})" if what else ""))
        )
    if view.max_steps:
        rows.append(
            ("step", f"{view.step}/{view.max_steps} {words.bar(view.step, view.max_steps, width=24, plain=plain)}")
        )
    elif view.step:
        rows.append(("step", str(view.step)))
    if beat and beat.loss is not None:
        rows.append(("loss", f"{words.number(beat.loss)} {words.sparkline(beat.losses, plain=plain)}".rstrip()))
    if beat and beat.tokens_per_s:
        rows.append(("speed", f"{beat.tokens_per_s:,.0f} tokens/s"))
    left = f", about {words.duration(view.remaining_s)} left" if view.remaining_s is not None else ""
    rows.append(("time", words.duration(view.elapsed_s) + left))
    rows.append(("spent", words.usd(view.spent_usd)))
    if view.safe_until:
        rows.append(("safe until", safe_until(view)))
    if view.checkpoint:
        rows.append(("checkpoint", f"step {view.checkpoint.step}, {words.ago(view.checkpoint_age_s)}"))
    rows += [("note", note) for note in (beat.notes[-NOTES_SHOWN:] if beat else ())]
    if view.problem:
        rows.append(("problem", view.problem))
    return [(label, harmless(redact(value)).replace("\n", " ")) for label, value in rows]


def safe_until(view: View) -> str:
    """Until when nobody needs to look, and whether that is long enough."""
    until = view.safe_until
    if until is None:
        return ""
    left_s = (until - view.now).total_seconds()
    if left_s <= 0:
        return f"{until:%H:%M} UTC, which is past: the next `tune reconcile --all` renews the bucket's keys"
    text = f"{until:%Y-%m-%d %H:%M} UTC ({words.duration(left_s)}) without this computer"
    if view.outlasts_its_keys:
        ways = "let cron renew the keys (`tune cron print`), or set TUNE_WORKER_ACCESS_KEY_ID"
        text += f", which is sooner than it will be done: {ways}"
    return text


def panel(view: View, *, plain: bool) -> RenderableType:
    """The live view: a small table that survives narrow terminals."""
    from rich.box import ASCII, ROUNDED
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="ellipsis")
    for label, value in facts(view, plain=plain):
        grid.add_row(label, Text(value))
    title = harmless(redact(f"{view.run.name}  {view.run.run_id}"))
    return Panel(grid, title=Text(title), title_align="left", box=ASCII if plain else ROUNDED, expand=False)
