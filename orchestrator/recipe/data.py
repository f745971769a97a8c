"""Check a recipe's data before anything starts: what every row becomes, and how many steps they make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import Problem, RecipeError
from orchestrator.recipe import formats, readers, sources, tokens
from orchestrator.recipe.model import DatasetRef, Recipe
from orchestrator.recipe.report import DataReport, refusals
from orchestrator.recipe.tally import Progress, ReadRow, Settings, Tally

__all__ = ["DataReport", "Progress", "Row", "check", "examples"]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a dataset: its example, or the problem that keeps it from being one."""

    number: int
    line: int | None
    example: formats.Example | None = None
    problem: str = ""
    reason: str = ""  # the problem without what is special about this row
    file: str = ""


def examples(ref: DatasetRef, base: Path) -> Iterator[Row]:
    """Every row of one entry, in order; a bad row brings its problem. RecipeError when the entry itself is wrong."""
    try:
        convert = formats.converter(ref)
        paths = sources.files(ref, base)
    except (formats.UnknownTypeError, sources.SourceError) as error:
        raise RecipeError("the data cannot be read", [_entry_problem(ref, error, "")]) from None
    for item in _read(ref, paths, convert):
        problem, reason = (str(item.fault), item.fault.reason) if item.fault else ("", "")
        yield Row(item.raw.number, item.raw.line, item.example, problem, reason, str(item.path))


def check(recipe: Recipe, *, tokenizer: Any = None, progress: Progress | None = None) -> DataReport:
    """Read and tokenise every row. RecipeError with every problem when the run must not start.

    Without `tokenizer` the model's own is looked for on this machine; without that, lengths are estimates.
    """
    opened, problems = _open(recipe)
    if problems:
        raise RecipeError(_title(problems), problems)
    found = tokens.load(recipe, tokenizer)
    if found.problems:
        raise RecipeError(_title([*found.problems]), found.problems)
    tally = Tally(Settings.of(recipe), found, progress or (lambda _rows, _where: None))
    for ref, paths, convert in opened:
        tally.dataset(ref, _read(ref, paths, convert))
    report = tally.report()
    problems = refusals(recipe, report)
    if problems:
        raise RecipeError(_title(problems), problems)
    return report


def _title(problems: list[Problem]) -> str:
    return f"the data cannot be used: {len(problems)} problem{'s' if len(problems) > 1 else ''}"


_Opened = tuple[DatasetRef, tuple[Path, ...], formats.Convert]


def _open(recipe: Recipe) -> tuple[list[_Opened], list[Problem]]:
    opened, problems = [], []
    for ref in recipe.datasets:
        try:
            opened.append((ref, sources.files(ref, recipe.path.parent), formats.converter(ref)))
        except (formats.UnknownTypeError, sources.SourceError) as error:
            problems.append(_entry_problem(ref, error, str(recipe.path)))
        problems += _unread_keys(recipe, ref)
    if not any(not ref.held_out for ref in recipe.datasets):
        problems.append(Problem("datasets", "no dataset to train on", path=str(recipe.path)))
    return opened, problems


def _unread_keys(recipe: Recipe, ref: DatasetRef) -> Iterator[Problem]:
    """Keys of an entry that Axolotl knows and that would be ignored where it does not do the reading."""
    if recipe.tune.trainer == "axolotl":
        return
    unread = {key: value for key, value in ref.extra.items() if value not in (None, "", False, [], {})}
    if ref.message_field_training_detail:
        unread["message_field_training_detail"] = ref.message_field_training_detail
    if ref.train_on_eos not in (None, "turn"):
        unread["train_on_eos"] = ref.train_on_eos
    for key in unread:
        message = f"the trainer {recipe.tune.trainer} does not honour this key"
        yield Problem(f"{sources.where(ref)}.{key}", message, hint="remove it", path=str(recipe.path), line=ref.line)


def _entry_problem(ref: DatasetRef, error: formats.UnknownTypeError | sources.SourceError, recipe_path: str) -> Problem:
    if isinstance(error, sources.SourceError):
        return error.problem(ref, recipe_path)
    hint = f"known types: {', '.join(formats.KNOWN_TYPES)}" if "type.format" not in str(error) else ""
    return Problem(f"{sources.where(ref)}.type", str(error), hint=hint, path=recipe_path, line=ref.line)


def _read(ref: DatasetRef, paths: tuple[Path, ...], convert: formats.Convert) -> Iterator[ReadRow]:
    for path in paths:
        for raw in readers.read(path, sources.kind(ref)):
            if raw.value is None:
                yield ReadRow(path, raw, None, raw.fault)
                continue
            try:
                yield ReadRow(path, raw, convert(raw.value), None)
            except formats.UnfitRowError as error:
                yield ReadRow(path, raw, None, error.fault)
