"""Checkpoints the trainer has vouched for and that still lie on this disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator import codec
from orchestrator.agent import inspection
from orchestrator.agent.files import safe_path
from orchestrator.agent.home import Home
from orchestrator.errors import RecordCorrupt
from orchestrator.handover import Snapshot


def pending(home: Home) -> list[int]:
    """Steps whose record is in place, oldest first, compared as numbers; foreign names are passed over."""
    names = [path.stem for path in home.snapshots.glob("*.json")]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and str(int(name)) == name)


def examine(home: Home, step: int, *, allow_optimizer_reset: bool) -> Snapshot | str:
    """The snapshot, looked into; or why it cannot be used."""
    folder = home.snapshots / str(step)
    try:
        snapshot = codec.load(Snapshot, (home.snapshots / f"{step}.json").read_bytes(), where=f"snapshots/{step}.json")
        if snapshot.step != step:
            return f"its record says step {snapshot.step}"
        for name in snapshot.files:
            safe_path(folder, name)
        problems = inspection.checkpoint_problems(
            folder,
            snapshot.files,
            step=step,
            world_size=snapshot.world_size,
            allow_optimizer_reset=allow_optimizer_reset,
        )
    except (RecordCorrupt, OSError, ValueError) as e:
        return str(e)
    return "; ".join(problems[:5]) if problems else snapshot


def remove(home: Home, step: int) -> None:
    """The record first: half a folder must not look whole."""
    (home.snapshots / f"{step}.json").unlink(missing_ok=True)
    shutil.rmtree(home.snapshots / str(step), ignore_errors=True)


def size_of(folder: Path) -> int:
    """Bytes in all files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
