"""Numbers as people say them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = "_.-=+*#@"


def duration(seconds: float | None) -> str:
    """`8s`, `3m 20s`, `2h 05m`, `4d 3h`; a dash when nobody knows."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    whole = max(0, round(seconds))
    if whole < MINUTE_S:
        return f"{whole}s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S}m {whole % MINUTE_S:02d}s"
    if whole < DAY_S:
        return f"{whole // HOUR_S}h {whole % HOUR_S // MINUTE_S:02d}m"
    return f"{whole // DAY_S}d {whole % DAY_S // HOUR_S}h"


def ago(seconds: float | None) -> str:
    return "-" if seconds is None else f"{duration(seconds)} ago"


def usd(amount: Decimal) -> str:
    """Cents are enough above a dollar; below, a tenth of a cent still tells something."""
    return f"${amount:.2f}" if abs(amount) >= 1 or amount == 0 else f"${amount:.3f}"


def size(count: int) -> str:
    """Bytes in the units of disks."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def sparkline(values: Sequence[float], *, width: int = 24, plain: bool = False) -> str:
    """The latest values as a row of little bars; `plain` where the screen knows only ASCII."""
    bars = _PLAIN_BARS if plain else _BARS
    shown = [value for value in values if math.isfinite(value)][-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if high == low:
        return bars[0] * len(shown)
    return "".join(bars[int((value - low) / (high - low) * (len(bars) - 1))] for value in shown)


def bar(done: int, total: int, *, width: int = 30, plain: bool = False) -> str:
    if total <= 0:
        return ""
    filled = min(width, width * done // total)
    full, empty = ("#", ".") if plain else ("█", "░")
    return full * filled + empty * (width - filled)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"
