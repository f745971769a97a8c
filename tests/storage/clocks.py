"""A clock that moves only when told, and never waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class SteppedClock:
    def __init__(self, start: datetime = datetime(2026, 3, 1, 12, tzinfo=UTC)) -> None:
        self._now = start
        self.slept: list[float] = []

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._now.timestamp()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.step(seconds)

    def step(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
