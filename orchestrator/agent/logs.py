"""Logs and metrics to the bucket, in segments; secrets covered; bounded however much a trainer says."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

from orchestrator import keys
from orchestrator.agent.bucket import Bucket
from orchestrator.agent.home import Home, read_json, write_json
from orchestrator.agent.redact import Redactor
from orchestrator.errors import StorageError

_log = logging.getLogger("tune.agent")
_KEPT_EVENTS = {"start", "log", "eval", "checkpoint", "done"}


class Limits:
    """How much of a log is stored, and kept on the disk."""

    head_bytes = 96 * 1024  # of one segment: how it began
    tail_bytes = 96 * 1024  # and how it ended; what lies between is counted
    total_bytes = 64 * 1024 * 1024  # of one attempt; after that only a little per segment
    little_bytes = 4 * 1024
    disk_bytes = 64 * 1024 * 1024  # the trainer's log is cut when it grows beyond
    metrics_bytes = 1024 * 1024  # of one segment


class Logs(threading.Thread):
    """Ships what was written since the last time, every `log_every_s`. Remembers on disk how far it came."""

    def __init__(self, bucket: Bucket, home: Home, redactor: Redactor, *, limits: type[Limits] = Limits) -> None:
        super().__init__(name="logs", daemon=True)
        self._bucket = bucket
        self._home = home
        self._redactor = redactor
        self._limits = limits
        self._finish = threading.Event()
        self._lock = threading.RLock()
        said = read_json(home.shipped)
        self._at: dict[str, int] = {str(k): int(v) for k, v in dict(said.get("at", {})).items()}
        self._segment = int(said.get("segment", 0))
        self._metrics_segment = int(said.get("metrics_segment", 0))
        self._total = int(said.get("total", 0))
        self._cut: list[str] = []  # taken from the log before it was truncated

    def run(self) -> None:
        while not self._finish.wait(self._bucket.config.log_every_s):
            self.ship()

    def close(self) -> None:
        """No more segments by itself; what is left goes with a last `ship`."""
        self._finish.set()
        if self.is_alive():
            self.join(30)

    def ship(self) -> bool:
        """Store what is new. False when the bucket did not take it: it goes with the next segment."""
        with self._lock:
            try:
                self._ship_log()
                self._ship_metrics()
            except StorageError as e:
                _log.warning("log not stored: %s", e)
                return False
            except OSError as e:
                _log.warning("log not read: %s", e)
                return False
            return True

    def trim(self) -> None:
        """Keep a flood from filling the disk: the log is cut, what it said is kept in short, the rest counted."""
        path = self._home.trainer_log
        try:
            if path.stat().st_size <= self._limits.disk_bytes:
                return
        except OSError:
            return
        with self._lock:
            text, _ = self._excerpt(path, self._limits.head_bytes // 2, self._limits.tail_bytes // 2)
            self._cut = [*self._cut, text][-2:]
            with path.open("r+b") as file:  # the trainer appends, so it goes on at the new end
                file.truncate(0)
            self._at[path.name] = 0

    def tail(self, lines: int, *, since: int = 0) -> list[str]:
        """The last lines the trainer wrote after byte `since`, secrets covered."""
        text, _ = self._excerpt(self._home.trainer_log, 0, 32 * 1024, start=since)
        return text.splitlines()[-lines:]

    def dump_stacks(self, incident: int, since: int) -> None:
        """Store what the trainer wrote from byte `since` on, as the stacks of this incident."""
        text, _ = self._excerpt(self._home.trainer_log, self._limits.head_bytes, self._limits.tail_bytes, start=since)
        key = keys.stacks(self._bucket.config.run_id, self._bucket.config.attempt, incident)
        try:
            self._bucket.store.put(key, text.encode())
        except StorageError as e:
            _log.warning("stacks not stored: %s", e)

    def _ship_log(self) -> None:
        head, tail = self._limits.head_bytes, self._limits.tail_bytes
        if self._total >= self._limits.total_bytes:
            head, tail = 0, self._limits.little_bytes
        agent, agent_at = self._excerpt(self._home.agent_log, head // 4, tail // 4)
        trainer, trainer_at = self._excerpt(self._home.trainer_log, head, tail)
        text = "".join(f"[agent] {line}\n" for line in agent.splitlines()) + "".join(self._cut) + trainer
        if not text:
            return
        data = text.encode()
        where = keys.log_segment(self._bucket.config.run_id, self._bucket.config.attempt, self._segment)
        self._bucket.store.put(where, data)
        self._segment += 1
        self._total += len(data)
        self._cut = []
        self._at[self._home.agent_log.name] = agent_at
        self._at[self._home.trainer_log.name] = trainer_at
        self._remember()

    def _ship_metrics(self) -> None:
        for path in sorted(self._home.work.glob("events-*.jsonl"), key=lambda p: int(p.stem.partition("-")[2])):
            at = self._at.get(path.name, 0)
            with path.open("rb") as file:
                file.seek(at)
                data = file.read(self._limits.metrics_bytes)
            cut = data.rfind(b"\n") + 1
            if cut == 0:
                if len(data) == self._limits.metrics_bytes:  # one endless line: not an event
                    self._at[path.name] = at + len(data)
                continue
            kept = b"".join(line + b"\n" for line in data[:cut].split(b"\n") if _is_metric(line))
            if kept:
                run_id, attempt = self._bucket.config.run_id, self._bucket.config.attempt
                text = self._redactor.text(kept.decode(errors="replace"))
                self._bucket.store.put(keys.metrics_segment(run_id, attempt, self._metrics_segment), text.encode())
                self._metrics_segment += 1
            self._at[path.name] = at + cut
            self._remember()

    def _remember(self) -> None:
        write_json(
            self._home.shipped,
            {
                "at": self._at,
                "segment": self._segment,
                "metrics_segment": self._metrics_segment,
                "total": self._total,
            },
        )

    def _excerpt(self, path: Path, head: int, tail: int, *, start: int | None = None) -> tuple[str, int]:
        """New text of a log, its middle left out when there is too much; and where to go on next time.

        Lines are kept whole where that is possible. Where a cut falls into a line, as much as the longest secret is
        left out beside it, so that no part of one shows.
        """
        try:
            size = path.stat().st_size
        except OSError:
            return "", 0
        at = self._at.get(path.name, 0) if start is None else start
        at = 0 if at > size else at
        with path.open("rb") as file:
            file.seek(at)
            if size - at <= head + tail:
                return self._whole_lines(file.read(size - at), at)
            first = self._clean(file.read(head), cut_start=False) if head else ""
            file.seek(size - tail)
            last = self._clean(file.read(tail), cut_start=True)
        left_out = size - at - head - tail
        return f"{first}[... about {left_out:,} bytes left out: the log says too much ...]\n{last}", size

    def _whole_lines(self, data: bytes, at: int) -> tuple[str, int]:
        """Up to the last line end: a secret may still be half written. A long unfinished line is not waited for."""
        cut = data.rfind(b"\n") + 1
        if cut == 0 or self._finish.is_set():
            if len(data) < 8192 and not self._finish.is_set():
                return "", at
            cut = len(data)
        text = self._redactor.text(data[:cut].decode(errors="replace"))
        return (text if text.endswith("\n") or not text else text + "\n"), at + cut

    def _clean(self, data: bytes, *, cut_start: bool) -> str:
        """A piece whose start or end was cut off somewhere."""
        text = self._redactor.text(data.decode(errors="replace"))
        margin = self._redactor.longest
        if cut_start:
            at = text.find("\n")
            return text[at + 1 :] if 0 <= at < len(text) - 1 else text[margin:] + "\n"
        at = text.rfind("\n")
        return text[: at + 1] if at >= 0 else text[: max(0, len(text) - margin)] + "\n"


def _is_metric(line: bytes) -> bool:
    try:
        event = json.loads(line)
    except ValueError:
        return False
    return isinstance(event, dict) and event.get("event") in _KEPT_EVENTS
