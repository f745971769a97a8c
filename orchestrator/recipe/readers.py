"""Read the rows of a dataset file, one after the other, and say for each bad one where it is and what is wrong.

Nothing in a file makes a reader raise: what cannot be read is a row with a fault. Memory is bounded by the longest row.
"""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Any

MAX_LINE_BYTES = 64 << 20  # a row beyond this is a file without line ends, not a row
CHUNK_BYTES = 1 << 16
INT_BITS = 64  # what Arrow, and with it every trainer, can hold
_BLANK = " \t\r\n"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a row: a reason that is the same for every such row, and what is special about this one."""

    reason: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row as the file has it: its number, its line where the file has lines, and a value or a fault."""

    number: int
    line: int | None
    value: dict[str, Any] | None = None
    fault: Fault | None = None
    raw: bytes = b""  # only of faulty rows: they count in the hash too


class _UnfitError(ValueError):
    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def read(path: Path, kind: str = "") -> Iterator[RawRow]:
    """Every row of the file; `kind` (json, parquet, text) overrides what the name says. Never raises."""
    names = [suffix.lower() for suffix in path.suffixes]
    parquet = kind == "parquet" or (not kind and names[-1:] == [".parquet"])
    text = kind == "text" or (not kind and names[-1:] == [".txt"])
    number = 0
    try:
        rows = _parquet(path) if parquet else _text_lines(path) if text else _json(path)
        for row in rows:
            number = row.number
            yield row
    except (OSError, EOFError, zlib.error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        yield RawRow(number + 1, None, fault=Fault("the file cannot be read to its end", why))


def _open(path: Path) -> BufferedIOBase:
    """The bytes of the file, unpacked when they are gzip, whatever the name says."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")


def _text_lines(path: Path) -> Iterator[RawRow]:
    with _open(path) as file:
        for number, (line, raw) in enumerate(_lines(file), start=1):
            try:
                yield RawRow(number, line, {"text": raw.decode()})
            except UnicodeDecodeError as error:
                yield RawRow(number, line, fault=_not_utf8(error.start), raw=raw)


def _json(path: Path) -> Iterator[RawRow]:
    with _open(path) as file:
        start = file.read(4)
        file.seek(0)
        if start.startswith(_UTF16):
            yield RawRow(1, 1, fault=Fault("the file is UTF-16", "save it as UTF-8"))
            return
        lines = _lines(file)
        first = next(lines, None)
        if first is None:
            return
        if first[1].startswith(b"["):
            file.seek(0)
            yield from _array(file)
        elif first[1] == b"{" or (path.suffix.lower() == ".json" and not _is_json(first[1])):
            yield from _spread(first, lines)
        else:
            yield from _json_lines(chain([first], lines))


def _is_json(raw: bytes) -> bool:
    try:
        json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return True


def _lines(file: BufferedIOBase) -> Iterator[tuple[int, bytes]]:
    """(line number, bytes without blanks around) of every line that is not blank; a BOM is dropped."""
    line = 0
    while raw := file.readline(MAX_LINE_BYTES):
        line += 1
        if line == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
        stripped = raw.strip(_BLANK.encode())
        if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
            while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
        if stripped:
            yield line, stripped


def _json_lines(lines: Iterator[tuple[int, bytes]]) -> Iterator[RawRow]:
    previous: deque[RawRow] = deque(maxlen=1)
    for number, (line, raw) in enumerate(lines, start=1):
        yield from previous
        previous.append(_row(number, line, raw))
    for last in previous:
        yield _torn(last) if last.fault and last.fault.reason == _NOT_JSON else last


_NOT_JSON = "not valid JSON"


def _torn(row: RawRow) -> RawRow:
    """A last line that opens an object and never closes it was cut off."""
    if row.raw.startswith(b"{") and not row.raw.endswith(b"}"):
        return RawRow(row.number, row.line, fault=Fault("the file ends in the middle of this row"), raw=row.raw)
    return row


def _row(number: int, line: int | None, raw: bytes) -> RawRow:
    if len(raw) >= MAX_LINE_BYTES - 1:
        fault = Fault(f"the line is longer than {MAX_LINE_BYTES >> 20} MiB", "is this one JSON object per line?")
        return RawRow(number, line, fault=fault, raw=raw)
    try:
        value = _DECODER.decode(raw.decode())
    except (ValueError, RecursionError) as error:
        return RawRow(number, line, fault=_fault_of(error), raw=raw)
    return _checked(number, line, value, raw)


def _checked(number: int, line: int | None, value: object, raw: bytes) -> RawRow:
    if not isinstance(value, dict):
        return RawRow(number, line, fault=Fault(f"the row is {name_of(value)}, not an object"), raw=raw)
    return RawRow(number, line, value)


def name_of(value: object) -> str:
    """How a person calls a JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a true/false value"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
        case dict():
            return "an object"
    return f"a {type(value).__name__}"


def _fault_of(error: ValueError | RecursionError) -> Fault:
    match error:
        case _UnfitError():
            return error.fault
        case UnicodeDecodeError():
            return _not_utf8(error.start)
        case json.JSONDecodeError():
            return Fault(_NOT_JSON, f"{error.msg} at character {error.pos + 1}")
        case RecursionError():
            return Fault("nested too deeply")
    return Fault("a number with too many digits")  # the only other thing that a decoder says


def _not_utf8(at: int) -> Fault:
    return Fault("not valid UTF-8", f"first bad byte is number {at + 1} of the line")


# --- a decoder that accepts only what every trainer reads alike ------------------------------------------------------


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _UnfitError(Fault("a key stands twice in one object", repr(twice)))
    return found


def _constant(text: str) -> Any:
    raise _UnfitError(Fault("holds a value that JSON does not have", text))


def _int(text: str) -> int:
    if len(text) > 20 or not -(1 << INT_BITS - 1) <= int(text) < 1 << INT_BITS:
        raise _UnfitError(Fault(f"holds a whole number of more than {INT_BITS} bits", f"{len(text)} digits"))
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _UnfitError(Fault("holds a number beyond what a float can be", text[:20]))
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_int=_int, parse_float=_float)


