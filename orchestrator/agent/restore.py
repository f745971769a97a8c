"""Where to go on: the newest checkpoint that verifies, else the next older one, and why."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator import checkpoints, codec, keys
from orchestrator.agent import inspection, machine
from orchestrator.agent.bucket import Bucket
from orchestrator.agent.ending import AttemptEnds, Ending
from orchestrator.agent.files import Damaged, download, safe_path
from orchestrator.agent.home import Home
from orchestrator.agent.parallel import in_parallel
from orchestrator.errors import CheckpointCorrupt, ObjectNotFound, RecordCorrupt
from orchestrator.handover import JobSpec, Snapshot
from orchestrator.storage.base import Store
from orchestrator.types import CheckpointManifest, Outcome, StoredFile

Note = Callable[[str], None]
Free = Callable[[Path], int]  # bytes


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint on this disk that a trainer may go on from."""

    step: int
    folder: Path
    source: str  # the manifest's key; "" for a snapshot that is not stored yet
    micro_batch_size: int
    gradient_accumulation_steps: int
    size: int


def newest(
    bucket: Bucket, home: Home, spec: JobSpec, *, note: Note, until: float, free: Free = machine.disk_free_bytes
) -> Restored | None:
    """Download and check the newest usable checkpoint. None only if none was ever stored.

    CheckpointCorrupt when some are stored and none can be used: starting over without a word would hide a loss.
    AttemptEnds when it does not fit on this disk: an older one would not either.
    """
    config = bucket.config
    listed = bucket.patiently(lambda s: checkpoints.found(s.scan(keys.checkpoints(config.run_id))), until=until)
    if not listed:
        return None
    run = bucket.run()
    choice = checkpoints.candidates(listed, intents=checkpoints.intents(run) if run else {})
    reasons = [f"{_short(i.checkpoint.key)}: {i.reason}" for i in choice.ignored]
    for candidate in choice.order:
        try:
            return _restore(bucket, home, spec, candidate, note=note, until=until, free=free)
        except (Damaged, RecordCorrupt, ObjectNotFound, ValueError) as e:
            reason = f"{_short(candidate.key)}: {getattr(e, 'message', e)}"
            reasons.append(reason)
            note(f"checkpoint not used: {reason}")
    for ignored in choice.ignored:
        note(f"checkpoint not used: {_short(ignored.checkpoint.key)}: {ignored.reason}")
    if not choice.order:
        return None  # all were written after this attempt had taken over: there was nothing to go on from
    raise CheckpointCorrupt(
        f"none of {len(choice.order)} stored checkpoints can be used: " + "; ".join(reasons),
        hint="look at them in the bucket; training does not start over by itself",
    )


