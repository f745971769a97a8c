"""The clock of a rehearsal: the system's own, and hours can be put into it."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta


class LeapingClock:
    """Goes on by itself, as the processes on the machines do; `leap` puts time in between. Thread-safe."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._ahead_s)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_s

    def sleep(self, seconds: float) -> None:
        self.leap(seconds)

    def leap(self, seconds: float) -> None:
        with self._lock:
            self._ahead_s += seconds
