"""Whatever is thrown at the loader, it answers with a recipe or with a list of problems."""

from __future__ import annotations

import json
import math
import random
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import RecipeError
from orchestrator.recipe import Recipe, loads
from orchestrator.recipe.scalars import parse_bool, parse_float, parse_int
from tests.recipe.reading import FIXTURES

quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FRAGMENTS = [
    "base_model: a/b\n",
    "lora_r: 1\n",
    "adapter: lora\n",
    "- ",
    "  ",
    ": ",
    ":\n",
    "[",
    "]",
    "{",
    "}",
    ",",
    "&a ",
    "*a",
    "<<: ",
    "<<: *a\n",
    "'",
    '"',
    ">\n",
    "# x\n",
    "---\n",
    "...\n",
    "!x ",
    "%YAML 1.2\n",
    "?\n",
    "\\",
    "\n",
    "x",
    "tune:",
    "tune: {",
    "provider: local",
    "datasets:\n",
    "  - path: x\n",
    "\xa0",
    "\u2028",
    "\ufeff",
    "010",
    "1e3",
    "null",
    "~",
    "no",
    "@",
    "`",
    "\x00",
    "\xe9",
    "\r",
    "\r\n\n",
    "\x85",
    "x-a: ",
    "checkpoint_every: 5s",
    "environment: {A: b}",
    "special_tokens: ",
    "model_kwargs: ",
    "lr_groups: [{}]\n",
    "fsdp: ",
    "deepspeed: ",
    "\t",
]
SEEDS = [p.read_bytes() for p in sorted(FIXTURES.glob("*.yaml"))]


def answer(data: bytes, *overrides: str) -> Recipe | None:
    """The recipe, or None after a look at the refusal; any other exception is a bug."""
    try:
        return loads(data, overrides=overrides)
    except RecipeError as e:
        problems = e.problems
    assert problems
    assert all(p.message for p in problems)
    assert all(str(p).isprintable() for p in problems)
    return None


@quick
@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbf")
@example(b"\xff\xfe")
def test_any_bytes_are_answered(data: bytes) -> None:
    answer(data)


@quick
@given(st.text(max_size=200))
@example("base_model: \ud7ff")
@example("? \n")
def test_any_text_is_answered(text: str) -> None:
    answer(text.encode("utf-8", errors="surrogatepass"))


@quick
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=25))
def test_any_heap_of_yaml_is_answered(parts: list[str]) -> None:
    answer("".join(parts).encode())


@quick
@given(st.sampled_from(SEEDS), st.randoms(use_true_random=False))
def test_any_damage_to_a_recipe_is_answered(seed: bytes, rng: random.Random) -> None:
    data = bytearray(seed)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(data))
        piece = rng.choice(FRAGMENTS).encode()
        data[at : at + rng.randint(0, 3)] = piece
    answer(bytes(data))


@quick
@given(st.text(max_size=30), st.text(max_size=30))
@example("tune", "x")
@example("datasets[0]", "[")
def test_any_option_is_answered(key: str, value: str) -> None:
    answer(b"base_model: a/b\n", f"{key}={value}")


@quick
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_float_survives_being_written(value: float) -> None:
    assert parse_float(repr(value)) == value
    assert math.isclose(parse_float(f"{value:.17e}"), value, rel_tol=1e-15, abs_tol=5e-324)


@quick
@given(st.integers(min_value=-(2**63) + 1, max_value=2**63 - 1))
def test_every_integer_survives_being_written(value: int) -> None:
    assert parse_int(str(value)) == value
    assert parse_int(f"{value:_}") == value
    assert parse_int(hex(value)) == value
    assert parse_int(oct(value)) == value


@quick
@given(st.booleans(), st.sampled_from([str.lower, str.upper, str.title]))
def test_every_boolean_survives_being_written(value: bool, style: Any) -> None:
    for words in (("true", "false"), ("yes", "no"), ("on", "off")):
        assert parse_bool(style(words[0] if value else words[1])) is value


VALUES = st.fixed_dictionaries(
    {"base_model": st.just("acme/tiny")},
    optional={
        "learning_rate": st.floats(min_value=1e-9, max_value=1.0),
        "lora_r": st.integers(min_value=1, max_value=512),
        "sample_packing": st.booleans(),
        "wandb_name": st.text(min_size=1, max_size=20),
        "default_system_message": st.text(min_size=1, max_size=40),
        "optimizer": st.sampled_from(["adamw_torch", "paged_adamw_8bit"]),
        "tokens": st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3),
        "model_kwargs": st.dictionaries(
            st.text("abc", min_size=1, max_size=3), st.integers() | st.booleans(), min_size=1
        ),
    },
)


@quick
@given(VALUES, st.randoms(use_true_random=False))
def test_the_hash_does_not_depend_on_how_a_recipe_is_written(values: dict[str, Any], rng: random.Random) -> None:
    keys = list(values)
    rng.shuffle(keys)
    first = json.dumps(values)
    rows = [f"{k}:{' ' * rng.randint(1, 3)}{json.dumps(values[k], ensure_ascii=True)}" for k in keys]
    second = rng.choice(["\n", "\r\n", "\n# between\n\n"]).join(rows) + "\n"
    one, other = answer(first.encode()), answer(("\ufeff" + second).encode())
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.training == other.training
        assert one.sha256 == other.sha256
        for key in ("learning_rate", "lora_r", "sample_packing"):
            assert one.training.get(key) == values.get(key)