def from_snapshot(home: Home, step: int, snapshot: Snapshot, *, batch: tuple[int, int], note: Note) -> Restored:
    """Go on from a checkpoint that this disk still has; hard links, so that it costs nothing."""
    folder = home.restored / f"checkpoint-{step}"
    shutil.rmtree(folder, ignore_errors=True)
    for name in snapshot.files:
        target = safe_path(folder, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(home.snapshots / str(step) / name, target)
    _repair_best(folder, step, available=None, note=note)
    return Restored(step, folder, "", batch[0], batch[1], sum(snapshot.files.values()))


def _restore(
    bucket: Bucket, home: Home, spec: JobSpec, candidate: checkpoints.Listed, *, note: Note, until: float, free: Free
) -> Restored:
    manifest = bucket.patiently(partial(_manifest, where=candidate.key), until=until)
    _check_identity(bucket, spec, candidate, manifest)
    _require_room(home, manifest, free=free)
    folder = _download(bucket, home, manifest, until=until)
    problems = inspection.checkpoint_problems(
        folder,
        {f.name: f.size for f in manifest.files},
        step=manifest.step,
        world_size=manifest.world_size,
        allow_optimizer_reset=bucket.config.allow_optimizer_reset,
    )
    if problems:
        shutil.rmtree(folder)
        raise Damaged("; ".join(problems[:5]))
    best = inspection.best_step(folder)
    kept = None
    if best is not None and best != manifest.step:
        kept = _restore_best(bucket, home, best, attempt=manifest.attempt, until=until)
    _repair_best(folder, manifest.step, available=kept, note=note)
    size = sum(f.size for f in manifest.files)
    batch = (manifest.micro_batch_size, manifest.gradient_accumulation_steps)
    return Restored(manifest.step, folder, candidate.key, *batch, size)


def _manifest(store: Store, *, where: str) -> CheckpointManifest:
    return codec.load(CheckpointManifest, store.get(where).data, where=where)


def _check_identity(bucket: Bucket, spec: JobSpec, candidate: checkpoints.Listed, manifest: CheckpointManifest) -> None:
    """It must be this run's, say the same as its name, name only its own attempt's blobs, and fit the recipe."""
    config = bucket.config
    if (manifest.run_id, manifest.step, manifest.attempt) != (config.run_id, candidate.step, candidate.attempt):
        raise Damaged("the manifest is about another checkpoint")
    if manifest.recipe_sha256 != config.recipe_sha256:
        raise Damaged("it was made with another recipe")
    if manifest.data_sha256 != config.data_sha256:
        raise Damaged("it was made with other data")
    effective = manifest.micro_batch_size * manifest.gradient_accumulation_steps
    if effective != spec.micro_batch_size * spec.gradient_accumulation_steps:
        raise Damaged(f"it was made with an effective batch of {effective}, which would shift the data")
    for file in manifest.files:
        if file.key != keys.blob(config.run_id, manifest.attempt, file.sha256):
            raise Damaged(f"{file.name} names an object outside this attempt")


def _require_room(home: Home, manifest: CheckpointManifest, *, free: Free) -> None:
    """Said before the disk is full: on a full one the agent itself can do nothing more."""
    folder = home.restored / f"checkpoint-{manifest.step}"
    here = sum(p.stat().st_size for f in manifest.files if (p := safe_path(folder, f.name)).is_file())
    needed, left = sum(f.size for f in manifest.files) - here, free(home.root)
    if needed > left:
        reason = (
            f"the checkpoint of step {manifest.step} does not fit on the disk: {needed / 1e9:.2f} GB, and "
            f"{left / 1e9:.2f} GB are free; ask for more with tune.disk_gb"
        )
        raise AttemptEnds(Ending(Outcome.USER_ERROR, 1, reason))


def _download(bucket: Bucket, home: Home, manifest: CheckpointManifest, *, until: float) -> Path:
    folder = home.restored / f"checkpoint-{manifest.step}"
    # Cheap, and it says at once what would be found missing after gigabytes.
    in_parallel(lambda file: _call(bucket, file, _check_size, until=until), manifest.files)
    if folder.exists() and (folder.is_symlink() or not folder.is_dir()):
        folder.unlink()
    paths = {file: safe_path(folder, file.name) for file in manifest.files}
    in_parallel(lambda file: _call(bucket, file, partial(_fetch, path=paths[file]), until=until), manifest.files)
    named = {folder / f.name for f in manifest.files}
    for path in [p for p in folder.rglob("*") if p.is_file() and p not in named]:
        path.unlink()
    return folder


def _fetch(store: Store, file: StoredFile, *, path: Path) -> None:
    download(store, file.key, path, size=file.size, sha256=file.sha256, moved=lambda _: None)


def _check_size(store: Store, file: StoredFile) -> None:
    size = store.head(file.key).size
    if size != file.size:
        raise Damaged(f"has {size} bytes instead of {file.size}")


def _call(bucket: Bucket, file: StoredFile, doing: Callable[[Store, StoredFile], None], *, until: float) -> None:
    try:
        bucket.patiently(lambda s: doing(s, file), until=until)
    except ObjectNotFound:
        raise Damaged(f"{file.name} is missing in the bucket") from None
    except Damaged as e:
        raise Damaged(f"{file.name} {e}") from None


def _restore_best(bucket: Bucket, home: Home, step: int, *, attempt: int, until: float) -> Path | None:
    """The best checkpoint so far, which the trainer means to load at the end; None if it is no longer there."""
    for number in range(attempt, 0, -1):
        where = keys.checkpoint(bucket.config.run_id, step, number)
        try:
            manifest = bucket.patiently(partial(_manifest, where=where), until=until)
            return _download(bucket, home, manifest, until=until)
        except (ObjectNotFound, Damaged, RecordCorrupt, ValueError):
            continue
    return None


def _repair_best(folder: Path, step: int, *, available: Path | None, note: Note) -> None:
    """`best_model_checkpoint` is a path on a machine that is gone: point it to this disk, or take it out.

    Written as a new file, never through a link that a stored snapshot shares.
    """
    path = folder / "trainer_state.json"
    state = json.loads(path.read_bytes())
    old = state.get("best_model_checkpoint")
    if not isinstance(old, str):
        return
    best = inspection.best_step(folder)
    here = folder if best == step else available
    state["best_model_checkpoint"] = str(here) if here else None
    if here is None:
        note(f"the best checkpoint so far, {Path(old).name}, is no longer stored; the best from here on counts")
    part = path.with_name(".trainer_state.part")
    part.write_text(json.dumps(state, indent=2), encoding="utf-8")
    part.replace(path)


def _short(key: str) -> str:
    return key.rpartition("/")[2].removesuffix(".json")
