"""How many optimizer steps a number of rows makes. Arithmetic only.

This file, too, is copied as it is beside the training script, so that the steps foretold are the steps made.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence

PACKING_BATCH = 1000  # TRL packs the rows of one `datasets.map` batch together, and that is its size


def packed(lengths: Sequence[int], sequence_len: int) -> int:
    """How many sequences TRL's packing (strategy `bfd`, 1.14) makes of rows of these lengths, in this order."""
    starts = range(0, len(lengths), PACKING_BATCH)
    return sum(_best_fit_decreasing(lengths[start : start + PACKING_BATCH], sequence_len) for start in starts)


def _best_fit_decreasing(lengths: Sequence[int], sequence_len: int) -> int:
    opened = 0
    spaces: list[int] = []  # distinct sizes of free space in opened sequences, ascending
    bins_with = Counter[int]()
    for length in sorted((min(length, sequence_len) for length in lengths if length > 0), reverse=True):
        at = bisect_left(spaces, length)
        if at == len(spaces):
            opened += 1
            left = sequence_len - length
        else:
            space = spaces[at]
            left = space - length
            bins_with[space] -= 1
            if not bins_with[space]:
                del spaces[at]
        if left:
            if not bins_with[left]:
                insort(spaces, left)
            bins_with[left] += 1
    return opened


def optimizer_steps(
    sequences: int,
    *,
    micro_batch_size: int,
    gradient_accumulation_steps: int,
    num_epochs: float,
    max_steps: int = 0,
    world_size: int = 1,
    drop_last: bool = False,
) -> int:
    """The steps that Hugging Face's Trainer takes: the last batches of an epoch may be smaller, and count.

    With `drop_last`, incomplete batches are left out, as Axolotl does when it packs.
    """
    whole = sequences // micro_batch_size if drop_last else math.ceil(sequences / micro_batch_size)
    batches = whole // world_size if drop_last else math.ceil(whole / world_size)
    if not batches:
        return 0
    if max_steps > 0:
        return max_steps
    return math.ceil(num_epochs * math.ceil(batches / gradient_accumulation_steps))
