"""What is in people's buckets can be read for ever."""

from __future__ import annotations

import json

import pytest

from orchestrator import codec
from orchestrator.errors import RecordCorrupt
from tests.meta.records import GOLDEN, RECORDS, unset


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_written_as_it_always_was(name: str) -> None:
    assert codec.dump(RECORDS[name]).decode() == (GOLDEN / f"{name}.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_was_written_then_is_read_now(name: str) -> None:
    stored = (GOLDEN / f"{name}.json").read_bytes()
    assert codec.load(type(RECORDS[name]), stored, where=name) == RECORDS[name]


@pytest.mark.parametrize("name", RECORDS)
def test_a_newer_format_is_refused_not_guessed(name: str) -> None:
    stored = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    assert stored["format"] == 1
    with pytest.raises(RecordCorrupt, match="format 2"):
        codec.load(type(RECORDS[name]), json.dumps({**stored, "format": 2}).encode(), where=name)


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_of_a_specimen_has_a_value(name: str) -> None:
    assert unset(RECORDS[name]) == []


def test_no_golden_file_is_left_without_its_record() -> None:
    assert {p.stem for p in GOLDEN.glob("*.json")} == set(RECORDS)
