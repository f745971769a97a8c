"""Durations, money and sizes."""

from __future__ import annotations

from decimal import Decimal

import pytest

from orchestrator.recipe.scalars import Unfit
from orchestrator.recipe.units import parse_bytes, parse_duration_s, parse_gb, parse_gib, parse_usd, show_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20m", 1200),
        ("12h", 43_200),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("900s", 900),
        ("1.5h", 5400),
        ("2 days", 172_800),
        ("90 minutes", 5400),
        ("1d2h3m4s", 93_784),
        ("20M", 1200),
    ],
)
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("15", "write 15m or 15s"),
        ("12:30", "write 12h30m or 12m30s"),
        ("30m1h", "20m"),
        ("1h1h", "20m"),
        ("5 parsecs", "20m"),
        ("-5m", "20m"),
        ("", "20m"),
        ("0m", "20m"),
        ("99999d", "20m"),
        ("1e3s", "20m"),
        ("\uff11h", "20m"),
    ],
)
def test_a_duration_that_could_mean_two_things_or_nothing_is_refused(text: str, hint: str) -> None:
    with pytest.raises(Unfit) as refusal:
        parse_duration_s(text)
    assert hint in refusal.value.hint


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("$0.40", "0.40"),
        ("0.60", "0.60"),
        ("0.4 USD", "0.4"),
        ("usd 3", "3"),
        ("6", "6"),
        (".5", ".5"),
        ("$0.40/h", "0.40"),
    ],
)
def test_money_is_exact_dollars(text: str, amount: str) -> None:
    assert parse_usd(text) == Decimal(amount)


@pytest.mark.parametrize("text", ["0.4 EUR", "€3", "£3", "0,40", "-1", "free", "1e3", "$", "", "0.4 USD USD", "\u0661"])
def test_anything_else_is_not_dollars(text: str) -> None:
    with pytest.raises(Unfit) as refusal:
        parse_usd(text)
    assert refusal.value.hint


def test_binary_and_decimal_sizes_differ() -> None:
    assert parse_gb("100GiB") == parse_gb("100Gi") == pytest.approx(107.37, abs=0.01)
    assert parse_gb("24GB") == parse_gb("24 GB") == parse_gb("24G") == 24
    assert parse_gib("24GiB") == 24
    assert parse_gib("24GB") < 24  # a card sold as 24 GB passes
    assert parse_bytes("512MB") == 512e6
    assert parse_bytes("1.5TiB") == 1.5 * 2**40


@pytest.mark.parametrize("text", ["100", "GB", "-1GB", "1PBs", "", "0GB", "1,5GB", "9" * 30 + "GB"])
def test_a_size_without_unit_or_sense_is_refused(text: str) -> None:
    with pytest.raises(Unfit) as refusal:
        parse_gb(text)
    assert refusal.value.hint


def test_a_bare_size_is_answered_with_both_likely_forms() -> None:
    with pytest.raises(Unfit) as refusal:
        parse_gb("100")
    assert refusal.value.hint == "write 100GB or 100GiB"


@pytest.mark.parametrize(("seconds", "text"), [(1200, "20m"), (5400, "90m"), (7200, "2h"), (5, "5s"), (90.5, "90.5s")])
def test_durations_are_shown_as_they_are_written(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text
    assert parse_duration_s(text) == seconds
