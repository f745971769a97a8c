"""YAML text to a plain tree that knows its lines: merge keys resolved, duplicate keys found, size bounded."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.errors import Problem
from orchestrator.recipe.source import clean, decode
from orchestrator.recipe.syntax import explain

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH = 40
MAX_NODES = 20_000  # with aliases expanded: a page of YAML can otherwise name billions of values
_PATH_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


@dataclass(slots=True)
class Leaf:
    """One scalar, as written."""

    text: str
    quoted: bool
    line: int | None

    @property
    def is_blank(self) -> bool:
        """Not set: nothing, null, or empty quotes."""
        return not self.text.strip() if self.quoted else self.text.strip() in {"", "~", "null", "Null", "NULL"}


@dataclass(slots=True)
class Seq:
    """A list."""

    items: list[Tree]
    line: int | None


@dataclass(slots=True)
class Map:
    """A mapping, merge keys already applied. `anchored`: an anchor stands on its key's line."""

    entries: dict[str, Tree]
    line: int | None
    lines: dict[str, int | None] = field(default_factory=dict)  # where each key stands
    anchored: bool = False


Tree = Leaf | Seq | Map


def join(path: str, key: str | int) -> str:
    """`datasets`, 0 -> `datasets[0]`; `a`, `b` -> `a.b`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


class Unreadable(Exception):
    """The text is not one YAML document."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(len(problems))
        self.problems = problems


def read(data: bytes) -> tuple[Tree, list[Problem]]:
    """The tree of the one document in `data`, and what is wrong but did not keep it from being read."""
    text, problems = decode(data)
    if problems:
        raise Unreadable(problems)
    return parse(text)


def parse(text: str) -> tuple[Tree, list[Problem]]:
    """The same for text."""
    cleaned = clean(text)
    problems = list(cleaned.problems)
    node, anchors = _compose(cleaned.text, problems)
    builder = _Builder(problems, anchors)
    tree = builder.build(node, "", ())
    return tree, problems


def _compose(text: str, problems: list[Problem]) -> tuple[Any, set[int]]:
    """The root node, and the lines that carry an anchor."""
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        anchors, starts = _check_tokens(text, problems)
        documents: list[Any] = []
        while loader.check_node():
            documents.append(loader.get_node())
    except (yaml.YAMLError, ValueError, OverflowError) as e:
        unseen = {p.line for p in problems}  # a fault on such a line is that character's doing
        faults = [p for p in explain(e, text) if p.line not in unseen]
        raise Unreadable([*problems, *faults]) from None
    finally:
        loader.dispose()
    if len(documents) > 1:
        again = starts[-(len(documents) - 1)]
        hint = "keep one recipe per file: delete this `---` and what does not belong"
        raise Unreadable([*problems, Problem("", "more than one document", hint=hint, line=again)])
    if not documents or _is_nothing(documents[0]):
        raise Unreadable(
            [*problems, Problem("", "recipe is empty", hint="`tune init` writes one to start from", line=1)]
        )
    return documents[0], anchors


def _is_nothing(node: Any) -> bool:
    return bool(node.id == "scalar" and node.style is None and node.value in {"", "~", "null", "Null", "NULL"})


def _check_tokens(text: str, problems: list[Problem]) -> tuple[set[int], list[int]]:
    """Refuse tags and depth before anything recurses; the lines with anchors, and those with `---`."""
    import yaml

    depth = 0
    opening = (
        yaml.BlockMappingStartToken,
        yaml.BlockSequenceStartToken,
        yaml.FlowMappingStartToken,
        yaml.FlowSequenceStartToken,
    )
    closing = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)
    tags: list[Problem] = []
    anchors: set[int] = set()
    starts: list[int] = []
    scalars = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        line = token.start_mark.line + 1
        if isinstance(token, opening):
            depth += 1
            if depth > MAX_DEPTH:
                hint = "a recipe is flat; look for brackets or indentation gone wrong"
                raise Unreadable([*problems, Problem("", f"nested more than {MAX_DEPTH} deep", hint=hint, line=line)])
        elif isinstance(token, closing):
            depth -= 1
        elif isinstance(token, yaml.ScalarToken):
            scalars += 1
            if scalars > 2 * MAX_NODES:
                message = f"more than {MAX_NODES:,} values"
                raise Unreadable([*problems, Problem("", message, hint="name data as a file instead", line=line)])
        elif isinstance(token, yaml.DocumentStartToken):
            starts.append(line)
        elif isinstance(token, yaml.AnchorToken):
            anchors.add(line)
        elif isinstance(token, yaml.TagToken):
            tag = "".join(part or "" for part in token.value)
            tags.append(Problem("", f"YAML tag `{tag}` is not allowed", hint="write the plain value", line=line))
    if tags:
        raise Unreadable([*problems, *tags])
    return anchors, starts


