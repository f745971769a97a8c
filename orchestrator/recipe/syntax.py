"""What the YAML parser means when it complains, said of the line that is at fault."""

from __future__ import annotations

import re

from orchestrator.errors import Problem

_NO_SPACE = re.compile(r"^\s*(?:- +)?([A-Za-z_][\w.-]*):([^\s:/].*)$")
_FULL_WIDTH_COLON = re.compile(r"^\s*(?:- +)?[A-Za-z_][\w.-]*\s*\uff1a")
_NO_COLON = re.compile(r"^\s*(?:- +)?([a-z]\w*)\s+([^\s:]+)\s*$")
_NO_KEY = re.compile(r"^\s*:(?:\s|$)")
_AFTER_QUOTE = re.compile(r"""^[^#'"]*:\s+(?:"[^"]*"|'[^']*')\s*[^\s#,\]}].*$""")
_WORD_ALONE = re.compile(r"^\s*(?:- +)?[A-Za-z_][\w.-]*\s*$")
_EQUALS = re.compile(r"^\s*([A-Za-z_][\w.-]*)\s*=\s*(\S.*)$")
_ESCAPE = re.compile(r"\\[uUx]")


def explain(error: Exception, text: str) -> list[Problem]:
    """Problems with line and hint for an error of the YAML parser."""
    lines = text.split("\n")
    mark = getattr(error, "problem_mark", None)
    what = str(getattr(error, "problem", None) or "")
    opened = getattr(error, "context_mark", None)
    context = str(getattr(error, "context", None) or "")
    if mark is None:
        escaped = next((n for n, row in enumerate(lines, 1) if _ESCAPE.search(row)), 1)
        message = f"not YAML: {what or str(error).splitlines()[0]}"
        return [Problem("", message, hint="look at escapes in double quotes", line=escaped)]
    at = min(mark.line, len(lines) - 1)
    first = opened.line + 1 if opened is not None else None
    if tabs := _tabs(lines, at, what):
        return tabs
    if "quoted scalar" in context and first is not None:
        return [_quoted(what, first, at + 1)]
    if "flow" in context and first is not None:
        kind = "bracket `[`" if "sequence" in context else "brace `{`"
        hint = f"close it, or look for a missing comma or quote on line {at + 1}"
        return [Problem("", f"a {kind} opened here is not closed properly", hint=hint, line=first)]
    for number in dict.fromkeys(n for n in (at, at - 1, first - 1 if first else at) if 0 <= n < len(lines)):
        if slip := written_wrong(lines[number]):
            return [Problem("", slip[0], hint=slip[1], line=number + 1)]
    if "mapping values are not allowed" in what and at and _is_deeper(lines[at], lines[at - 1]):
        hint = "start it in the same column as the keys it belongs to"
        return [Problem("", "a key indented under a value", hint=hint, line=at + 1)]
    message, hint = _by_message(what, context)
    return [Problem("", message, hint=hint, line=at + 1)]


def _tabs(lines: list[str], at: int, what: str) -> list[Problem]:
    """Every line indented with a tab, once the parser has stumbled over the first of them."""
    if "\t" not in _indent(lines[at]) and "'\\t'" not in what:
        return []
    rows = [n for n, row in enumerate(lines) if "\t" in _indent(row)] or [at]
    return [Problem("", "a TAB is used for indentation", hint="indent with spaces", line=n + 1) for n in rows]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _is_deeper(line: str, above: str) -> bool:
    return len(_indent(line)) > len(_indent(above))


def _quoted(what: str, first: int, line: int) -> Problem:
    if "end of stream" in what or "document separator" in what:
        return Problem("", "a quote opened here is never closed", hint="close it, or remove it", line=first)
    hint = "inside double quotes a backslash starts an escape: use single quotes for paths and patterns"
    return Problem("", f"in quoted text: {what}", hint=hint, line=line)


def written_wrong(line: str) -> tuple[str, str] | None:
    """The slip in a line that should have been `key: value`, and its cure."""
    if match := _NO_SPACE.match(line):
        return "a space is missing after the colon", f"write `{match[1]}: {match[2].strip()}`"
    if _FULL_WIDTH_COLON.match(line):
        return "the colon is U+FF1A (FULLWIDTH COLON)", "type a plain colon and a space"
    if match := _EQUALS.match(line):
        return "`=` where a colon is expected", f"write `{match[1]}: {match[2].strip()}`"
    if match := _NO_COLON.match(line):
        return "a line without a colon", f"write `{match[1]}: {match[2]}`"
    if _NO_KEY.match(line):
        return "a key is missing before the colon", "write `key: value`"
    if _AFTER_QUOTE.match(line):
        return "text after a closing quote", "put the whole value in quotes; inside single quotes, double each `'`"
    if _WORD_ALONE.match(line):
        return f"`{line.strip()}` has no colon", "write `key: value`"
    return None


def _by_message(what: str, context: str) -> tuple[str, str]:
    plain = what.replace("found ", "")
    if "mapping values are not allowed" in what:
        hint = "put quotes around a value that contains `: `, or look for a missing quote or bracket above"
        return "a second colon in one line", hint
    if "could not find expected ':'" in what:
        return "a line without a colon", "write `key: value`, or quote text of several lines"
    if "found undefined alias" in what:
        return plain, "define it first with `&name`, or quote a value that starts with `*`"
    if "duplicate anchor" in what or "duplicate anchor" in context:
        return "an anchor of this name exists already", "rename one of them"
    if closing := re.search(r"found '([\]}])'", what):
        return f"a `{closing[1]}` without its opening", "remove it"
    if any(e in what for e in ("expected <block end>", "expected the node content", "expected <document start>")):
        return (
            "indentation does not fit the lines above",
            "keys of one block start in one column; lists start with `- `",
        )
    if "cannot start any token" in what:
        return plain, "put the value in quotes"
    return f"not YAML: {', '.join(filter(None, [context, what]))}", "check this line and the one above"
