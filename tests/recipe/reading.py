"""Short ways to read a recipe in a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.errors import Problem, RecipeError
from orchestrator.recipe import Recipe, loads

FIXTURES = Path(__file__).parent.parent / "fixtures" / "recipes"
BASE = "base_model: acme/tiny\n"


def read(text: str | bytes, *overrides: str) -> Recipe:
    return loads(text.encode() if isinstance(text, str) else text, overrides=overrides)


def refused(text: str | bytes, *overrides: str) -> Sequence[Problem]:
    """The problems of a recipe that must not load."""
    with pytest.raises(RecipeError) as caught:
        read(text, *overrides)
    assert caught.value.exit_code == 10
    assert caught.value.problems
    return caught.value.problems


def only(text: str | bytes, *overrides: str) -> Problem:
    """The one problem of a recipe that must not load; it says how to mend it."""
    problems = refused(text, *overrides)
    assert len(problems) == 1, [str(p) for p in problems]
    assert problems[0].hint
    return problems[0]
