"""What an eye does not see, and what an editor does to text."""

from __future__ import annotations

import pytest

from tests.recipe.reading import BASE, only, read, refused


@pytest.mark.parametrize(
    ("char", "name"),
    [
        ("\u00a0", "U+00A0"),
        ("\u200b", "U+200B"),
        ("\u200d", "U+200D"),
        ("\u2028", "U+2028"),
        ("\u2029", "U+2029"),
        ("\u0085", "U+0085"),
        ("\u3000", "U+3000"),
        ("\u00ad", "U+00AD"),
        ("\u202e", "U+202E"),
        ("\ufeff", "U+FEFF"),
        ("\x00", "U+0000"),
        ("\x1b", "U+001B"),
        ("\x0c", "U+000C"),
    ],
)
@pytest.mark.parametrize("line", ["lora_r:{}16", "lora{}_r: 16", "lora_r: 16{}", "{}lora_r: 16"])
def test_an_invisible_character_is_the_only_thing_reported_on_its_line(char: str, name: str, line: str) -> None:
    problem = only(BASE + "adapter: lora\n" + line.format(char) + "\n")
    assert problem.line == 3
    assert problem.message.startswith(f"invisible character {name}")


def test_other_problems_are_reported_beside_it() -> None:
    problems = refused(BASE + "lora_r:\u00a016\nlerning_rate: 1\n")
    assert [p.line for p in problems] == [2, 3]


def test_comments_and_quotes_may_hold_what_they_like() -> None:
    recipe = read(
        BASE
        + "# caf\u00e9\u00a0!\nseed: 1  # here\u00a0too\n"
        + 'wandb_name: "\U0001f468\u200d\U0001f469 a\tb"\n'
        + "default_system_message: |\n  Bonjour\u00a0!\n\ta\n".replace("\ta", "  \ta")
    )
    assert recipe.training["wandb_name"] == "\U0001f468\u200d\U0001f469 a\tb"
    assert recipe.training["default_system_message"] == "Bonjour\u00a0!\n\ta\n"


def test_a_line_separator_is_refused_even_in_a_comment_where_it_would_end_it() -> None:
    assert "U+2028" in only(BASE + "# a\u2028seed: 1\n").message


def test_a_number_in_quotes_is_still_looked_at() -> None:
    problem = only(BASE + 'learning_rate: "0.0002\u00a0"\n')
    assert (problem.where, problem.line) == ("learning_rate", 2)
    assert "U+00A0" in problem.hint


def test_tabs_separate_but_never_indent() -> None:
    recipe = read(BASE + "\t# a comment\n \t \nadapter:\tlora\t# why\nlora_r: \t16\t\n")
    assert recipe.training["lora_r"] == 16
    assert recipe.training["adapter"] == "lora"
    problems = refused(BASE + "tune:\n\ttrainer: trl\n \tspot: never\n")
    assert [(p.line, p.message) for p in problems] == [(n, "a TAB is used for indentation") for n in (3, 4)]


def test_old_line_ends_are_line_ends() -> None:
    assert read("base_model: a/b\rseed: 1\r").lines["seed"] == 2


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_wide_encoding_is_named(encoding: str) -> None:
    problem = only((BASE + "seed: 1\n").encode(encoding))
    assert "UTF-16" in problem.message
    assert problem.hint == "save it as UTF-8"


def test_windows_1252_is_named_with_the_character_it_meant() -> None:
    problem = only((BASE + "wandb_name: \u201ccaf\u00e9\u201d\n").encode("cp1252"))
    assert problem.line == 2
    assert "0x93 ('\u201c' in Windows-1252?)" in problem.message


def test_a_file_that_cannot_be_a_recipe_is_refused_at_once() -> None:
    problem = only(BASE.encode() + b"wandb_name: " + b"a" * 1_000_000)
    assert problem.line == 2
    assert "too many for a recipe" in problem.message


@pytest.mark.parametrize(
    ("line", "where", "says"),
    [
        ("base_model: \u201cacme/tiny\u201d", "base_model", "U+201C"),
        ("base_model: acme/t\u0131ny", "base_model", "not a model id"),
        ("seed: \u20131", "seed", "`\u20131` is not a number"),
        ("lora_r: \uff11\uff16", "lora_r", "is not a number"),
        ("l\u043era_r: 16", "l\u043era_r", "U+043E (CYRILLIC SMALL LETTER O)"),
        ('"lora_r ": 16', "lora_r ", "a space at its end"),
        ("lora_r:: 16", "lora_r:", "two colons"),
    ],
)
def test_what_looks_right_and_is_not_is_named(line: str, where: str, says: str) -> None:
    base = "" if line.startswith("base_model") else BASE
    problem = only(base + line + "\n")
    assert problem.where == where
    assert says in problem.message
