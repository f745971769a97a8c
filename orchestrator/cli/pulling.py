"""Files from the bucket into a folder: verified, resumable, all or none in place."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from orchestrator.errors import CheckpointCorrupt, ObjectNotFound, RunConflict, StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.storage.base import Store
    from orchestrator.storage.runs import RunStore
    from orchestrator.types import CheckpointManifest, Run, StoredFile

PARTIAL = ".tune-partial"
MARKER = ".tune-pull.json"  # what an earlier pull put there: only that may be replaced
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Pulled:
    """What lies in the folder now."""

    folder: Path
    files: tuple[StoredFile, ...]
    fetched: int  # files that had to be downloaded


def pull(
    store: Store, files: Sequence[StoredFile], folder: Path, *, count: Callable[[int], None], replace: bool = False
) -> Pulled:
    """Fetch `files` into `folder`. A file with other bytes in the way is refused before anything is fetched.

    Whatever has been downloaded before an interruption is kept below `.tune-partial` and not fetched again; nothing
    appears under its own name before every file has been verified. `replace` allows overwriting what an earlier pull
    put there, if it is unchanged since.
    """
    try:
        return _pull(store, files, folder, count=count, replace=replace)
    except OSError as e:
        place = e.filename2 or e.filename or folder
        raise UsageError(f"{place} cannot be written: {e.strerror or e}", hint="name another DIR") from e


def _pull(
    store: Store, files: Sequence[StoredFile], folder: Path, *, count: Callable[[int], None], replace: bool
) -> Pulled:
    targets = [(file, folder / _safe(file.name)) for file in files]
    missing = [(file, path) for file, path in targets if not _same(path, file)]
    _refuse_others([path for _, path in missing], folder, replace=replace)
    partial = folder / PARTIAL
    for file, path in missing:
        part = partial / path.relative_to(folder)
        if not _same(part, file):
            part.parent.mkdir(parents=True, exist_ok=True)
            _fetch(store, file, part, count)
    for _, path in missing:
        path.parent.mkdir(parents=True, exist_ok=True)
        (partial / path.relative_to(folder)).replace(path)
    _remove_tree(partial)
    _mark(folder, files)
    return Pulled(folder, tuple(files), len(missing))


def artifact_files(runs: RunStore, run: Run) -> tuple[StoredFile, ...]:
    """The run's artifact, or an error that says what there is instead."""
    artifact = runs.artifact(run.run_id)
    if artifact is None:
        raise RunConflict(
            f"run {run.name} has no artifact yet; it is {run.phase.value}",
            hint=f"tune pull --checkpoint {run.run_id} DIR   fetches its newest checkpoint",
        )
    return artifact.files


def pull_checkpoint(
    runs: RunStore, run: Run, folder: Path, *, count: Callable[[int], None], told: Callable[[str], None]
) -> tuple[CheckpointManifest, Pulled]:
    """The newest checkpoint that verifies, else the next older one; `told` hears why."""
    for stored in runs.checkpoints(run.run_id):
        try:
            manifest = runs.manifest(stored.key)
            return manifest, pull(runs.store, manifest.files, folder, count=count)
        except (CheckpointCorrupt, ObjectNotFound) as e:
            told(f"checkpoint {stored.step} of attempt {stored.attempt} is not whole, trying an older one: {e.message}")
    raise CheckpointCorrupt(f"run {run.name} has no checkpoint that verifies", hint=f"run `tune status {run.run_id}`")


def _safe(name: str) -> str:
    """A file name from a manifest may only lead below the folder."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\0" in name or path.parts[0] in (PARTIAL, MARKER):
        raise StorageError(
            f"the manifest names a file outside of its folder: {name!r}",
            hint="the stored record has been changed; do not use it",
        )
    return name


def _refuse_others(paths: Sequence[Path], folder: Path, *, replace: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="name another DIR")
    own = _own(folder) if replace else {}
    there = [path for path in paths if path.exists() and own.get(str(path.relative_to(folder))) != _sha256(path)]
    if there:
        names = ", ".join(str(path) for path in there[:5]) + (f" and {len(there) - 5} more" if len(there) > 5 else "")
        raise UsageError(f"other files are in the way: {names}", hint="name another DIR, or move them away")


def _fetch(store: Store, file: StoredFile, part: Path, count: Callable[[int], None]) -> None:
    try:
        store.download(file.key, part, progress=count)
    except ObjectNotFound as e:
        raise CheckpointCorrupt(
            f"{file.name} is not in the storage any more: {e.message}",
            hint="the record names it; nothing was put in place",
        ) from e
    if not _same(part, file):
        found = part.stat().st_size
        part.unlink()
        raise CheckpointCorrupt(
            f"{file.name}: {found} bytes that do not match the manifest ({file.size}, sha256 {file.sha256[:12]}…)",
            hint="the stored object is damaged; nothing was put in place",
        )


def _same(path: Path, file: StoredFile) -> bool:
    return path.is_file() and path.stat().st_size == file.size and _sha256(path) == file.sha256


def _sha256(path: Path) -> str:
    if not path.is_file():
        return ""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _own(folder: Path) -> dict[str, str]:
    try:
        record: Any = json.loads((folder / MARKER).read_text())
        return {str(name): str(sha) for name, sha in record.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _mark(folder: Path, files: Sequence[StoredFile]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text(
        json.dumps({file.name: file.sha256 for file in files}, indent=1, sort_keys=True) + "\n"
    )


def _remove_tree(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
