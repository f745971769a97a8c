"""A reader reports; it never raises, never loses a good row, and says where each bad one is."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.recipe import readers
from tests.data.conftest import FIXTURES, as_jsonl

QUICK = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",)), max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
ROWS = st.lists(st.dictionaries(st.sampled_from("abc"), VALUES, min_size=1, max_size=3), max_size=8)


def read(tmp_path: Path, data: bytes, name: str = "rows.jsonl") -> list[readers.RawRow]:
    path = tmp_path / name
    path.write_bytes(data)
    return list(readers.read(path))


def values(found: list[readers.RawRow]) -> list[Any]:
    assert [row.fault for row in found if row.fault] == []
    return [row.value for row in found]


@QUICK
@given(
    data=st.binary(max_size=200)
    | st.text('{}[]",:\\ \n\r\t0123456789.eE-abntrufls\ufeff', max_size=120).map(str.encode)
)
def test_no_bytes_make_a_reader_raise(tmp_path: Path, data: bytes) -> None:
    for name in ("a.jsonl", "a.json", "a.parquet", "a.txt", "a.jsonl.gz"):
        found = read(tmp_path, data, name)
        assert all((row.value is None) == (row.fault is not None) for row in found)
        assert [row.number for row in found] == list(range(1, len(found) + 1))


@QUICK
@given(rows=ROWS, cut=st.floats(0, 1))
def test_a_torn_file_keeps_every_row_before_the_tear(tmp_path: Path, rows: list[Any], cut: float) -> None:
    for whole in (as_jsonl(rows), json.dumps(rows, ensure_ascii=False).encode()):
        found = read(tmp_path, whole[: int(cut * len(whole))])
        good = [row.value for row in found if row.fault is None]
        assert good == rows[: len(good)]
        assert len(found) - len(good) <= 1


@QUICK
@given(rows=ROWS, bom=st.booleans(), end=st.sampled_from([b"\n", b"\r\n", b"\n\n \n"]), last=st.booleans())
def test_the_same_rows_come_out_however_the_file_is_laid_out(
    tmp_path: Path, rows: list[Any], bom: bool, end: bytes, last: bool
) -> None:
    start = b"\xef\xbb\xbf" if bom else b""
    lines = [json.dumps(row).encode() for row in rows]
    assert values(read(tmp_path, start + end.join(lines) + (end if last else b""))) == rows
    assert values(read(tmp_path, gzip.compress(start + end.join(lines)), "rows.jsonl.gz")) == rows
    for indent in (None, 2):
        array = json.dumps(rows, indent=indent).encode().replace(b"\n", end)
        assert values(read(tmp_path, start + array + b"\n")) == rows
        assert values(read(tmp_path, array, "rows.json")) == rows


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"a": 1, "a": 2}', "a key stands twice in one object: 'a'"),
        (b'{"a": {"b": 1, "b": 1}}', "a key stands twice in one object: 'b'"),
        (b'{"a": NaN}', "holds a value that JSON does not have: NaN"),
        (b'{"a": -Infinity}', "JSON does not have: -Infinity"),
        (b'{"a": 1e999}', "beyond what a float can be"),
        (b'{"a": 123456789012345678901234567890}', "more than 64 bits"),
        (b'{"a": ' + b"9" * 5000 + b"}", "more than 64 bits"),
        (b'{"a": "\xff"}', "not valid UTF-8"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"a": ' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
        (b'"text"', "the row is text, not an object"),
        (b"null", "the row is null, not an object"),
        (b"7", "the row is a number, not an object"),
        (b"true", "the row is a true/false value, not an object"),
        (b"{'a': 1}", "not valid JSON"),
        (b"\0\0\0", "not valid JSON"),
    ],
)
def test_a_bad_line_is_one_problem_with_its_line_and_reason(tmp_path: Path, bad: bytes, reason: str) -> None:
    found = read(tmp_path, b'{"a": 1}\n\n' + bad + b'\n{"a": 2}\n')
    assert [(row.number, row.line) for row in found] == [(1, 1), (2, 3), (3, 4)]
    assert reason in str(found[1].fault)
    assert [found[0].value, found[2].value] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"a": 1, "a": 2}', "stands twice"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": ' + b"9" * 5000 + b"}", "64 bits"),
        (b'{"a": "\xff"}', "not valid UTF-8"),
        (b"[1]", "the row is a list"),
        (b"3", "the row is a number"),
    ],
)
def test_an_unfit_row_of_an_array_is_stepped_over(tmp_path: Path, bad: bytes, reason: str) -> None:
    found = read(tmp_path, b'[{"a": 1},\n' + bad + b',\n{"a": 2}]')
    assert [(row.number, row.line) for row in found] == [(1, 1), (2, 2), (3, 3)]
    assert reason in str(found[1].fault)
    assert found[2].value == {"a": 2}


def test_a_broken_array_says_that_the_rest_cannot_be_read(tmp_path: Path) -> None:
    found = read(tmp_path, b'[{"a": 1},\n{"a": }, {"a": 3}]')
    assert [row.value for row in found] == [{"a": 1}, None]
    assert found[1].line == 2
    assert "nothing behind it in the array can be read" in str(found[1].fault)


def test_an_array_followed_by_more_is_not_read_as_if_it_ended(tmp_path: Path) -> None:
    found = read(tmp_path, b'[{"a": 1}]\n[{"a": 2}]\n')
    assert found[0].value == {"a": 1}
    assert "text after the end of the array" in str(found[1].fault)


def test_a_torn_last_line_is_said_to_be_torn(tmp_path: Path) -> None:
    found = read(tmp_path, b'{"a": 1}\n{"a": "tw')
    assert str(found[1].fault) == "the file ends in the middle of this row"
    assert found[1].line == 2


def test_one_object_over_several_lines_is_one_row(tmp_path: Path) -> None:
    assert values(read(tmp_path, b'{\n "a": 1\n}\n', "a.json")) == [{"a": 1}]
    assert values(read(tmp_path, b'{"b": 1,\n "a": 1\n}\n', "a.json")) == [{"b": 1, "a": 1}]


def test_utf16_is_named(tmp_path: Path) -> None:
    (row,) = read(tmp_path, '{"a": 1}'.encode("utf-16"))
    assert "UTF-16" in str(row.fault)


def test_a_damaged_gzip_file_is_a_problem_behind_its_good_rows(tmp_path: Path) -> None:
    packed = gzip.compress(as_jsonl({"a": i} for i in range(20_000)), mtime=0)
    found = read(tmp_path, packed[: len(packed) // 2], "a.jsonl.gz")
    assert found[0].value == {"a": 0}
    assert "cannot be read to its end" in str(found[-1].fault)


def test_plain_text_is_one_row_per_line(tmp_path: Path) -> None:
    assert values(read(tmp_path, b"\xef\xbb\xbfone\r\n\r\ntwo", "a.txt")) == [{"text": "one"}, {"text": "two"}]


def test_parquet_rows_come_out_as_they_went_in(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"messages": [{"role": "user", "content": f"é{i}"}]} for i in range(2500)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = list(readers.read(tmp_path / "a.parquet"))
    assert values(found) == rows
    assert found[-1].number == 2500
    assert values(list(readers.read((tmp_path / "a.parquet").rename(tmp_path / "bare"), "parquet"))) == rows
    (broken,) = read(tmp_path, b"PAR1 and no more", "b.parquet")
    assert "not a readable Parquet file" in str(broken.fault)


def test_parquet_without_its_library_says_what_to_install(tmp_path: Path) -> None:
    import subprocess
    import sys

    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    code = (
        "import sys, pathlib; sys.modules['pyarrow'] = None\n"
        "from orchestrator.recipe import readers\n"
        "print([str(row.fault) for row in readers.read(pathlib.Path(sys.argv[1]))])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.parquet")], capture_output=True, text=True, check=True
    )
    assert "needs pyarrow" in ran.stdout
    assert "pip install" in ran.stdout


@pytest.mark.parametrize("layout", ["lines", "array"])
def test_memory_stays_bounded_on_a_large_file(tmp_path: Path, layout: str) -> None:
    row = json.dumps({"text": "x" * 1000})
    with (tmp_path / "big.jsonl").open("w") as file:
        file.write("[" if layout == "array" else "")
        file.writelines(row + (",\n" if layout == "array" else "\n") for _ in range(20_000))
        file.write(row + ("]" if layout == "array" else ""))
    tracemalloc.start()
    count = sum(row.fault is None for row in readers.read(tmp_path / "big.jsonl"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_001
    assert peak < 2 << 20  # of a file of 20 MB


@pytest.mark.parametrize(
    "name", ["data-alpaca.jsonl", "data-alpaca-bom.jsonl", "data-alpaca-blank-lines.jsonl", "data-array.jsonl"]
)
def test_the_same_twenty_rows_in_four_layouts(name: str) -> None:
    found = values(list(readers.read(FIXTURES / name)))
    assert found == [{"instruction": f"Add {i} and {i}", "input": "", "output": str(2 * i)} for i in range(1, 21)]
