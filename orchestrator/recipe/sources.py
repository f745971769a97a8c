"""Where a dataset's rows lie: the files behind one `datasets` entry, or what is wrong with its path."""

from __future__ import annotations

import difflib
import glob
import re
from pathlib import Path

from orchestrator.errors import Problem
from orchestrator.recipe.model import DatasetRef

DATA_SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet", ".txt", ".gz")
_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
_URL = re.compile(r"^[a-z][a-z0-9+.-]*://")
_LOADERS = ("json", "parquet", "text")  # what Axolotl's `path` may say when `data_files` names the files
_NAMED_AT_MOST = 5


class SourceError(ValueError):
    """An entry whose rows cannot be reached: message and hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def problem(self, ref: DatasetRef, recipe_path: str) -> Problem:
        """As a line of a recipe's problems."""
        return Problem(where(ref), self.message, hint=self.hint, path=recipe_path, line=ref.line)


def where(ref: DatasetRef) -> str:
    """How the recipe calls this entry."""
    return f"{'test_datasets' if ref.held_out else 'datasets'}[{ref.index}]"


def files(ref: DatasetRef, base: Path) -> tuple[Path, ...]:
    """The files of one entry, in order; relative paths are relative to the recipe's folder. SourceError."""
    if ref.ds_type not in (None, *_LOADERS):
        raise SourceError(f"ds_type {ref.ds_type!r} cannot be read here", "save the rows as JSONL or Parquet")
    if ref.split not in (None, "train") or ref.shards:
        raise SourceError(
            "split and shards are not supported for files", "save the rows you want in a file of their own"
        )
    if ref.data_files:
        folder = base if ref.path in _LOADERS else base / Path(ref.path).expanduser()
        return tuple(_file(name, folder) for name in ref.data_files)
    return (_file(ref.path, base),)


def kind(ref: DatasetRef) -> str:
    """What the entry says its files are; empty when their names and bytes decide."""
    return ref.ds_type or (ref.path if ref.data_files and ref.path in _LOADERS else "")


def _file(name: str, base: Path) -> Path:
    if _URL.match(name):
        raise SourceError(
            f"{name!r} is not a local file", "download it and name the file: rows are checked before anything starts"
        )
    path = base / Path(name).expanduser()
    try:
        if path.is_file():
            return path
        folder, there, near = path.is_dir(), path.exists(), _near(path)
    except (OSError, ValueError) as error:  # a name that no file can have
        raise SourceError(f"{name!r} cannot be a file: {error}") from None
    if folder:
        raise SourceError(f"{name!r} is a folder", _name_one(_inside(path, "*")))
    if there:  # a pipe or a device: it can be read only once, or without end
        raise SourceError(f"{name!r} is not a regular file", "save the rows in one")
    if glob.has_magic(name):
        raise SourceError(f"{name!r} is a pattern", _name_one(_inside(base, name)))
    if _HUB_ID.match(name) and not name.lower().endswith(DATA_SUFFIXES):
        hint = "download it (as JSONL or Parquet) and name the file"
        raise SourceError(
            f"{name!r} looks like a data set of the Hugging Face Hub, and rows are checked from a local file", hint
        )
    raise SourceError(f"no file {str(path)!r}", near)


def _near(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {str(path.parent)!r} either"
    close = difflib.get_close_matches(
        path.name, sorted(p.name for p in path.parent.iterdir() if p.name != path.name), n=1
    )
    return f"did you mean {close[0]!r}?" if close else ""


def _inside(base: Path, pattern: str) -> list[str]:
    if Path(pattern).is_absolute():
        return []
    found = (path for path in base.glob(pattern) if path.is_file() and path.name.lower().endswith(DATA_SUFFIXES))
    return sorted(str(path.relative_to(base)) for path in found)


def _name_one(names: list[str]) -> str:
    if not names:
        return "name a file"
    rest = ", …" if len(names) > _NAMED_AT_MOST else ""
    return f"name each file as an entry of its own: {', '.join(names[:_NAMED_AT_MOST])}{rest}"
