"""Run records: one `run.json` per run, changed only by compare-and-set, and the small objects that find it again."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from typing import TypeVar

from orchestrator import codec, keys
from orchestrator.errors import (
    AlreadyExists,
    ObjectNotFound,
    RecordCorrupt,
    RunConflict,
    RunNotFound,
    StorageDenied,
    StorageUnavailable,
    UsageError,
    VersionConflict,
)
from orchestrator.handover import JobFiles
from orchestrator.storage.base import Store
from orchestrator.types import (
    ArtifactManifest,
    CheckpointManifest,
    ExitRecord,
    Heartbeat,
    Namespace,
    Run,
    RunId,
    is_run_id,
    new_namespace,
)

T = TypeVar("T")

_SHOWN = 10  # so many ids are listed before "and n more"


@dataclass(frozen=True, slots=True)
class NameClaim:
    """`names/<name>.json`: which run owns a name, and what it trains. Create-only."""

    name: str
    run_id: RunId
    recipe_sha256: str
    data_sha256: str
    format: int = 1


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run as it was read, with the version that a save must name."""

    run: Run
    version: str


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint's manifest as the listing shows it, unread and unverified."""

    key: str
    step: int
    attempt: int
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class _NamespaceRecord:
    namespace: Namespace
    format: int = 1