# --- one array, or one object spread over lines ----------------------------------------------------------------------


class _Window:
    """The text still to be read of a file that is one JSON value, and how many lines lie before it."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="surrogateescape")
        self._chunk_bytes = CHUNK_BYTES
        self.text = ""
        self.line = 1
        self.at_end = False

    def more(self) -> None:
        """Doubles what is looked at, so that a long row is not scanned over and over."""
        raw = self._file.read(self._chunk_bytes)
        self.at_end = not raw
        self.text += self._decode.decode(raw, final=self.at_end)
        self._chunk_bytes = min(2 * self._chunk_bytes, MAX_LINE_BYTES)

    def drop(self, count: int) -> None:
        self.line += self.text.count("\n", 0, count)
        self.text = self.text[count:]
        self._chunk_bytes = CHUNK_BYTES

    def skip(self, blank: str) -> str:
        """The next character that is not in `blank`; empty at the end."""
        while True:
            rest = self.text.lstrip(blank)
            self.drop(len(self.text) - len(rest))
            if rest or self.at_end:
                return rest[:1]
            self.more()


def _array(file: BufferedIOBase) -> Iterator[RawRow]:
    window = _Window(file)
    window.skip(_BLANK)
    window.drop(1)
    number = 0
    while True:
        mark = window.skip(_BLANK)
        if mark == "," and number:
            window.drop(1)
            mark = window.skip(_BLANK)
        if mark == "]":
            window.drop(1)
            break
        number += 1
        if not mark:
            yield RawRow(number, window.line, fault=Fault("the file ends in the middle of its array"))
            return
        row, readable = _element(window, number)
        yield row
        if not readable:
            return
    if window.skip(_BLANK):
        fault = Fault("text after the end of the array", "one array, or one object per line; not both")
        yield RawRow(number + 1, window.line, fault=fault, raw=_bytes(window.text))


def _element(window: _Window, number: int) -> tuple[RawRow, bool]:
    """The next row of an array, and whether the text behind it can still be read."""
    line = window.line
    while True:
        error: ValueError | RecursionError | None = None
        value: object = None
        try:
            value, end = _DECODER.raw_decode(window.text)
        except (ValueError, RecursionError) as e:
            error, end = e, _step_over(window.text, e)
        # A number, or a row that looks broken, may just go on in the next chunk.
        if end not in (0, len(window.text)) or window.at_end or len(window.text) >= MAX_LINE_BYTES:
            break
        window.more()
    raw = _bytes(window.text[:end] if end else window.text)
    window.drop(end)
    if error is not None:
        return RawRow(
            number, line, fault=_fault_in_array(error, readable=bool(end), at_end=window.at_end), raw=raw
        ), bool(end)
    try:
        raw.decode()
    except UnicodeDecodeError as e:
        return RawRow(number, line, fault=_not_utf8(e.start), raw=raw), True
    return _checked(number, line, value, raw), True


def _step_over(text: str, error: ValueError | RecursionError) -> int:
    """Where a row ends that is JSON but unfit; 0 when it is not even that."""
    if isinstance(error, json.JSONDecodeError | RecursionError):
        return 0
    try:
        return _LENIENT.raw_decode(text)[1]
    except (ValueError, RecursionError):
        return 0


def _fault_in_array(error: ValueError | RecursionError, *, readable: bool, at_end: bool) -> Fault:
    fault = _fault_of(error)
    if readable:
        return fault
    if at_end and fault.reason == _NOT_JSON and "delimiter" in fault.detail:
        return Fault("the file ends in the middle of its array", fault.detail)
    return Fault(fault.reason, "; ".join(filter(None, (fault.detail, "nothing behind it in the array can be read"))))


_LENIENT = json.JSONDecoder(parse_int=len)  # digits are only stepped over


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape") if not _has_lone_surrogate(text) else text.encode(errors="replace")


def _has_lone_surrogate(text: str) -> bool:
    try:
        text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return True
    return False


def _spread(first: tuple[int, bytes], lines: Iterator[tuple[int, bytes]]) -> Iterator[RawRow]:
    """One object over several lines is one row; what looks like it and is not, is read line by line."""
    held = [first]
    size = 0
    for item in lines:
        held.append(item)
        size += len(item[1])
        if size > MAX_LINE_BYTES:
            break
    whole = b"\n".join(raw for _, raw in held)
    if size <= MAX_LINE_BYTES and _is_json(whole):
        yield _row(1, first[0], whole)
    else:
        yield from _json_lines(chain(held, lines))


def _parquet(path: Path) -> Iterator[RawRow]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        hint = "install pyarrow (pip install 'spot-tune[local]'), or save the rows as JSONL"
        yield RawRow(1, None, fault=Fault("reading Parquet needs pyarrow, which is not installed", hint))
        return
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for value in batch.to_pylist():
                    number += 1
                    yield RawRow(number, None, value)
    except ArrowException as error:
        yield RawRow(number + 1, None, fault=Fault("not a readable Parquet file", str(error).partition("\n")[0]))
