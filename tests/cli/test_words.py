"""Numbers as people say them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from orchestrator.cli import words


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0s"),
        (59.6, "1m 00s"),
        (200, "3m 20s"),
        (7500, "2h 05m"),
        (360_000, "4d 4h"),
        (None, "-"),
        (float("inf"), "-"),
        (-5, "0s"),
    ],
)
def test_durations_use_two_units_at_most(seconds: float | None, said: str) -> None:
    assert words.duration(seconds) == said


@pytest.mark.parametrize(
    ("amount", "said"), [("0", "$0.00"), ("0.0123", "$0.012"), ("1.5", "$1.50"), ("1234.567", "$1234.57")]
)
def test_small_sums_keep_a_tenth_of_a_cent(amount: str, said: str) -> None:
    assert words.usd(Decimal(amount)) == said


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (123_456_789, "123 MB"), (5 * 10**12, "5.0 TB")]
)
def test_sizes_are_in_the_units_of_disks(count: int, said: str) -> None:
    assert words.size(count) == said


def test_a_falling_loss_looks_like_one() -> None:
    assert words.sparkline([4, 3, 2, 1]) == "█▅▃▁"
    assert words.sparkline([4, 3, 2, 1], plain=True) == "@+-_"
    assert words.sparkline([2, 2, float("nan"), 2]) == "▁▁▁"
    assert words.sparkline([]) == ""
    assert len(words.sparkline(list(range(100)), width=10)) == 10


def test_a_bar_is_never_longer_than_its_width() -> None:
    assert words.bar(5, 10, width=10) == "█████░░░░░"
    assert words.bar(20, 10, width=10, plain=True) == "##########"
    assert words.bar(1, 0) == ""
