"""YAML gone wrong: the line, what happened, what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import RecipeError
from orchestrator.recipe import load
from tests.recipe.reading import BASE, only, read, refused


@pytest.mark.parametrize(
    ("text", "line", "says", "cure"),
    [
        (BASE + "lora_r:16\nseed: 1\n", 2, "a space is missing after the colon", "write `lora_r: 16`"),
        (BASE + "lora_r:16\n", 2, "a space is missing after the colon", "write `lora_r: 16`"),
        ("base_model:acme/x\nlora_r:16\n", 1, "a space is missing after the colon", "write `base_model: acme/x`"),
        (BASE + "lora_r\uff1a 16\n", 2, "FULLWIDTH COLON", "plain colon"),
        (BASE + "lora_r = 16\nseed: 1\n", 2, "`=` where a colon", "write `lora_r: 16`"),
        (BASE + "lora_r 16\nseed: 1\n", 2, "without a colon", "write `lora_r: 16`"),
        (BASE + "lora_r\nseed: 1\n", 2, "`lora_r` has no colon", "write `key: value`"),
        (BASE + ": 1\n", 2, "a key is missing before the colon", "write `key: value`"),
        (BASE + 'wandb_name: "abc\nseed: 1\n', 2, "never closed", "close it"),
        (BASE + "wandb_name: 'abc\nseed: 1\n", 2, "never closed", "close it"),
        (BASE + "datasets: [{path: a}\nseed: 1\n", 2, "bracket `[`", "line 3"),
        (BASE + "datasets: [{path: a]\nseed: 1\n", 2, "brace `{`", "close it"),
        (BASE + "datasets: [a]]\n", 2, "a `]` without its opening", "remove it"),
        (BASE + "  lora_r: 16\n", 2, "indented under a value", "same column"),
        (BASE + "datasets:\n  - path: a\n   type: b\n", 4, "indentation", "one column"),
        (BASE + "wandb_name: a: b\n", 2, "a second colon", "quotes"),
        (BASE + 'wandb_name: "a" b\n', 2, "after a closing quote", "whole value"),
        (BASE + "wandb_name: 'it's'\n", 2, "after a closing quote", "double each"),
        (BASE + "wandb_name: @me\n", 2, "'@'", "put the value in quotes"),
        (BASE + "wandb_name: %me\n", 2, "'%'", "put the value in quotes"),
        (BASE + 'output_dir: "C:\\models"\n', 2, "in quoted text", "single quotes"),
        (BASE + 'wandb_name: "\\UFFFFFFFF"\n', 2, "not YAML", "escapes"),
        (BASE + 'wandb_name: "\\ud800"\n', 2, "surrogate", "the character itself"),
        (BASE + "wandb_name: *x\n", 2, "undefined alias", "&name"),
        (BASE + "x-a: &a {seed: 1}\nx-b: &a {seed: 2}\n", 3, "an anchor of this name", "rename"),
        (
            BASE + "wandb_name: !!python/object/apply:os.system ['ls']\n",
            2,
            "!!python/object/apply:os.system",
            "plain value",
        ),
        (BASE + "seed: !!int '3'\n", 2, "`!!int` is not allowed", "plain value"),
        (BASE + "? [a, b]\n: 1\n", 2, "a key must be a plain word", "brackets"),
        ("- a\n- b\n", 1, "the file holds a list", "one key per line"),
        ("hello\n", 1, "`hello` has no colon", "write `key: value`"),
        ("", 1, "recipe is empty", "tune init"),
        ("---\n", 1, "recipe is empty", "tune init"),
        ("null\n", 1, "recipe is empty", "tune init"),
        ("base_model: a/b\n---\n", 2, "more than one document", "one recipe per file"),
    ],
)
def test_each_slip_has_its_line_and_its_cure(text: str, line: int, says: str, cure: str) -> None:
    problem = only(text)
    assert problem.line == line
    assert says in problem.message
    assert cure in problem.hint


def test_json_and_document_markers_are_yaml_too() -> None:
    assert read('{"base_model": "acme/x", "adapter": "lora", "lora_r": 8}').training["lora_r"] == 8
    assert read("%YAML 1.2\n---\nbase_model: a/b\n...\n").training == {"base_model": "a/b"}


def test_depth_and_size_are_bounded() -> None:
    assert "nested more than 40 deep" in only(BASE + "model_kwargs: " + "[" * 3000).message
    deep = "".join(" " * i + "a:\n" for i in range(200))
    assert "nested more than 40 deep" in only(BASE + deep).message
    many = "tokens: [" + "a," * 60_000 + "a]\n"
    assert "values" in only(BASE + many).message


def test_a_bomb_of_aliases_goes_off_harmlessly() -> None:
    rows = ["x-a: &a [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"x-{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]" for i in range(12)]
    assert "once aliases are resolved" in only(BASE + "\n".join(rows) + "\n").message


@pytest.mark.parametrize(
    "text", ["x-a: &a [*a]\n", "x-a: &a\n  <<: *a\n", "x-a: &a {b: {<<: *a}}\n", "x-a: &a {b: *a}\n"]
)
def test_an_alias_within_itself_is_refused(text: str) -> None:
    assert "an alias inside the very thing it names" in only(BASE + text).message


def test_merged_keys_yield_to_the_mappings_own_and_the_first_source_wins() -> None:
    recipe = read(
        BASE
        + "x-one: &one {seed: 1, lora_r: 4}\nx-two: &two {seed: 2, lora_alpha: 8}\n"
        + "adapter: lora\nlora_r: 32\n<<: [*one, *two]\n"
    )
    assert {k: recipe.training[k] for k in ("seed", "lora_r", "lora_alpha")} == {
        "seed": 1,
        "lora_r": 32,
        "lora_alpha": 8,
    }


def test_merging_anything_but_mappings_is_refused() -> None:
    assert "only mappings can be merged" in only(BASE + "<<: 3\n").message
    assert "set twice (lines 3 and 4)" in only(BASE + "x-a: &a {seed: 1}\n<<: *a\n<<: *a\n").message


def test_a_duplicate_is_reported_once_however_often_it_is_aliased() -> None:
    problems = refused(BASE + "x-a: &a {seed: 1, seed: 2}\nx-b: *a\nx-c: *a\n")
    assert len(problems) == 1


def test_everything_wrong_is_said_at_once_in_order() -> None:
    problems = refused(BASE + "seed: x\nlora_ranl: 1\nseed: 2\ntune: {trainer: tlr}\nnum_epochs: 0\n")
    assert [p.line for p in problems] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("make", ["missing", "folder", "nul"])
def test_a_file_that_is_not_there_is_a_recipe_problem(make: str, tmp_path: Path) -> None:
    path = {"missing": tmp_path / "no.yaml", "folder": tmp_path, "nul": Path("a\0b")}[make]
    with pytest.raises(RecipeError) as caught:
        load(path)
    assert caught.value.problems[0].hint
    assert str(path) in str(caught.value)


def test_the_message_names_file_line_key_and_cure(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(BASE + "lerning_rate: 1\n")
    with pytest.raises(RecipeError) as caught:
        load(path)
    assert str(caught.value) == (
        f"{path}: 1 problem\n  {path}:2: lerning_rate - unknown key; did you mean learning_rate?"
    )
