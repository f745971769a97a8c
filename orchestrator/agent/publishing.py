"""Files to the bucket, then the manifest that makes them true, then away with what no kept manifest names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from orchestrator import checkpoints, codec, keys
from orchestrator.agent.bucket import Bucket, Superseded
from orchestrator.agent.files import examine
from orchestrator.agent.parallel import in_parallel
from orchestrator.agent.redact import Redactor
from orchestrator.errors import AlreadyExists, ObjectNotFound, RecordCorrupt, StorageError
from orchestrator.storage.base import Store
from orchestrator.types import ArtifactManifest, CheckpointManifest, StoredFile

Note = Callable[[str], None]
_LISTED_FROM = 13  # on S3 a listing costs as much as twelve looks, and takes as long as one


class Unverified(StorageError):
    """What was just stored is not there as it should be."""


@dataclass(frozen=True, slots=True)
class Local:
    """A file on this disk and its name in the manifest."""

    name: str
    path: Path


class Publishing:
    """One attempt's blobs and manifests. Used by one thread at a time; sends several files at a time itself."""

    def __init__(self, bucket: Bucket, redactor: Redactor, *, note: Note) -> None:
        self._bucket = bucket
        self._redactor = redactor
        self._note = note
        self._run_id = bucket.config.run_id
        self._attempt = bucket.config.attempt
        self._stored: dict[str, int] | None = None  # blob key -> size
        self._manifests: dict[str, CheckpointManifest] | None = None
        self._verified: set[str] = set()

    def require_command(self) -> None:
        """Read `run.json` again: from the moment that somebody else is in charge nothing more is written."""
        if self._bucket.orders().superseded:
            raise Superseded

    def upload(self, files: Iterable[Local]) -> tuple[StoredFile, ...]:
        """Every file's bytes, each stored once. A secret must not leave: a file that holds one is left out."""
        self._own_blobs(self._bucket.store)
        sending = _Once(self._store_blob)
        stored = in_parallel(lambda file: self._upload(file, sending), files)
        return tuple(file for file in stored if file is not None)

    def publish_checkpoint(self, manifest: CheckpointManifest) -> str:
        """Make it true. A manifest that is there already counts if it verifies, and else is replaced: it is ours."""
        key = keys.checkpoint(self._run_id, manifest.step, self._attempt)
        self.require_command()
        store = self._bucket.store
        data = codec.dump(manifest)
        try:
            store.put_new(key, data)
        except AlreadyExists:
            earlier = self._earlier(store, key)
            if earlier is None or not self._is_whole(store, earlier):
                store.delete(key)
                store.put_new(key, data)
            else:
                manifest = earlier
        if not self._is_whole(store, codec.load(CheckpointManifest, store.get(key).data, where=key)):
            raise Unverified(f"{key} was stored, but not everything it names is there")
        self._own_manifests(store)[key] = manifest
        self._verified.add(key)
        return key

    def publish_artifact(self, manifest: ArtifactManifest) -> ArtifactManifest:
        """Name the winner: this attempt, unless another one was first."""
        self.require_command()
        store = self._bucket.store
        key = keys.artifact(self._run_id)
        if not self._is_whole(store, manifest):
            self._stored = None
            raise Unverified("not everything the artifact names is stored")
        try:
            store.put_new(key, codec.dump(manifest))
        except AlreadyExists:
            manifest = codec.load(ArtifactManifest, store.get(key).data, where=key)
        return manifest

    def prune(self, *, keep: int, best: int | None = None) -> None:
        """Remove what the newest `keep` verified checkpoints do not need. A refusal is a note, never a failure."""
        try:
            self.require_command()
            store = self._bucket.store
            plan = self._plan(store, keep=keep, best=best)
            for key in plan.manifests:
                store.delete(key)
                self._own_manifests(store).pop(key, None)
                self._verified.discard(key)
            for key in plan.blobs:
                store.delete(key)
                self._own_blobs(store).pop(key, None)
        except StorageError as e:
            self._note(f"older checkpoints could not be removed: {e}")

    def _plan(self, store: Store, *, keep: int, best: int | None) -> checkpoints.PrunePlan:
        manifests = self._own_manifests(store)
        listed = [
            c for c in checkpoints.found(store.scan(keys.checkpoints(self._run_id))) if c.attempt == self._attempt
        ]
        choice = checkpoints.candidates(listed, intents={})
        for candidate in choice.order[: max(1, keep)]:
            if candidate.key not in self._verified and candidate.key in manifests:
                self._verify_earlier(store, candidate.key, manifests[candidate.key])
        return checkpoints.prune_plan(
            choice,
            manifests=manifests,
            verified=self._verified,
            blobs=self._own_blobs(store),
            keep=keep,
            best=None if best is None else keys.checkpoint(self._run_id, best, self._attempt),
            also_named=self._artifact_blobs(store),
            owned_attempts={self._attempt},
        )

    def _artifact_blobs(self, store: Store) -> frozenset[str]:
        """Blobs a finished artifact shares with checkpoints; one that cannot be read stops the pruning."""
        key = keys.artifact(self._run_id)
        try:
            return frozenset(f.key for f in codec.load(ArtifactManifest, store.get(key).data, where=key).files)
        except ObjectNotFound:
            return frozenset()

    def _verify_earlier(self, store: Store, key: str, manifest: CheckpointManifest) -> None:
        if self._is_whole(store, manifest):
            self._verified.add(key)

    def _upload(self, file: Local, sending: _Once) -> StoredFile | None:
        found = examine(file.path, self._redactor)
        if found.holds_secret:
            self._note(f"{file.name} holds a secret and was left out")
            return None
        key = keys.blob(self._run_id, self._attempt, found.sha256)
        size = sending.result(key, file.path, found.size)
        if size != found.size:
            raise Unverified(f"{file.name} was stored with {size} bytes instead of {found.size}")
        return StoredFile(file.name, key, found.size, found.sha256)

    def _store_blob(self, key: str, path: Path, size: int) -> int:
        store = self._bucket.store
        blobs = self._own_blobs(store)
        if blobs.get(key) != size:
            sent = store.upload(key, path).size
            if sent != size:
                return sent
            blobs[key] = size
        return size

    def _is_whole(self, store: Store, manifest: CheckpointManifest | ArtifactManifest) -> bool:
        """Everything it names is stored with its size. What is not is forgotten, so that it is sent again."""
        listed = self._listed(store, manifest)

        def is_there(file: StoredFile) -> bool:
            if listed.get(file.key) == file.size:
                return True
            try:
                return store.head(file.key).size == file.size
            except ObjectNotFound:
                return False

        there = in_parallel(is_there, manifest.files)
        for file, fits in zip(manifest.files, there, strict=True):
            if not fits:
                self._own_blobs(store).pop(file.key, None)
        return all(there)

    def _listed(self, store: Store, manifest: CheckpointManifest | ArtifactManifest) -> Mapping[str, int]:
        """What one listing proves to be there. What it does not show is asked for by name: a listing may lag."""
        if len(manifest.files) < _LISTED_FROM:
            return {}
        return {o.key: o.size for o in store.scan(keys.blobs(self._run_id, self._attempt))}

    def _own_blobs(self, store: Store) -> dict[str, int]:
        """What this attempt has stored already, also before a restart of the agent."""
        if self._stored is None:
            self._stored = {o.key: o.size for o in store.scan(keys.blobs(self._run_id, self._attempt))}
        return self._stored

    def _own_manifests(self, store: Store) -> dict[str, CheckpointManifest]:
        if self._manifests is None:
            listed = checkpoints.found(store.scan(keys.checkpoints(self._run_id)))
            read: Mapping[str, CheckpointManifest | None] = {
                c.key: self._earlier(store, c.key) for c in listed if c.attempt == self._attempt
            }
            self._manifests = {key: manifest for key, manifest in read.items() if manifest is not None}
        return self._manifests

    def _earlier(self, store: Store, key: str) -> CheckpointManifest | None:
        try:
            return codec.load(CheckpointManifest, store.get(key).data, where=key)
        except (RecordCorrupt, ObjectNotFound):
            return None


class _Once:
    """Files with the same bytes are sent once, whichever thread comes first; the others wait for its result."""

    def __init__(self, send: Callable[[str, Path, int], int]) -> None:
        self._send = send
        self._lock = Lock()
        self._results: dict[str, Future[int]] = {}

    def result(self, key: str, path: Path, size: int) -> int:
        with self._lock:
            earlier = self._results.get(key)
            own = self._results.setdefault(key, Future())
        if earlier is not None:
            return earlier.result()
        try:
            own.set_result(self._send(key, path, size))
        except BaseException as e:
            own.set_exception(e)
            raise
        return own.result()
