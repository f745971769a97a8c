"""The only printer. People get lines and tables, programs get JSON, nobody gets a secret."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.cli.redact import harmless, redact
from orchestrator.cli.words import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from orchestrator.errors import TuneError

PROGRESS_AFTER_S = 1.0  # quicker work needs no bar
PROGRESS_EVERY_S = 5.0  # without a terminal: one line now and then
_last: Renderer | None = None


class PipeClosed(Exception):
    """Nobody reads what is written. Not an OSError, which typer would answer by itself."""


def discard_output(*streams: TextIO) -> None:
    """Nobody reads any more: let the interpreter's own last flush go nowhere instead of complaining."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in streams or (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                os.dup2(devnull, stream.fileno())
        except (OSError, ValueError):
            continue
    os.close(devnull)


class Renderer:
    """Where everything that the program says goes through."""

    def __init__(self, *, json_mode: bool) -> None:
        self.json_mode = json_mode
        self.out: TextIO | None = sys.stdout
        self.err: TextIO | None = sys.stderr
        self.lost: OSError | None = None  # why something that was said could not be written
        for stream in (self.out, self.err):
            if stream is not None and hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # an ASCII locale is no reason to fall over
        global _last  # noqa: PLW0603  # one screen, one printer
        _last = self

    @staticmethod
    def current() -> Renderer:
        """The printer of this call."""
        return _last or Renderer(json_mode=False)

    @property
    def is_terminal(self) -> bool:
        """A person is looking, at something that can be redrawn."""
        return not self.json_mode and self.out is not None and self.out.isatty() and self.can_redraw

    @property
    def can_redraw(self) -> bool:
        return os.environ.get("TERM", "") not in ("", "dumb")

    @property
    def speaks_unicode(self) -> bool:
        return bool(self.out) and "utf" in (getattr(self.out, "encoding", "") or "").lower()

    def flush(self) -> None:
        for stream in (self.out, self.err):
            if stream is not None:
                try:
                    stream.flush()
                except BrokenPipeError:
                    raise PipeClosed from None
                except OSError as e:
                    self._lose(stream, e)

    # -- for people ----------------------------------------------------------------------------------------------

    def say(self, text: str = "") -> None:
        """A line on stdout for people; nothing in JSON mode."""
        if not self.json_mode:
            self._write(self.out, harmless(redact(text)) + "\n")

    def note(self, text: str) -> None:
        """A line on stderr that is no result: a warning, a piece of advice; nothing in JSON mode."""
        if not self.json_mode:
            self._write(self.err, harmless(redact(text)) + "\n")

    def raw(self, text: str) -> None:
        """Text as it is, such as a log, without its control characters."""
        self._write(self.out, harmless(redact(text)))

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Aligned columns; the last one is cut at a terminal's edge and nowhere else."""
        cells = [[harmless(redact(cell)).replace("\n", " ") for cell in row] for row in [headers, *rows]]
        widths = [max(_width(row[i]) for row in cells) for i in range(len(headers))]
        limit = shutil.get_terminal_size().columns if self.is_terminal else 0
        for row in cells:
            line = "  ".join(cell + " " * (widths[i] - _width(cell)) for i, cell in enumerate(row)).rstrip()
            cut = "…" if self.speaks_unicode else "~"  # half a number must not be taken for one
            self.say(line[: limit - 2] + cut if limit and len(line) >= limit else line)

    def paragraph(self, text: str) -> None:
        """Prose, wrapped to the terminal."""
        width = max(20, min(100, shutil.get_terminal_size().columns - 1)) if self.is_terminal else 100
        self.say("\n".join(textwrap.wrap(text, width)))

    # -- for programs --------------------------------------------------------------------------------------------

    def result(self, document: Any, text: str | Callable[[], None]) -> None:
        """The answer of a command: one JSON document, or the same for people."""
        if self.json_mode:
            self._json(self.out, document, indent=1)
        elif isinstance(text, str):
            self.say(text)
        else:
            text()

    def document(self, document: Any) -> None:
        """JSON that is the answer itself, whoever asks."""
        self._json(self.out, document, indent=1)

    def event(self, document: Mapping[str, Any], text: str) -> None:
        """One thing that happened: a line of JSON, or a line of text."""
        if self.json_mode:
            self._json(self.out, document)
            self.flush()
        elif text:
            self.say(text)
            self.flush()

    def error(self, error: TuneError, exit_code: int, *, debug: bool = False) -> None:
        """What went wrong, and what to do next."""
        trace = _traceback(error) if debug else ""
        if self.json_mode:
            document = {
                "error": type(error).__name__,
                "exit_code": exit_code,
                "message": error.message,
                "hint": error.hint,
            }
            self._json(self.err, document | ({"traceback": trace} if trace else {}))
            return
        if trace:
            self.note(trace)
        self.note(f"error: {error.message or type(error).__name__}")
        if error.hint:
            self.note(f"  hint: {error.hint}")

    def bug(self, error: BaseException) -> None:
        """Something nobody foresaw: the whole trace, without the values of variables."""
        import orchestrator

        what = f"{type(error).__name__}: {error}"
        hint = "this is a bug; please report it together with the trace"
        if self.json_mode:
            document = {"error": type(error).__name__, "exit_code": 1, "message": what, "hint": hint}
            self._json(self.err, document | {"traceback": _traceback(error)})
            return
        self.note(_traceback(error))
        self.note(f"error: {what}")
        self.note(f"  this is a bug in tune {orchestrator.__version__}; please report it together with the lines above")

    # -- progress ------------------------------------------------------------------------------------------------

    @contextmanager
    def progress(self, label: str, total: int | None = None, *, unit: str = "") -> Iterator[Meter]:
        """Counts what is done; shown on stderr once the work has lasted a second."""
        meter = Meter(self, label, total, unit)
        try:
            yield meter
        finally:
            meter.close()

    def write_err(self, text: str) -> None:
        """A piece of a progress line."""
        self._write(self.err, text)
        self.flush()

    # -- below ---------------------------------------------------------------------------------------------------

    def _json(self, stream: TextIO | None, document: Any, indent: int | None = None) -> None:
        text = json.dumps(_clean(document), indent=indent, ensure_ascii=not self.speaks_unicode)
        self._write(stream, text + "\n")

    def _write(self, stream: TextIO | None, text: str) -> None:
        if stream is not None:
            try:
                stream.write(text)
            except BrokenPipeError:
                raise PipeClosed from None
            except OSError as e:
                self._lose(stream, e)

    def _lose(self, stream: TextIO, error: OSError) -> None:
        """A full disk below a log file, or a terminal that is gone, must not end what drives a rented instance."""
        if self.lost is None:
            self.lost = error
        discard_output(stream)
        if stream is self.out:
            self.note(f"warning: the output cannot be written ({error.strerror or error}); the work goes on without it")