class RunStore:
    """Every run kept in one store.

    The `active/` marker of a run is there whenever its record is not terminal: it is put before the record becomes so
    and removed after the record has ceased to be. A crash in between leaves a marker too many, never one too few;
    `settle` removes it. `warnings` collects what could not be tidied up.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.warnings: list[str] = []
        self._namespace: Namespace | None = None

    def namespace(self) -> Namespace:
        """The random id of this store, made by whoever asks first."""
        if self._namespace is None:
            self._namespace = self._settled(keys.NAMESPACE, _NamespaceRecord(new_namespace())).namespace
        return self._namespace

    def claim_name(self, name: str, run_id: RunId, recipe_sha256: str, data_sha256: str) -> NameClaim:
        """Take `name` for `run_id`, or say who has it already."""
        return self._settled(_name_key(name), NameClaim(name, run_id, recipe_sha256, data_sha256))

    def create(self, run: Run) -> str:
        """Store a new run; returns its version. RunConflict when the id is taken by another record."""
        self._mark(run.run_id)
        key = keys.record(run.run_id)
        data = _stamped(run)
        try:
            return self.store.put_new(key, data).version
        except (AlreadyExists, StorageUnavailable) as e:
            version = self._version_of_own(key, data)
            if version:
                return version
            if isinstance(e, StorageUnavailable):
                raise
            raise RunConflict(f"run {run.run_id} exists already", hint=f"run `tune status {run.run_id}`") from None

    def load(self, run_id: RunId) -> Loaded:
        """The run and its version. A record that cannot be read is reported and left as it is."""
        key = keys.record(run_id)
        try:
            fetched = self.store.get(key)
        except ObjectNotFound:
            raise RunNotFound(f"there is no run {run_id} in {self.store.url}", hint="run `tune ls`") from None
        run = codec.load(Run, fetched.data, where=self._where(key))
        if run.run_id != run_id:
            raise RecordCorrupt(
                f"{self._where(key)} is the record of another run, {run.run_id}",
                hint="nothing was overwritten; put the right file back, then run the command again",
            )
        return Loaded(run, fetched.info.version)

    def save(self, run: Run, *, expect: str) -> str:
        """Replace the record read at version `expect`; returns the new version, or RunConflict when someone was faster.

        An unclear answer is settled by reading back. StorageUnavailable means that it could not be: load again.
        """
        if not run.phase.is_terminal:
            self._ensure_marked(run.run_id)
        version = self._replace(run, expect)
        if run.phase.is_terminal:
            self._unmark(run.run_id)
        return version

    def settle(self, run_id: RunId) -> bool:
        """Remove the `active/` marker that a crash left on a terminal run. True when the run is not active now."""
        if not self.load(run_id).run.phase.is_terminal:
            return False
        return self._unmark(run_id)

    def active(self) -> list[RunId]:
        """Every run that is not terminal, and perhaps a terminal one whose marker a crash left behind."""
        return [RunId(name) for name in self.store.children(keys.ACTIVE) if is_run_id(name)]

    def recent(self, limit: int) -> list[RunId]:
        """The newest runs, newest first."""
        return list(reversed(deque(self._ids(), maxlen=limit)))

    def resolve(self, text: str) -> RunId:
        """The run meant by an id, a name or the unique beginning of an id."""
        if is_run_id(text) and self._exists(keys.record(text)):
            return RunId(text)
        named = self._named(text) if text else None
        if named:
            return named
        matches = [] if not text else self._starting_with(text)
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise RunNotFound(f"{text!r} could be any of {_listed(matches)}", hint="give more letters, or the name")
        near = self._near(text)
        raise RunNotFound(
            f"there is no run {text!r} in {self.store.url}",
            hint=f"did you mean {_listed(near)}?" if near else "run `tune ls`",
        )

    def heartbeat(self, run_id: RunId, attempt: int) -> tuple[Heartbeat, datetime] | None:
        """The last heartbeat of an attempt, and when the store received it."""
        key = keys.heartbeat(run_id, attempt)
        try:
            fetched = self.store.get(key)
        except ObjectNotFound:
            return None
        return codec.load(Heartbeat, fetched.data, where=self._where(key)), fetched.info.modified_at

    def exit_record(self, run_id: RunId, attempt: int) -> ExitRecord | None:
        """How an attempt says that it ended, or None while it has not said so."""
        return self._optional(ExitRecord, keys.exit_record(run_id, attempt))

    def checkpoints(self, run_id: RunId) -> list[StoredCheckpoint]:
        """Every checkpoint with a manifest: highest attempt first, and within it the highest step first."""
        prefix = keys.checkpoints(run_id)
        found = []
        for info in self.store.scan(prefix):
            parts = keys.parse_checkpoint(info.key.removeprefix(prefix))
            if parts:
                found.append(StoredCheckpoint(info.key, parts[0], parts[1], info.modified_at))
        return sorted(found, key=lambda one: (one.attempt, one.step), reverse=True)

    def manifest(self, key: str) -> CheckpointManifest:
        """What a checkpoint consists of."""
        return codec.load(CheckpointManifest, self.store.get(key).data, where=self._where(key))

    def artifact(self, run_id: RunId) -> ArtifactManifest | None:
        """What the run left to its user, or None while there is nothing."""
        return self._optional(ArtifactManifest, keys.artifact(run_id))

    def files(self, run_id: RunId) -> JobFiles:
        """What was uploaded with the run."""
        key = keys.files_manifest(run_id)
        return codec.load(JobFiles, self.store.get(key).data, where=self._where(key))

    def _replace(self, run: Run, expect: str) -> str:
        key = keys.record(run.run_id)
        data = _stamped(run)
        try:
            return self.store.put_if(key, data, version=expect).version
        except (VersionConflict, StorageUnavailable) as e:
            version = self._version_of_own(key, data)
            if version:
                return version
            if isinstance(e, StorageUnavailable):
                raise
            raise RunConflict(
                f"run {run.run_id} was changed by someone else meanwhile", hint=f"run `tune status {run.run_id}`"
            ) from None

    def _settled(self, key: str, record: T) -> T:
        """Put `record` if absent; returns what stands there now, ours or the one that was first."""
        try:
            self.store.put_new(key, codec.dump(record))
        except (AlreadyExists, StorageUnavailable) as e:
            standing = self._optional(type(record), key)
            if standing is None:
                raise e from None
            return standing
        return record

    def _version_of_own(self, key: str, data: bytes) -> str:
        """The stored version if it holds exactly what this writer sent (the nonce makes its bytes unique), else ''."""
        try:
            fetched = self.store.get(key)
        except ObjectNotFound:
            return ""
        return fetched.info.version if fetched.data == data else ""

    def _mark(self, run_id: RunId) -> None:
        self.store.put(keys.active(run_id), b"")

    def _ensure_marked(self, run_id: RunId) -> None:
        # One head per save: far cheaper than reading the record, and the marker is nearly always there.
        if not self._exists(keys.active(run_id)):
            self._mark(run_id)

    def _unmark(self, run_id: RunId) -> bool:
        """Remove the marker of a terminal run; True unless someone re-opened the run in that very moment."""
        try:
            self.store.delete(keys.active(run_id))
        except StorageDenied as e:  # the run is over all the same; its marker costs one look per pass
            self.warnings.append(f"the marker of run {run_id} stays: {e}")
            return True
        if self.load(run_id).run.phase.is_terminal:
            return True
        self._mark(run_id)
        return False

    def _exists(self, key: str) -> bool:
        try:
            self.store.head(key)
        except ObjectNotFound:
            return False
        return True

    def _optional(self, kind: type[T], key: str) -> T | None:
        try:
            data = self.store.get(key).data
        except ObjectNotFound:
            return None
        return codec.load(kind, data, where=self._where(key))

    def _ids(self, *, after: str = "") -> Iterator[RunId]:
        for name in self.store.children(keys.RUNS, start_after=after):
            if name.endswith("/") and is_run_id(name[:-1]):
                yield RunId(name[:-1])

    def _starting_with(self, text: str) -> list[RunId]:
        matches = []
        for run_id in self._ids(after=text):
            if not run_id.startswith(text):
                break
            matches.append(run_id)
        return matches

    def _named(self, name: str) -> RunId | None:
        try:
            claim = self._optional(NameClaim, _name_key(name))
        except UsageError:
            return None
        return claim.run_id if claim else None

    def _near(self, text: str) -> list[str]:
        names = [keys.name_of(keys.NAMES + child) for child in self.store.children(keys.NAMES)]
        return get_close_matches(text, [*names, *self._ids()], n=3, cutoff=0.6)

    def _where(self, key: str) -> str:
        return f"{self.store.url.rstrip('/')}/{key}"


def _stamped(run: Run) -> bytes:
    return codec.dump(replace(run, writer=secrets.token_hex(8)))


def _name_key(name: str) -> str:
    try:
        return keys.name(name)
    except UnicodeEncodeError:
        raise UsageError(f"not a name: {name!r} holds half a character") from None


def _listed(ids: list[RunId] | list[str]) -> str:
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(ids[:_SHOWN]) + more
