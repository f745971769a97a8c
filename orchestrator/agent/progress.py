"""What the trainer says of itself: its events, read as they are appended."""

from __future__ import annotations

import json
import math
import threading
from collections import deque
from pathlib import Path
from typing import Any

from orchestrator.clock import Clock

_READ_MAX = 1 << 22  # per look: a trainer that floods its events must not stop the agent
_LINE_MAX = 1 << 16
_SPARKLINE = 60
_NOTES_MAX = 50


def number(value: Any) -> float | None:
    """A logged number; `nan`, `inf` and `-inf` come as text, because JSON has no word for them."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def finite(value: float | None) -> float | None:
    """The number, if it can stand in JSON."""
    return value if value is not None and math.isfinite(value) else None


class Progress:
    """One trainer start, seen through its events file. Thread-safe; `poll` reads on from where it stopped."""

    def __init__(self, path: Path, *, clock: Clock, bad_loss_logs: int = 3) -> None:
        self._path = path
        self._bad_loss_logs = bad_loss_logs
        self._clock = clock
        self._lock = threading.Lock()
        self._offset = 0
        self._rest = b""
        self._skipping = False
        self.started = False
        self.step = 0
        self.steps_seen = 0  # optimizer steps of this very start
        self.max_steps = 0
        self.phase = "loading"
        self.loss: float | None = None
        self.learning_rate: float | None = None
        self.tokens_per_s: float | None = None
        self.losses: deque[float] = deque(maxlen=_SPARKLINE)
        self.bad_logs = 0  # in a row
        self.last_good_step = 0
        self.done: tuple[int, int] | None = None
        self.oom: str | None = None
        self.versions: dict[str, str] = {}
        self.notes: deque[str] = deque(maxlen=_NOTES_MAX)
        self.last_step_at = clock.monotonic()
        self.last_sign_at = clock.monotonic()  # any event
        self.phase_at = clock.monotonic()  # when the present phase was announced
        self._tokens_per_step: float | None = None
        self._last_tokens: tuple[float, float] | None = None
        self._step_times: deque[tuple[float, int]] = deque(maxlen=20)

    def drain(self) -> None:
        """Take in all there is: the trainer is gone."""
        while self.poll():
            pass

    def poll(self) -> bool:
        """Take in complete lines that were appended since; False when there were none."""
        with self._lock:
            before = self._offset
            for line in self._lines():
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if isinstance(event, dict):
                    self._take(event)
            return self._offset > before

    @property
    def has_diverged(self) -> bool:
        """So many bad losses in a row that the weights are lost, whatever comes after them."""
        return self.bad_logs >= self._bad_loss_logs

    def is_suspect(self, step: int) -> bool:
        """Saved after the last loss that was a sane number, while the losses are not."""
        self.poll()
        return self.bad_logs > 0 and step > self.last_good_step

    def _lines(self) -> list[bytes]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_READ_MAX)
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._skipping and lines:  # the end of a line whose beginning was thrown away
            lines, self._skipping = lines[1:], False
        if len(self._rest) > _LINE_MAX:
            self._rest, self._skipping = b"", True
        return [line for line in lines if line.strip()]

    def _take(self, event: dict[str, Any]) -> None:
        self.last_sign_at = self._clock.monotonic()
        match event.get("event"):
            case "start":
                self.started = True
                self.max_steps = int(number(event.get("max_steps")) or 0)
                self._tokens_per_step = number(event.get("tokens_per_step"))
                versions = event.get("versions")
                if isinstance(versions, dict):
                    self.versions = {str(k): str(v) for k, v in versions.items()}
            case "phase":
                self.phase = str(event.get("name", ""))
                self.phase_at = self.last_sign_at
            case "step":
                self._take_step(event)
            case "log":
                self._take_log(event)
            case "note":
                self.notes.append(str(event.get("text", ""))[:500])
            case "oom":
                self.oom = str(event.get("text", ""))[:2000]
            case "done":
                self.done = (int(number(event.get("step")) or 0), int(number(event.get("max_steps")) or 0))

    def _take_step(self, event: dict[str, Any]) -> None:
        self.step = int(number(event.get("step")) or 0)
        self.steps_seen += 1
        self.phase = "training"
        self.last_step_at = self._clock.monotonic()
        self._step_times.append((number(event.get("at")) or 0.0, self.step))
        (first_at, first), (last_at, last) = self._step_times[0], self._step_times[-1]
        if self._tokens_per_step and last_at > first_at and self._last_tokens is None:
            self.tokens_per_s = finite(self._tokens_per_step * (last - first) / (last_at - first_at))

    def _take_log(self, event: dict[str, Any]) -> None:
        step = int(number(event.get("step")) or 0)
        loss, norm = number(event.get("loss")), number(event.get("grad_norm"))
        self._take_tokens(event)
        if "learning_rate" in event:
            self.learning_rate = finite(number(event["learning_rate"]))
        if "loss" not in event:
            return  # an evaluation or a summary
        self.loss = finite(loss)
        if self.has_diverged:
            return  # a number that looks sane again does not bring the weights back
        if _is_bad(loss, norm):
            self.bad_logs += 1
            return
        self.bad_logs = 0
        self.last_good_step = step
        if self.loss is not None:
            self.losses.append(self.loss)

    def _take_tokens(self, event: dict[str, Any]) -> None:
        tokens, at = number(event.get("tokens")), number(event.get("at"))
        if tokens is None or at is None:
            return
        if self._last_tokens is not None and at > self._last_tokens[1] and tokens >= self._last_tokens[0]:
            self.tokens_per_s = finite((tokens - self._last_tokens[0]) / (at - self._last_tokens[1]))
        self._last_tokens = (tokens, at)


def _is_bad(loss: float | None, grad_norm: float | None) -> bool:
    """NaN, infinite or null; or exactly zero with nothing to learn from, which is how masked-out labels look."""
    if loss is None or not math.isfinite(loss):
        return True
    return loss == 0.0 and (grad_norm is None or grad_norm == 0.0 or not math.isfinite(grad_norm))