class Meter:
    """Counts what is done, and shows it when it takes long."""

    def __init__(self, render: Renderer, label: str, total: int | None, unit: str) -> None:
        from orchestrator.clock import SystemClock

        self._clock = SystemClock()
        self._render, self._label, self._total, self._unit = render, label, total, unit
        self._done = 0
        self._started = self._shown = self._clock.monotonic()
        self._redraws = render.err is not None and render.err.isatty() and render.can_redraw
        self._drawn = False

    def add(self, amount: int) -> None:
        """So much more is done."""
        self.reach(self._done + amount)

    def reach(self, done: int, _where: str = "") -> None:
        """So much is done in all."""
        self._done = done
        now = self._clock.monotonic()
        every_s = 0.1 if self._redraws else PROGRESS_EVERY_S
        if (
            self._render.json_mode
            or now - self._started < PROGRESS_AFTER_S
            or (self._drawn and now - self._shown < every_s)
        ):
            return
        self._shown, self._drawn = now, True
        self._render.write_err(f"\r{self._text()}  " if self._redraws else f"{self._text()}\n")

    def _text(self) -> str:
        if self._total:
            return f"{self._label}: {min(100, 100 * self._done // self._total)}%"
        return f"{self._label}: {size(self._done) if self._unit == 'bytes' else f'{self._done:,}'}"

    def close(self) -> None:
        """Wipe the line, where there is one to wipe."""
        if self._drawn and self._redraws:
            self._render.write_err("\r" + " " * (len(self._text()) + 2) + "\r")


def _traceback(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(error)).rstrip()


def _clean(value: Any) -> Any:
    """Plain JSON data without secrets: times as ISO text, and money as text, so that no cent is rounded."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, dict):
        return {redact(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return redact(value.isoformat() if hasattr(value, "isoformat") else str(value))


def _width(text: str) -> int:
    """Columns on a screen: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
