"""Durations, money and sizes as people write them; a number without its unit is refused with the likely forms."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from orchestrator.recipe.scalars import Unfit, show

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_WORDS = {
    "sec": "s",
    "secs": "s",
    "second": "s",
    "seconds": "s",
    "min": "m",
    "mins": "m",
    "minute": "m",
    "minutes": "m",
}
_WORDS |= {"hr": "h", "hrs": "h", "hour": "h", "hours": "h", "day": "d", "days": "d"}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]+)", re.ASCII)
_LONGEST_S = 366 * 86_400.0
_MONEY = re.compile(
    r"(?:usd ?|\$ ?)?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?: ?(?:usd|\$))?(?: ?(?:/|per) ?(?:h|hr|hour))?", re.ASCII
)
_FOREIGN = re.compile(r"eur|gbp|chf|cny|jpy|inr|[€£¥₹]")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]+)", re.ASCII)
_BYTES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_duration_s(text: str) -> float:
    """Seconds of `20m`, `12h`, `1h30m`, `900s`, `1.5h`, `2 days`."""
    bare = text.strip().lower()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", bare, re.ASCII):
        raise Unfit(f"{show(text)} has no unit", f"write {bare}m or {bare}s" if float(bare) >= 1 else f"write {bare}h")
    if re.fullmatch(r"[0-9]+(:[0-9]+)+", bare, re.ASCII):
        first, second = bare.split(":")[:2]
        raise Unfit(f"{show(text)} could be hours or minutes", f"write {first}h{second}m or {first}m{second}s")
    total, at, smallest = 0.0, 0, float("inf")
    while at < len(bare):
        match = _PART.match(bare, at)
        size = _SECONDS.get(_WORDS.get(match[2], match[2])) if match and len(match[1]) <= 12 else None
        if match is None or size is None or size >= smallest:  # larger units first, each once
            raise Unfit(f"{show(text)} is not a duration", "write it like 20m, 12h or 1h30m")
        total, smallest = total + float(match[1]) * size, size
        at = match.end() + (bare[match.end() : match.end() + 1] == " ")
    if total <= 0 or total > _LONGEST_S:
        raise Unfit(
            f"{show(text)} is {'no time at all' if total <= 0 else 'more than a year'}", "write it like 20m or 12h"
        )
    return total


def parse_usd(text: str) -> Decimal:
    """US dollars of `0.60`, `$0.40`, `0.4 USD`, `0.60/h`."""
    bare = text.strip().lower()
    if _FOREIGN.search(bare):
        raise Unfit(
            f"{show(text)} is not in US dollars", "marketplaces bill in USD; write the amount in USD, like 0.60"
        )
    match = _MONEY.fullmatch(bare)
    if match is None or len(bare) > 30:
        hint = (
            f"write {bare.replace(',', '.')}"
            if re.fullmatch(r"\$?[0-9]+,[0-9]{1,2}", bare)
            else "write it like 0.60 or $0.60"
        )
        raise Unfit(f"{show(text)} is not an amount of money", hint)
    try:
        return Decimal(match[1])
    except InvalidOperation:  # pragma: no cover - the pattern admits only decimals
        raise Unfit(f"{show(text)} is not an amount of money", "write it like 0.60") from None


def parse_bytes(text: str) -> float:
    """Bytes of `100Gi`, `100GiB` (binary), `24GB`, `24 GB`, `24G` (decimal)."""
    bare = text.strip().lower()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", bare, re.ASCII):
        raise Unfit(f"{show(text)} has no unit", f"write {bare}GB or {bare}GiB")
    match = _SIZE.fullmatch(bare)
    scale = _BYTES.get(match[2].removesuffix("b")) if match else None
    if match is None or scale is None or len(bare) > 24:
        raise Unfit(f"{show(text)} is not a size", "write it like 100GiB or 24GB")
    size = float(match[1]) * scale
    if size <= 0:
        raise Unfit(f"{show(text)} is nothing", "write it like 100GiB or 24GB")
    return size


def parse_gb(text: str) -> float:
    """Decimal gigabytes, as disks are sold: 100GiB is 107.4."""
    return parse_bytes(text) / 1e9


def parse_gib(text: str) -> float:
    """Binary gigabytes, as memory is counted: 24GB is 22.35, so that a card sold as 24 GB always passes."""
    return parse_bytes(text) / 2**30


def show_duration(seconds: float) -> str:
    """`1200.0` as `20m`, for messages."""
    for unit, size in (("h", 3600.0), ("m", 60.0)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"
