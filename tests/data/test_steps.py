"""The steps that the check foretells are the steps that training takes."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.recipe import steps


def counted(sequences: int, micro: int, accumulate: int, epochs: int, world: int) -> int:
    """A training loop, walked through."""
    taken = 0
    for _ in range(epochs):
        left = sequences
        waiting = 0
        while left > 0:
            left -= micro * world  # one batch on every GPU; the last may be smaller
            waiting += 1
            if waiting == accumulate:
                taken, waiting = taken + 1, 0
        taken += waiting > 0
    return taken


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 200), st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
def test_steps_equal_a_loop_that_counts_them(n: int, micro: int, accumulate: int, epochs: int, world: int) -> None:
    found = steps.optimizer_steps(
        n, micro_batch_size=micro, gradient_accumulation_steps=accumulate, num_epochs=epochs, world_size=world
    )
    assert found == counted(n, micro, accumulate, epochs, world)


def test_part_of_an_epoch_is_rounded_up_and_max_steps_rules() -> None:
    sizes = {"micro_batch_size": 2, "gradient_accumulation_steps": 2}
    assert steps.optimizer_steps(40, num_epochs=0.25, **sizes) == 3
    assert steps.optimizer_steps(40, num_epochs=1, max_steps=7, **sizes) == 7
    assert steps.optimizer_steps(0, num_epochs=1, max_steps=7, **sizes) == 0


def test_incomplete_batches_are_left_out_where_the_trainer_does() -> None:
    sizes = {"micro_batch_size": 2, "gradient_accumulation_steps": 1, "num_epochs": 1}
    assert steps.optimizer_steps(5, drop_last=True, **sizes) == 2
    assert steps.optimizer_steps(1, drop_last=True, **sizes) == 0


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 32))
def test_packing_wastes_less_than_half_and_loses_nothing(lengths: list[int], capacity: int) -> None:
    bins = steps.packed(lengths, capacity)
    total = sum(min(length, capacity) for length in lengths)
    assert bins >= math.ceil(total / capacity)
    assert bins <= max(1, math.ceil(2 * total / capacity)) if total else bins == 0


@pytest.mark.train
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_packing_makes_as_many_sequences_as_trl(seed: int) -> None:
    import random

    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl.data_utils")
    draw = random.Random(seed)
    lengths = [draw.randint(1, 90) for _ in range(2300)]  # more than two batches of a thousand
    dataset = datasets.Dataset.from_dict({"input_ids": [[0] * length for length in lengths]})
    packed = trl.pack_dataset(dataset, 64, "bfd", {"load_from_cache_file": False, "keep_in_memory": True})
    assert steps.packed(lengths, 64) == len(packed)
