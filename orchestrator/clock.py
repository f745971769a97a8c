"""What time it is, and how to wait. Nobody else asks the operating system."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for people and records, monotonic time for durations, and a way to wait."""

    def now(self) -> datetime:
        """Aware UTC."""

    def monotonic(self) -> float:
        """Seconds that never go backwards; only differences mean anything."""

    def sleep(self, seconds: float) -> None:
        """Wait. A stepped clock returns at once and moves itself forward."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
