"""A file to a Recipe, or every problem in it at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import Problem, RecipeError
from orchestrator.recipe import axolotl, rules, tune_block
from orchestrator.recipe.digest import digest
from orchestrator.recipe.ids import parse_model_id
from orchestrator.recipe.model import DEFAULT_TRAINER, Recipe
from orchestrator.recipe.overrides import apply
from orchestrator.recipe.references import references
from orchestrator.recipe.scalars import Unfit, one_line
from orchestrator.recipe.shapes import Reader, Report, odd_key
from orchestrator.recipe.syntax import written_wrong
from orchestrator.recipe.tree import Leaf, Map, Tree, Unreadable, join, read

HOLDER = "x-"  # a top-level key that starts so holds anchors, and nothing else


def load(path: str | Path, *, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe. `overrides` are `key=value` or `tune.key=value`, as `--set` takes them."""
    path = Path(path)
    return loads(_bytes(path), path=path, overrides=overrides)


def loads(data: bytes, *, path: str | Path = "recipe.yaml", overrides: Sequence[str] = ()) -> Recipe:
    """The same for bytes already read; `path` is for messages and for what is relative to it."""
    path = Path(path)
    report = Report(str(path))
    try:
        tree, problems = read(data)
    except Unreadable as e:
        raise _refused(path, [_placed(p, path) for p in e.problems]) from None
    report.problems += [_placed(p, path) for p in problems]
    unseen = {p.line for p in problems if p.message.startswith("invisible")}
    if not isinstance(tree, Map):
        raise _refused(path, [*report.problems, _not_a_mapping(tree, path)])
    apply(tree, overrides, report)
    tune = tune_block.read(_tune_tree(tree, report), report)
    training = _training(tree, report)
    axolotl.translate(training, report, trainer=tune.trainer or DEFAULT_TRAINER)
    _base_model(training, report)
    rules.check(training, tune, report)
    datasets = references(training, report)
    if report.problems:
        # what else is odd on a line with an invisible character is that character's doing
        raise _refused(path, [p for p in report.problems if p in problems or p.line not in unseen])
    return Recipe(
        path=path,
        text=data,
        sha256=digest(training, tune),
        training=training,
        tune=tune,
        datasets=datasets,
        notices=tuple(dict.fromkeys(map(one_line, report.notices))),
        lines=dict(report.lines),
    )


def check_provider(recipe: Recipe, provider: str) -> None:
    """Raise RecipeError when the recipe cannot run with `provider`, which the command line or the config chose."""
    report = Report(str(recipe.path), lines=dict(recipe.lines))
    tune_block.check_interval(recipe.tune.checkpoint_every_s, provider, report, gpu_count=recipe.tune.gpu_count)
    if report.problems:
        raise _refused(recipe.path, report.problems)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        problem = Problem("", "no such file", hint="`tune init` writes a recipe to start from", path=str(path))
    except IsADirectoryError:
        problem = Problem("", "a folder, not a recipe", hint="name the YAML file in it", path=str(path))
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        problem = Problem("", f"cannot be read: {reason}", hint="look at its name and permissions", path=str(path))
    raise _refused(path, [problem])


def _refused(path: Path, problems: Sequence[Problem]) -> RecipeError:
    ordered = sorted(problems, key=lambda p: p.line or 0)
    for problem in ordered:
        problem.where, problem.message, problem.hint = map(one_line, (problem.where, problem.message, problem.hint))
    count = f"{len(ordered)} problem{'s' if len(ordered) != 1 else ''}"
    return RecipeError(f"{path}: {count}", ordered)


def _placed(problem: Problem, path: Path) -> Problem:
    problem.path = str(path)
    return problem


def _not_a_mapping(tree: Tree, path: Path) -> Problem:
    slip = written_wrong(tree.text.split("\n")[0].split(" ")[0]) if isinstance(tree, Leaf) and not tree.quoted else None
    what = "a list" if not isinstance(tree, Leaf) else "plain text"
    message, hint = slip or (
        f"the file holds {what}, not keys",
        "write `base_model: org/model` and so on, one key per line",
    )
    return Problem("", message, hint=hint, path=str(path), line=tree.line)


