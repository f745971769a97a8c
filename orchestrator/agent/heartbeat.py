"""Says that the agent is alive and how the training goes, and listens for what it is asked to do."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace

from orchestrator import codec, keys
from orchestrator.agent import machine
from orchestrator.agent.bucket import Bucket, Orders, orders_of
from orchestrator.agent.home import Home, read_json, write_atomically, write_json
from orchestrator.agent.progress import Progress
from orchestrator.agent.redact import Redactor
from orchestrator.agent.restore import Restored
from orchestrator.agent.sync import Sync
from orchestrator.clock import Clock
from orchestrator.errors import StorageError
from orchestrator.types import Heartbeat

_log = logging.getLogger("tune.agent")
_NOTES_MAX = 20
_NOTE_CHARS = 500


@dataclass
class Status:
    """What the agent is about. Written by the main loop, read by the heartbeat."""

    stage: str = "fetching"
    progress: Progress | None = None
    restored: Restored | None = None
    setting: tuple[int, int] = (0, 0)
    trainer_starts: int = 0
    agent_starts: int = 0
    can_end_itself: bool | None = None  # as tried out; None: there was no way to ask
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=_NOTES_MAX))

    def note(self, text: str) -> None:
        """Something worth a user's eye; said once."""
        short = text[:_NOTE_CHARS]
        if short not in self.notes:
            self.notes.append(short)
            _log.warning("%s", text)


class Pulse(threading.Thread):
    """Beats every `heartbeat_s`. A slow or absent bucket delays a beat, never the training."""

    def __init__(
        self, bucket: Bucket, home: Home, status: Status, sync: Sync, *, redactor: Redactor, clock: Clock
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._bucket = bucket
        self._home = home
        self._status = status
        self._sync = sync
        self._redactor = redactor
        self._clock = clock
        self._seq = int(read_json(home.pulse).get("seq", 0))
        self._found_last = False
        self._finish = threading.Event()
        self._wake = threading.Event()
        self.orders = Orders()

    def run(self) -> None:
        while not self._finish.is_set():
            self.beat()
            self._wake.wait(self._bucket.config.heartbeat_s)
            self._wake.clear()

    def poke(self) -> None:
        """Beat now: something has changed."""
        self._wake.set()

    def close(self, timeout_s: float = 30.0) -> None:
        """Stop beating."""
        self._finish.set()
        self._wake.set()
        if self.is_alive():
            self.join(timeout_s)

    def beat(self) -> None:
        """Look at `run.json`, then say how things are. From the hand-over to another attempt on, say nothing more."""
        try:
            run = self._bucket.run()
            if run is not None:
                self.orders = orders_of(run, self._bucket.config.attempt)
            if self.orders.superseded:
                self._finish.set()
                return
            self._find_last()
            self._seq += 1
            data = codec.dump(self._compose())
            write_atomically(self._home.last_heartbeat, data)
            self._bucket.store.put(keys.heartbeat(self._bucket.config.run_id, self._bucket.config.attempt), data)
            write_json(self._home.pulse, {"seq": self._seq})
        except StorageError as e:
            _log.warning("heartbeat not stored: %s", e)
        except Exception:
            _log.exception("heartbeat failed")

    def _find_last(self) -> None:
        """Go on counting where an earlier agent of this attempt stopped, also when this disk is new."""
        if self._found_last:
            return
        where = keys.heartbeat(self._bucket.config.run_id, self._bucket.config.attempt)
        try:
            last = codec.load(Heartbeat, self._bucket.store.get(where).data, where=where)
            self._seq = max(self._seq, last.seq)
            self._status.agent_starts = max(self._status.agent_starts, last.agent_starts + 1)
        except StorageError:
            pass  # none yet, or not readable now: the count on this disk stands
        self._found_last = True

    def _compose(self) -> Heartbeat:
        status, progress, published = self._status, self._status.progress, self._sync.published
        beat = Heartbeat(
            attempt=self._bucket.config.attempt,
            seq=self._seq,
            stage=self._stage(),
            checkpoint_step=published.step if published else None,
            checkpoint_age_s=round(self._clock.monotonic() - published.at, 1) if published else None,
            restored_step=status.restored.step if status.restored else None,
            restored_from=status.restored.source if status.restored else "",
            notes=tuple(self._redactor.text(note) for note in self._notes()),
            trainer_starts=status.trainer_starts,
            agent_starts=status.agent_starts,
            disk_free_gb=round(machine.disk_free_bytes(self._home.root) / 1e9, 2),
            ram_used_gb=machine.ram_used_gb(),
            gpus=machine.gpus(),
            can_end_itself=bool(os.environ.get("TUNE_FAREWELL", "").strip())
            if status.can_end_itself is None
            else status.can_end_itself,
            ends_at_latest_s=seconds_left(self._home),
            micro_batch_size=status.setting[0],
            gradient_accumulation_steps=status.setting[1],
        )
        if progress is None:
            return beat
        return replace(
            beat,
            step=max(progress.step, beat.restored_step or 0),
            max_steps=progress.max_steps,
            loss=progress.loss,
            learning_rate=progress.learning_rate,
            tokens_per_s=progress.tokens_per_s,
            losses=tuple(progress.losses),
        )

    def _stage(self) -> str:
        status = self._status
        if status.stage != "training":
            return status.stage
        if status.progress is not None and status.progress.phase in {"saving", "finishing"}:
            return status.progress.phase
        return "training"

    def _notes(self) -> list[str]:
        own = self._status.notes
        theirs = list(self._status.progress.notes)[-5:] if self._status.progress else []
        return [*list(own), *(f"trainer: {text}" for text in theirs)]


def seconds_left(home: Home) -> float | None:
    """Until the hard deadline that the start command wrote at first boot; None where there is none."""
    try:
        return round(float(home.deadline.read_text(encoding="utf-8").strip()) - time.time(), 1)
    except (OSError, ValueError):
        return None
