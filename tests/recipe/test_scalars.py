"""One scalar, one value, or one clear reason why not."""

from __future__ import annotations

import pytest

from orchestrator.recipe.scalars import (
    Unfit,
    nearest,
    parse_any,
    parse_bool,
    parse_choice,
    parse_float,
    parse_int,
    parse_number,
    parse_text,
    show,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-4", 0.0002),
        ("1E-4", 0.0001),
        ("2.e-4", 0.0002),
        ("0.0002", 0.0002),
        (".0002", 0.0002),
        ("5e+3", 5000.0),
        ("1.", 1.0),
        ("-1", -1.0),
        ("+3.5", 3.5),
        ("1_000.5", 1000.5),
        ("0x10", 16.0),
        ("0", 0.0),
        ("0.5", 0.5),
    ],
)
def test_every_yaml_1_2_float_is_a_float(text: str, value: float) -> None:
    assert parse_float(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("1_000", 1000), ("8.0", 8), ("1e3", 1000), ("0x10", 16), ("0o10", 8), ("-3", -3), ("0", 0), (" 7 ", 7)],
)
def test_whole_numbers_are_exact(text: str, value: int) -> None:
    assert parse_int(text) == value
    assert isinstance(parse_int(text), int)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("2e-4x", "write 2e-4"),
        ("1,000", "write 1000"),
        ("1,5", "write 1.5"),
        ("0.0002\u00a0", "U+00A0 (NO-BREAK SPACE)"),
        ("\u22121", "U+2212 (MINUS SIGN); write -1"),
        ("\u20131e-4", "U+2013 (EN DASH); write -1e-4"),
        ("\uff11\uff16", "U+FF11 (FULLWIDTH DIGIT ONE); write 16"),
        ("1\u200b6", "U+200B (ZERO WIDTH SPACE); write 16"),
        ("\u0661", "U+0661 (ARABIC-INDIC DIGIT ONE)"),
        ("010", "write 10, or 0o10 for octal"),
        ("09", "write 9"),
        ("0b11", "decimal"),
        ("12:30", "base 60"),
        ("5%", "0.05"),
        (".inf", "finite"),
        ("nan", "finite"),
        ("1e999", "exponent"),
        ("", "a number is needed"),
        ("yes", "not a yes or no"),
        ("1" * 100, "longer than any number"),
    ],
)
def test_what_only_looks_like_a_number_is_refused_with_a_cure(text: str, hint: str) -> None:
    for parse in (parse_float, parse_int):
        with pytest.raises(Unfit) as refusal:
            parse(text)
        assert hint in refusal.value.hint


def test_a_fraction_is_no_whole_number() -> None:
    with pytest.raises(Unfit) as refusal:
        parse_int("8.5")
    assert refusal.value.hint == "write 8 or 9"
    with pytest.raises(Unfit, match="too large"):
        parse_int("9" * 30)


def test_steps_may_be_counts_or_shares() -> None:
    assert parse_number("100.0") == 100
    assert isinstance(parse_number("100.0"), int)
    assert parse_number("0.1") == 0.1


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "yes", "Yes", "on", "ON"])
def test_every_yes_is_true(text: str) -> None:
    assert parse_bool(text) is True


@pytest.mark.parametrize("text", ["false", "False", "no", "NO", "off", "Off"])
def test_every_no_is_false(text: str) -> None:
    assert parse_bool(text) is False


@pytest.mark.parametrize("text", ["maybe", "1", "y", "tRue", "", "true\u200b", "truе"])  # noqa: RUF001 - the last e is Cyrillic
def test_anything_else_is_neither(text: str) -> None:
    with pytest.raises(Unfit, match="neither true nor false"):
        parse_bool(text)


def test_no_is_a_word_where_it_is_a_choice() -> None:
    for text in ("no", "No", "off", "OFF", "false"):
        assert parse_choice(text, ("no", "steps", "epoch")) == "no"
    assert parse_choice("FALSE", ("checkpoint", "false")) == "false"
    with pytest.raises(Unfit) as refusal:
        parse_choice("epochs", ("no", "steps", "epoch"))
    assert refusal.value.hint == "did you mean epoch?"
    with pytest.raises(Unfit) as refusal:
        parse_choice("on", ("no", "steps", "epoch"))
    assert "one of: no, steps, epoch" in refusal.value.hint


def test_typographic_quotes_are_a_slip_unless_they_are_quoted() -> None:
    with pytest.raises(Unfit, match=r"U\+201C") as refusal:
        parse_text("\u201cacme/tiny\u201d", quoted=False)
    assert refusal.value.hint == 'use plain quotes: "acme/tiny"'
    assert parse_text("\u201chello\u201d", quoted=True) == "\u201chello\u201d"
    assert parse_text("it\u2019s", quoted=False) == "it\u2019s"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("1", 1),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("0x10", 16),
        ("null", None),
        ("2026-01-01", "2026-01-01"),
        ("12:30", "12:30"),
        ("010", "010"),
        ("no", "no"),
        ("abc", "abc"),
    ],
)
def test_where_nothing_is_expected_yaml_1_2_decides(text: str, value: object) -> None:
    found = parse_any(text, quoted=False)
    assert found == value
    assert type(found) is type(value)
    assert parse_any(text, quoted=True) == text


def test_messages_stay_on_one_line_and_short() -> None:
    assert show("a\nb\u200b") == "`a\\nb\\u200b`"
    assert len(show("x" * 10_000)) < 70


def test_suggestions_look_through_case_dashes_and_small_slips() -> None:
    known = ["learning_rate", "lora_r"]
    assert nearest("Learning-Rate", known) == "learning_rate"
    assert nearest("lerning_rate", known) == "learning_rate"
    assert nearest("lora_r:", known) == "lora_r"
    assert nearest("zzz", known) == ""
    assert nearest("x" * 1000, known) == ""