def _tune_tree(tree: Map, report: Report) -> Map | None:
    block = tree.entries.get("tune")
    if block is None:
        return None
    if (line := tree.lines.get("tune")) is not None:
        report.lines["tune"] = line
    if isinstance(block, Map):
        return block
    if not (isinstance(block, Leaf) and block.is_blank):
        report.problem("tune", "must hold keys", "write them below it, indented: `trainer: trl` and so on", block.line)
    return None


def _training(tree: Map, report: Report) -> dict[str, Any]:
    reader = Reader(report)
    known, plugin_keys, other_names = axolotl.keys(), axolotl.plugin_keys(), axolotl.aliases()
    found: dict[str, Any] = {}
    for key, value in tree.entries.items():
        if (line := tree.lines.get(key)) is not None:
            report.lines[key] = line
        if key == "tune" or key.startswith(HOLDER):
            continue
        name = other_names.get(key, key)
        shape = known.get(name) or (plugin_keys[name][1] if name in plugin_keys else None)
        if shape is None:
            _unknown(key, value, report)
        elif name in found:
            report.problem(key, f"the same as {name}, which is set too", "keep one")
        elif (read_value := reader.value(value, shape, key)) is not None:
            if read_value in ([], {}):
                report.notice(key, "is empty: the same as leaving it out")
                continue
            found[name] = read_value
            if name in plugin_keys and name not in known:
                _needs_plugin(key, plugin_keys[name][0], tree, report)
    return found


def _unknown(key: str, value: Tree, report: Report) -> None:
    """A key nobody knows; a block of known keys is said to be in the wrong place."""
    known = axolotl.keys()
    if isinstance(value, Map):
        meant = [k if k in known else axolotl.SYNONYMS.get(k, k) for k in value.entries]
        misplaced = [k for k in meant if k in known]
        to_tune = [k for k in meant if k in tune_block.KEYS and k not in known]
        if value.anchored or any(isinstance(v, Map) and v.anchored for v in value.entries.values()):
            hint = f"call it {HOLDER}{key} if it only holds anchors"
        elif misplaced:
            hint = f"put {', '.join(misplaced)} at the top level"
        elif to_tune:
            hint = f"put {', '.join(to_tune)} under `tune:`"
        else:
            hint = axolotl.suggestion(key, tuple(tune_block.KEYS))
        report.problem(key, "unknown key" + odd_key(key), hint)
        for inner, line in value.lines.items():
            if line is not None:
                report.lines.setdefault(join(key, inner), line)
        return
    report.problem(key, "unknown key" + odd_key(key), axolotl.suggestion(key, tuple(tune_block.KEYS)))


def _needs_plugin(key: str, start: str, tree: Map, report: Report) -> None:
    plugins = tree.entries.get("plugins")
    listed = [i.text for i in getattr(plugins, "items", []) if isinstance(i, Leaf)]
    if not any(p.startswith(start) for p in listed):
        report.problem(key, "is known only while its plugin is listed", f"add `plugins: [{start}…]`, or remove the key")


def _base_model(training: dict[str, Any], report: Report) -> None:
    """The model as name and revision."""
    text = training.get("base_model")
    if text is None:
        return
    try:
        model = parse_model_id(text)
    except Unfit as e:
        report.problem("base_model", e.message, e.hint)
        return
    training["base_model"] = model.name
    for notice in model.notices:
        report.notice("base_model", notice)
    if model.revision is not None:
        if training.get("revision_of_model", model.revision) != model.revision:
            said = f"`{training['revision_of_model']}` here, `{model.revision}` in base_model"
            report.problem("revision_of_model", f"two revisions: {said}", "keep one")
        training["revision_of_model"] = model.revision
