"""Bytes to text that a YAML parser reads as a person does: encodings, invisible characters, tabs."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_BYTES = 256 * 1024  # a recipe is a page of text; a parser fed with more takes seconds
_WIDE = (b"\xff\xfe", b"\xfe\xff")  # byte order marks of UTF-16
_BREAKS = "\x85\u2028\u2029"  # line breaks to a YAML 1.1 parser, invisible to an editor


def name_of(char: str) -> str:
    """A character as a person can look it up: `U+00A0 (NO-BREAK SPACE)`."""
    name = unicodedata.name(char, "") or {"\x00": "NUL", "\x85": "NEXT LINE"}.get(char, "control character")
    return f"U+{ord(char):04X} ({name})"


def is_invisible(char: str) -> bool:
    """Looks like a space or like nothing, and is neither a space nor a tab nor a line feed."""
    if char in " \t\n":
        return False
    return unicodedata.category(char) in {"Cc", "Cf", "Zs", "Zl", "Zp"} or char in "\ufffe\uffff\u3164\u115f\u1160"


def decode(data: bytes) -> tuple[str, list[Problem]]:
    """The text with plain line feeds and without a byte order mark, or what is wrong with the bytes."""
    if len(data) > MAX_BYTES:
        longest = max(enumerate(data.split(b"\n"), 1), key=lambda row: len(row[1]))
        return "", [
            Problem(
                "",
                f"{len(data):,} bytes are too many for a recipe (limit {MAX_BYTES:,}); "
                f"its longest line has {len(longest[1]):,}",
                hint="name data and templates as files instead of pasting them",
                line=longest[0],
            )
        ]
    if data.startswith(_WIDE) or data.count(b"\0") * 4 > len(data):
        return "", [Problem("", "the file is UTF-16, not UTF-8", hint="save it as UTF-8", line=1)]
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError:
        text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="surrogateescape")
        return "", list(_bad_bytes(text))
    return text.replace("\r\n", "\n").replace("\r", "\n"), []


def _bad_bytes(text: str) -> Iterable[Problem]:
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        bad = [c for c in line if 0xDC80 <= ord(c) <= 0xDCFF]
        if bad:
            byte = ord(bad[0]) - 0xDC00
            guess = bytes([byte]).decode("cp1252", errors="replace")
            meant = f" ({guess!r} in Windows-1252?)" if guess != "\ufffd" else ""
            yield Problem("", f"byte 0x{byte:02X}{meant} is not UTF-8", hint="save the file as UTF-8", line=number)


@dataclass(frozen=True, slots=True)
class Clean:
    """Text of the same length that parses, and what had to be changed for it."""

    text: str
    problems: Sequence[Problem]


def clean(text: str) -> Clean:
    """Spaces for what YAML allows as separation but the parser does not; a problem for what no one can see.

    Quoted text, block text and comments keep theirs, save for what YAML forbids everywhere.
    """
    if "\t" not in text and not any(map(is_invisible, text)):
        return Clean(text, ())
    rough = "".join(" " if is_invisible(c) else c for c in _separation(text))
    kept = _kept_spans(rough)
    exact: list[str] = []
    found: dict[tuple[int, str], int] = {}
    line, start = 1, 0
    for index, char in enumerate(text):
        if char == "\n":
            line, start = line + 1, index + 1
        forbidden = is_invisible(char) and (char in _BREAKS or unicodedata.category(char) == "Cc" or char >= "\ufffe")
        if forbidden or (is_invisible(char) and not _within(index, kept)):
            found.setdefault((line, char), index - start + 1)
            exact.append(" ")
        elif is_invisible(char) or char == "\t":
            exact.append(char if _within(index, kept) == "text" else rough[index])
        else:
            exact.append(char)
    problems = [
        Problem(
            "",
            f"invisible character {name_of(char)} in column {column}",
            hint="delete it, or type a space",
            line=number,
        )
        for (number, char), column in found.items()
    ]
    return Clean("".join(exact), problems)


def _separation(text: str) -> str:
    """Tabs as spaces, except where they indent: that stays an error."""
    rows = []
    for row in text.split("\n"):
        body = row.lstrip(" \t")
        indent = row[: len(row) - len(body)]
        if not body or body.startswith("#"):
            indent = " " * len(indent)
        rows.append(indent + body.replace("\t", " "))
    return "\n".join(rows)


Span = tuple[int, int, str]  # start, end, "text" or "comment"


def _kept_spans(rough: str) -> list[Span]:
    """Where characters are taken as they are: quoted and block scalars, comments."""
    import yaml

    spans: list[Span] = []
    plain: list[tuple[int, int]] = []
    try:
        for token in yaml.scan(rough, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.ScalarToken):
                here = (token.start_mark.index, token.end_mark.index)
                if token.plain:
                    plain.append(here)
                else:
                    spans.append((*here, "text"))
    except (yaml.YAMLError, ValueError, OverflowError):
        pass  # what stands before the fault is known; the parser will report the fault itself
    taken = {i for s, e, _ in spans for i in range(s, e)} | {i for s, e in plain for i in range(s, e)}
    offset = 0
    for row in rough.split("\n"):
        for match in re.finditer(r"(?:^|(?<=\s))#", row):
            if offset + match.start() not in taken:
                spans.append((offset + match.start(), offset + len(row), "comment"))
                break
        offset += len(row) + 1
    return spans


def _within(index: int, spans: Sequence[Span]) -> str:
    """What surrounds the character: "text", "comment" or nothing."""
    return next((kind for start, end, kind in spans if start <= index < end), "")
