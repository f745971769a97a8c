"""How rows become optimizer steps: held-out rows, packing, and the count. Pure, and standard library only.

This file is copied as it is beside the training script, so that the steps foretold are the steps made.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections.abc import Sequence


def held_out(count: int, size: float, seed: int) -> list[int]:
    """Which of `count` rows are kept for evaluation. `size` is a share below 1, or a number of rows."""
    wanted = math.ceil(size * count) if size < 1 else int(size)
    return sorted(random.Random(f"{seed}/held out").sample(range(count), min(wanted, count)))  # noqa: S311 - no secret


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Rows that go together into one, none longer than `capacity`: best fit, longest first, the same every time."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    groups: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free, group), sorted
    for i in order:
        at = bisect_left(room, (lengths[i], -1))
        free, group = room.pop(at) if at < len(room) else (capacity, len(groups))
        if group == len(groups):
            groups.append([])
        groups[group].append(i)
        if free > lengths[i]:
            insort(room, (free - lengths[i], group))
    return groups


def steps_per_epoch(rows: int, micro_batch: int, accumulation: int) -> int:
    """Optimizer steps in one pass; an incomplete last batch counts."""
    return math.ceil(math.ceil(rows / micro_batch) / accumulation)


def total_steps(
    rows: int, micro_batch: int, accumulation: int, *, epochs: float = 1.0, max_steps: int | None = None
) -> int:
    """Optimizer steps of the whole training."""
    if rows < 1:
        return 0
    return max_steps or math.ceil(steps_per_epoch(rows, micro_batch, accumulation) * epochs)
