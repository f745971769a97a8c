"""What a trainer says while it works, and how it vouches for files. Standard library only.

Runs on the instance beside the training script, in the trainer's environment.
"""

from __future__ import annotations

import faulthandler
import json
import math
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

EXIT_SAVED = 75

# Written by the Trainer, read by nobody: a pickle of its arguments, and a page of blanks.
LEFT_OUT = ("training_args.bin", "README.md")


class Refused(RuntimeError):
    """The job cannot be done as it is asked for; says why in words for the user."""


class Stop:
    """Whether somebody asked this process to save and leave."""

    def __init__(self) -> None:
        self.wanted = False
        self._has_begun = False

    def listen(self) -> None:
        """SIGTERM: leave after the current step, or at once while nothing is to be saved. SIGUSR1: show the stacks."""
        signal.signal(signal.SIGTERM, self._asked)
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True, chain=False)

    def training_begins(self) -> None:
        """From here on there is something to lose."""
        self._has_begun = True

    def _asked(self, _signal: int, _frame: Any) -> None:
        self.wanted = True
        if not self._has_begun:
            os._exit(EXIT_SAVED)  # whatever is being imported or loaded must not catch this and go on


class Events:
    """Appends one JSON object per line; each line reaches the file in one write."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def emit(self, event: str, **fields: Any) -> None:
        """One event, now. NaN and infinity become strings, because JSON has no word for them."""
        line = json.dumps({"event": event, "at": time.time(), **{k: spelled(v) for k, v in fields.items()}})
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode() + b"\n")
        finally:
            os.close(descriptor)


def spelled(value: Any) -> Any:
    """A number as JSON can carry it: `nan`, `inf` and `-inf` as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def files_below(folder: Path) -> dict[str, int]:
    """Every file's name, relative and with slashes, and its size."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in found}


def is_vouched(record: Path, folder: Path) -> bool:
    """`record` exists and names exactly the files that lie in `folder`, with their sizes."""
    try:
        said = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and said.get("files") == files_below(folder)


def link_tree(source: Path, target: Path) -> None:
    """The same files under another name: hard links take no space and no time, copies where links cannot be made."""
    for path in sorted(source.rglob("*")):
        if not path.is_file() or path.name in LEFT_OUT:
            continue
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, place)
        except OSError:
            shutil.copyfile(path, place)


def vouch(folder: Path, record: Path, said: dict[str, Any]) -> None:
    """Write `record` for what lies in `folder`: all of it reaches the disk first, then the record gets its name."""
    said = {**said, "files": files_below(folder), "format": 1}
    for path in sorted(folder.rglob("*")):
        _sync(path)
    _sync(folder)
    draft = record.with_name(f".{record.name}.draft")
    draft.write_text(json.dumps(said, indent=1, sort_keys=True, allow_nan=False) + "\n")
    _sync(draft)
    draft.replace(record)
    _sync(record.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Snapshots:
    """Checkpoints that can be trusted: `<step>/` complete before `<step>.json` exists."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def discard_unfinished(self) -> list[str]:
        """Remove what a killed trainer left half-made; returns the names."""
        gone = []
        for path in sorted(self.folder.iterdir()):
            unfinished = path.is_dir() and not path.with_name(f"{path.name}.json").exists()
            if unfinished:
                shutil.rmtree(path)
            elif path.name.endswith(".draft"):
                path.unlink()
            else:
                continue
            gone.append(path.name)
        return gone

    def publish(self, step: int, source: Path, said: dict[str, Any], extra: dict[str, str]) -> None:
        """Take `source` as the checkpoint of `step`, with `extra` small files beside its own.

        A checkpoint of this step that is already vouched for stays as it is: whoever reads it must not see it change.
        """
        folder, record = self.folder / str(step), self.folder / f"{step}.json"
        if is_vouched(record, folder):
            return
        record.unlink(missing_ok=True)
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        link_tree(source, folder)
        for name, text in extra.items():
            (folder / name).write_text(text)
        vouch(folder, record, {**said, "step": step})
