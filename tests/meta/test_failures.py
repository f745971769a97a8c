"""The table of failures names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def test_every_test_that_the_table_of_failures_names_is_there() -> None:
    named = NAMED.findall((TESTS / "README.md").read_text(encoding="utf-8"))
    assert len(named) > 80
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"^ *(async )?def {name}\(", (TESTS / path).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert not missing