class _Builder:
    """Nodes to trees, with a budget."""

    def __init__(self, problems: list[Problem], anchors: set[int]) -> None:
        self.problems = problems
        self.anchors = anchors
        self.left = MAX_NODES
        self.reported: set[tuple[int, str]] = set()

    def build(self, node: Any, path: str, above: tuple[int, ...]) -> Tree:
        line = node.start_mark.line + 1
        self._spend(path, line, inside=id(node) in above)
        above = (*above, id(node))
        if node.id == "scalar":
            return Leaf(node.value, node.style is not None, line)
        if node.id == "sequence":
            return Seq([self.build(n, join(path, i), above) for i, n in enumerate(node.value)], line)
        found = Map({}, line)
        for key, key_line, value in self.pairs(node, path, above):
            inner = self.build(value, join(path, key), above)
            if isinstance(inner, Map):
                inner.anchored = key_line in self.anchors
            found.entries[key] = inner
            found.lines[key] = key_line
        return found

    def pairs(self, node: Any, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, int, Any]]:
        """Merged pairs first, the mapping's own after them, so that its own win."""
        own: dict[str, tuple[int, Any]] = {}
        merged: dict[str, tuple[int, Any]] = {}
        for key_node, value in node.value:
            line = key_node.start_mark.line + 1
            if key_node.id != "scalar":
                self._report(
                    node, path, "a key must be a plain word", line, "brackets or braces stand where a key is expected"
                )
                continue
            key = key_node.value
            if key in own:
                both = f"set twice (lines {own[key][0]} and {line})"
                self._report(node, join(path, key), both, line, "keep one")
            elif key == "<<" and key_node.style is None:
                own[key] = (line, value)
                merged = self._merge(value, path, above)
            elif not key.strip():
                self._report(node, path, "a key is missing before the colon", line, "write `key: value`")
            else:
                own[key] = (line, value)
        own.pop("<<", None)
        for key, (line, value) in (merged | own).items():
            yield key, line, value

    def _merge(self, value: Any, path: str, above: tuple[int, ...]) -> dict[str, tuple[int, Any]]:
        line = value.start_mark.line + 1
        sources = value.value if value.id == "sequence" else [value]
        found: dict[str, tuple[int, Any]] = {}
        for source in reversed(sources):  # the first named wins
            self._spend(join(path, "<<"), line, inside=id(source) in above)
            if source.id == "mapping":
                found |= {k: (n, v) for k, n, v in self.pairs(source, path, (*above, id(source)))}
            else:
                problem = Problem(join(path, "<<"), "only mappings can be merged", hint="use `<<: *name`", line=line)
                self.problems.append(problem)
        return found

    def _spend(self, path: str, line: int, *, inside: bool) -> None:
        """One step of the budget; nothing may contain itself."""
        self.left -= 1
        message, hint = "an alias inside the very thing it names", "remove it"
        if self.left < 0:
            message = f"more than {MAX_NODES:,} values once aliases are resolved"
            hint = "anchors that name each other multiply; write the values out"
        if inside or self.left < 0:
            raise Unreadable([*self.problems, Problem(path, message, hint=hint, line=line)])

    def _report(self, node: Any, where: str, message: str, line: int, hint: str) -> None:
        """Once per place, however many aliases lead to it."""
        if (id(node), message) not in self.reported:
            self.reported.add((id(node), message))
            self.problems.append(Problem(where, message, hint=hint, line=line))


def place_of(path: str) -> list[str | int] | None:
    """`datasets[0].path` as steps; None when it is not a key path."""
    steps: list[str | int] = []
    rest = path
    while rest:
        match = _PATH_PART.match(rest)
        if match is None:
            return None
        steps.append(match[1] if match[1] is not None else int(match[2]))
        rest = rest[match.end() :]
        if rest.startswith("."):
            rest = rest[1:]
            if not rest:
                return None
    return steps or None
