"""Several files at a time, and one error at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 8  # small files cost a round trip each, whatever the bandwidth; the store bounds the memory of large ones


def in_parallel(act: Callable[[T], R], things: Iterable[T]) -> list[R]:
    """`act` on each, results in order. After an error what has not begun is left, what has begun is waited for."""
    wanted = list(things)
    if len(wanted) < 2:
        return [act(thing) for thing in wanted]
    pool = ThreadPoolExecutor(min(_AT_ONCE, len(wanted)), thread_name_prefix="file")
    try:
        return list(pool.map(act, wanted))
    finally:
        pool.shutdown(cancel_futures=True)
