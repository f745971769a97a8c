"""`--set key=value`: the same rules as in the file, and named as an option when something is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.errors import Problem
from orchestrator.recipe.shapes import Report
from orchestrator.recipe.tree import Leaf, Map, Seq, Tree, Unreadable, parse, place_of


def apply(tree: Map, overrides: Sequence[str], report: Report) -> None:
    """Set each `key=value` in the tree, in order; the last one wins."""
    for text in overrides:
        key, sign, value = text.partition("=")
        key = key.strip()
        steps = place_of(key)
        if not sign or not key or steps is None or isinstance(steps[0], int):
            hint = "write --set key=value, or --set tune.key=value"
            report.problems.append(Problem(f"--set {text}", "not of the form key=value", hint=hint))
            continue
        report.overridden.add(key)
        parsed = _value(key, value, report)
        if parsed is not None and not _put(tree, steps, parsed):
            report.problem(key, "there is nothing of that name to set it in", "look at the recipe's own nesting")


def _value(key: str, value: str, report: Report) -> Tree | None:
    """The value as YAML, without a line."""
    if not value.strip():
        return Leaf("", quoted=False, line=None)
    if value.lstrip()[0] not in "[{\"'":
        # one plain scalar: nothing in it is structure, so a `#` or a `: ` is text here
        return Leaf(value.strip(" \t\n"), quoted=False, line=None)
    try:
        tree, problems = parse(value)
    except Unreadable as e:
        problems = e.problems
    for problem in problems:
        report.problem(key, problem.message, problem.hint)
    return None if problems else _without_lines(tree)


def _without_lines(tree: Tree) -> Tree:
    if isinstance(tree, Leaf):
        return Leaf(tree.text, tree.quoted, None)
    if isinstance(tree, Seq):
        return Seq([_without_lines(i) for i in tree.items], None)
    return Map({k: _without_lines(v) for k, v in tree.entries.items()}, None, dict.fromkeys(tree.entries))


def _put(tree: Tree, steps: list[str | int], value: Tree) -> bool:
    at: Tree = tree
    for index, step in enumerate(steps):
        last = index == len(steps) - 1
        if isinstance(step, int):
            if not isinstance(at, Seq) or step >= len(at.items):
                return False
            if last:
                at.items[step] = value
            at = at.items[step]
            continue
        if not isinstance(at, Map):
            return False
        inner = at.entries.get(step)
        if last:
            at.entries[step] = value
            at.lines[step] = None
        elif inner is None or (isinstance(inner, Leaf) and inner.is_blank):
            at.entries[step] = Map({}, None)
            at.lines.setdefault(step, None)
        at = at.entries[step]
    return True
