"""A tree to typed values, by the shape that a key is known to have."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import Problem
from orchestrator.recipe.model import line_of
from orchestrator.recipe.scalars import (
    Unfit,
    nearest,
    parse_any,
    parse_bool,
    parse_choice,
    parse_float,
    parse_int,
    parse_number,
    parse_text,
    show,
)
from orchestrator.recipe.tree import Leaf, Map, Seq, Tree, join

Shape = Mapping[str, Any]  # as configs/axolotl_keys.json describes it
Special = Callable[[str], Any]  # a parser for text with a unit; raises Unfit
_WORDS = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text", "list": "a list"}
_ANYTHING: Shape = {"is": ["any"]}
_WORDS |= {"map": "a mapping", "any": "a value"}


@dataclass(slots=True)
class Report:
    """Collects what is wrong, what is worth saying, and where each key stands."""

    path: str  # of the file, for messages
    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    overridden: set[str] = field(default_factory=set)  # key paths that came from the command line

    def problem(self, where: str, message: str, hint: str = "", line: int | None = None) -> None:
        """At the line of `where`, or named as an option when it was set on the command line."""
        if self.is_overridden(where):
            self.problems.append(Problem(f"--set {where}", message, hint=hint))
            return
        found = line if line is not None else self.line_of(where)
        self.problems.append(Problem(where, message, hint=hint, path=self.path, line=found))

    def notice(self, where: str, message: str) -> None:
        """Something the reader took in another way than it was written."""
        line = self.line_of(where)
        if self.is_overridden(where):
            self.notices.append(f"--set {where}: {message}")
        else:
            self.notices.append(f"{self.path}:{line}: {where} - {message}" if line else f"{where} - {message}")

    def is_overridden(self, where: str) -> bool:
        return any(where == o or where.startswith((f"{o}.", f"{o}[")) for o in self.overridden)

    def line_of(self, where: str) -> int | None:
        """The line of a key, or of the nearest thing around it."""
        return line_of(self.lines, where)


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads values of known shapes out of a tree; a value it cannot read is reported and left out."""

    report: Report
    specials: Mapping[str, Special] = field(default_factory=dict)  # "duration", "usd" … as kinds of their own

    def value(self, tree: Tree, shape: Shape, where: str) -> Any:
        """The value, or None when it is not set or not usable."""
        try:
            return self._value(tree, shape, where)
        except Unfit as e:
            self.report.problem(where, e.message, e.hint, tree.line)
            return None

    def _value(self, tree: Tree, shape: Shape, where: str) -> Any:
        kinds = tuple(shape["is"])
        if isinstance(tree, Leaf):
            return None if tree.is_blank else self.leaf(tree, shape, kinds, where)
        if isinstance(tree, Seq):
            if "list" in kinds or "any" in kinds:
                return self._list(tree, shape.get("items", _ANYTHING), where)
            raise Unfit(f"a list stands where {expected(shape)} is expected", "write it without brackets and dashes")
        if "map" in kinds or "any" in kinds:
            return self.mapping(tree, shape, where)
        odd = next((odd_key(k) for k in tree.entries if odd_key(k)), "")
        hint = "start each item with `- `" if "list" in kinds else "write the value after the colon"
        raise Unfit(f"a mapping stands where {expected(shape)} is expected{odd}", hint)

    def _list(self, tree: Seq, items: Shape, where: str) -> list[Any]:
        found = []
        for index, item in enumerate(tree.items):
            here = join(where, index)
            if item.line is not None:
                self.report.lines[here] = item.line
            value = self.value(item, items, here)
            if value is not None or "any" in items["is"]:
                found.append(value)
        return found

    def mapping(self, tree: Map, shape: Shape, where: str) -> dict[str, Any]:
        """A mapping with known keys, or with any keys and values of one shape."""
        keys: Mapping[str, Shape] | None = shape.get("keys")
        others: Shape = shape.get("values", _ANYTHING)
        found: dict[str, Any] = {}
        aliases = {a: k for k, s in (keys or {}).items() for a in s.get("aliases", ())}
        for key, value in tree.entries.items():
            here = join(where, key)
            line = tree.lines.get(key)
            if line is not None:
                self.report.lines[here] = line
            if keys is None:
                read_value = self.value(value, others, here)
                if read_value is not None or "any" in others["is"]:
                    found[key] = read_value
                continue
            name = aliases.get(key, key)
            if name not in keys:
                self.unknown(key, tuple(keys), where)
            elif name in found:
                self.report.problem(here, f"the same as {name}, which is set too", "keep one")
            elif (read := self.value(value, keys[name], here)) is not None:
                found[name] = read
        return found

    def unknown(self, key: str, keys: tuple[str, ...], where: str) -> None:
        """Report a key nobody knows, with the one that was probably meant."""
        near = nearest(key, keys)
        hint = f"did you mean {near}?" if near else f"known here: {', '.join(sorted(keys)[:20])}"
        self.report.problem(join(where, key), "unknown key" + odd_key(key), hint)

    def leaf(self, leaf: Leaf, shape: Shape, kinds: tuple[str, ...], where: str) -> Any:
        """One scalar, by the first kind that takes it."""
        for kind, parse in self.specials.items():
            if kind in kinds:
                return self._bounded(parse(leaf.text), shape, leaf.text)
        if "any" in kinds:
            return self._any(leaf, where)
        choices = tuple(shape.get("choices", ()))
        if choices and "str" in kinds and leaf.text.strip() in choices:
            return leaf.text.strip()
        refusal: Unfit | None = None
        for kind in ("bool", "number", "int", "float"):
            if kind in kinds or (kind == "number" and {"int", "float"} <= set(kinds)):
                try:
                    if kind == "bool":
                        return parse_bool(leaf.text)
                    parse = {"number": parse_number, "int": parse_int, "float": parse_float}[kind]
                    return self._bounded(parse(leaf.text), shape, leaf.text)
                except Unfit as e:
                    refusal = refusal or e
        if "str" in kinds:
            return self._text(leaf, shape, choices, kinds)
        if refusal is not None:
            raise refusal
        hint = "write each item as `- item` on its own line" if "list" in kinds else "write `key: value` pairs below it"
        raise Unfit(f"{show(leaf.text)} stands where {expected(shape)} is expected", hint)

    def _text(self, leaf: Leaf, shape: Shape, choices: tuple[str, ...], kinds: tuple[str, ...]) -> str:
        if choices:
            if "or_match" in shape and re.search(shape["or_match"], leaf.text):
                return parse_text(leaf.text, quoted=leaf.quoted)
            more = ("true", "false") if "bool" in kinds else ()
            return parse_choice(leaf.text, choices + more)
        return parse_text(leaf.text, quoted=leaf.quoted)

    def _any(self, leaf: Leaf, where: str) -> Any:
        value = parse_any(leaf.text, quoted=leaf.quoted)
        if isinstance(value, str) and not leaf.quoted and value.lower() in {"yes", "no", "on", "off"}:
            self.report.notice(where, f"{value} is taken as text; write true or false if that is meant")
        return value

    def _bounded(self, value: Any, shape: Shape, text: str) -> Any:
        low, above, high = shape.get("min"), shape.get("above"), shape.get("max")
        below = shape.get("below")
        if low is not None and value < low:
            raise Unfit(f"{show(text)} is below {low}", shape.get("why", f"the least is {low}"))
        if above is not None and value <= above:
            raise Unfit(f"{show(text)} is not above {above}", shape.get("why", f"write a number above {above}"))
        if high is not None and value > high:
            raise Unfit(f"{show(text)} is above {high}", shape.get("why", f"the most is {high}"))
        if below is not None and value >= below:
            raise Unfit(f"{show(text)} is not below {below}", shape.get("why", f"write a number below {below}"))
        return value


def expected(shape: Shape) -> str:
    """`text or a list`."""
    return " or ".join(dict.fromkeys(_WORDS.get(k, k) for k in shape["is"]))


def odd_key(key: str) -> str:
    """What is odd about a key's spelling, when an eye would not see it."""
    if key != key.strip():
        return " (it has a space at its end)" if key == key.lstrip() else " (it starts with a space)"
    if key.endswith(":"):
        return " (two colons)"
    from orchestrator.recipe.source import name_of

    odd = next((c for c in key if ord(c) > 127), None)
    return f" (it contains {name_of(odd)})" if odd else ""
