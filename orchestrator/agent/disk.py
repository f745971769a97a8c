"""Room for the next checkpoint: made before it is needed, and said in time when there is none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.agent import snapshots
from orchestrator.agent.home import Home

_NEEDED = 1.5  # checkpoints: the one being written, and what grows beside it (logs, caches)
_ALWAYS_BYTES = 200_000_000  # below this a system misbehaves in ways nobody can tell from a fault of ours


@dataclass(frozen=True, slots=True)
class Room:
    """What is free, what is needed, and what was removed to get there."""

    free: int
    needed: int
    removed: tuple[str, ...] = ()

    @property
    def is_short(self) -> bool:
        return self.free < self.needed


def make_room(
    home: Home, *, checkpoint_bytes: int, min_free_bytes: int, in_use: Path | None, free: Callable[[Path], int]
) -> Room:
    """Remove what is not needed, oldest first, until the next checkpoint fits. `in_use` is the folder resumed from.

    The newest of everything stays: it may be all there is.
    """
    needed = max(_ALWAYS_BYTES, min_free_bytes, int(_NEEDED * checkpoint_bytes))
    removed: list[str] = []
    for path in removable(home, in_use=in_use):
        if free(home.root) >= needed:
            break
        removed.append(str(path.relative_to(home.root)))
        if path.parent == home.snapshots:
            snapshots.remove(home, int(path.name))
        else:
            shutil.rmtree(path, ignore_errors=True)
    return Room(free(home.root), needed, tuple(removed))


def removable(home: Home, *, in_use: Path | None) -> list[Path]:
    """Folders nobody needs any more, the least needed first."""
    restored = [p for p in _numbered(home.restored, "checkpoint-") if p != in_use]
    output = _numbered(home.output, "checkpoint-")[:-1]
    waiting = [home.snapshots / str(step) for step in snapshots.pending(home)[:-1]]
    return [*restored, *output, *waiting]


def _numbered(folder: Path, prefix: str) -> list[Path]:
    found = [p for p in folder.glob(f"{prefix}*") if p.name.removeprefix(prefix).isdigit() and p.is_dir()]
    return sorted(found, key=lambda p: int(p.name.removeprefix(prefix)))
