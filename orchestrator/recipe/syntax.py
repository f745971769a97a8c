"""What the YAML parser means when it complains, said of the line that is at fault."""

from __future__ import annotations

import re

from orchestrator.errors import Problem

_NO_SPACE = re.compile(r"^\s*(?:- +)?([A-Za-z_][\w.-]*):([^\s:/].*)$")
_FULL_WIDTH_COLON = re.compile(r"^\s*(?:- +)?[A-Za-z_][\w.-]*\s*\uff1a")
_WORD_ALONE = re.compile(r"^\s*(?:- +)?[A-Za-z_][\w.-]*\s*$")
_EQUALS = re.compile(r"^\s*([A-Za-z_][\w.-]*)\s*=\s*(\S.*)$")


def explain(error: Exception, text: str) -> list[Problem]:
    """Problems with line and hint for an error of the YAML parser."""
    lines = text.split("\n")
    mark = getattr(error, "problem_mark", None)
    what = str(getattr(error, "problem", None) or "")
    opened = getattr(error, "context_mark", None)
    context = str(getattr(error, "context", None) or "")
    if mark is None:
        return [
            Problem(
                "", f"not YAML: {what or str(error).splitlines()[0]}", hint="look at escapes in double quotes", line=1
            )
        ]
    at = min(mark.line, len(lines) - 1)
    first = opened.line + 1 if opened is not None else None
    if tabs := _tabs(lines, at, what):
        return tabs
    if "scanning a quoted scalar" in context and first is not None:
        if "end of stream" in what or "document separator" in what:
            return [Problem("", "a quote opened here is never closed", hint="close it, or remove it", line=first)]
        hint = "inside double quotes a backslash starts an escape: use single quotes for paths and patterns"
        return [Problem("", f"in quoted text: {what}", hint=hint, line=at + 1)]
    if "flow" in context and first is not None:
        kind = "bracket `[`" if "sequence" in context else "brace `{`"
        hint = f"close it, or look for a missing comma or quote on line {at + 1}"
        return [Problem("", f"a {kind} opened here is not closed properly", hint=hint, line=first)]
    for number in dict.fromkeys(n for n in (at, at - 1, first - 1 if first else at) if 0 <= n < len(lines)):
        if slip := written_wrong(lines[number]):
            return [Problem("", slip[0], hint=slip[1], line=number + 1)]
    return [_by_message(what, context, at + 1, first)]


def _tabs(lines: list[str], at: int, what: str) -> list[Problem]:
    """Every line indented with a tab, once the parser has stumbled over the first of them."""
    if "\t" not in lines[at][: len(lines[at]) - len(lines[at].lstrip(" \t"))] and "'\\t'" not in what:
        return []
    rows = [n for n, row in enumerate(lines) if "\t" in row[: len(row) - len(row.lstrip(" \t"))]]
    return [Problem("", "a TAB is used for indentation", hint="indent with spaces", line=n + 1) for n in rows or [at]]


def written_wrong(line: str) -> tuple[str, str] | None:
    """The slip in a line that should have been `key: value`, and its cure."""
    if match := _NO_SPACE.match(line):
        return "a space is missing after the colon", f"write `{match[1]}: {match[2].strip()}`"
    if _FULL_WIDTH_COLON.match(line):
        return "the colon is U+FF1A (FULLWIDTH COLON)", "type a plain colon and a space"
    if match := _EQUALS.match(line):
        return "`=` where a colon is expected", f"write `{match[1]}: {match[2].strip()}`"
    if _WORD_ALONE.match(line):
        return f"`{line.strip()}` has no colon", "write `key: value`"
    return None


def _by_message(what: str, context: str, line: int, first: int | None) -> Problem:
    if "mapping values are not allowed" in what:
        hint = "put quotes around a value that contains `: `, or mend the indentation of this line"
        return Problem("", "a second colon, or a key indented under a value", hint=hint, line=line)
    if "could not find expected ':'" in what:
        return Problem(
            "", "a line without a colon", hint="write `key: value`, or quote text of several lines", line=first or line
        )
    if "found undefined alias" in what:
        return Problem(
            "",
            what.replace("found ", ""),
            hint="define it first with `&name`, or quote a value that starts with `*`",
            line=line,
        )
    if "duplicate anchor" in what or "duplicate anchor" in context:
        return Problem("", "an anchor of this name exists already", hint="rename one of them", line=line)
    if "expected <block end>" in what or "expected the node content" in what or "expected <document start>" in what:
        hint = "keys of one block start in the same column; lists start with `- `"
        return Problem("", "indentation does not fit the lines above", hint=hint, line=line)
    if "cannot start any token" in what:
        return Problem("", what.replace("found ", ""), hint="put the value in quotes", line=line)
    return Problem(
        "", f"not YAML: {', '.join(filter(None, [context, what]))}", hint="check this line and the one above", line=line
    )
