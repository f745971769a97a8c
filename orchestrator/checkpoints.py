"""Which checkpoint to continue from, and which may go. Pure: it is told what the bucket lists, and says what to do.

Two programs use it: the agent for the checkpoints of its own attempt, the orchestrator for those of ended attempts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from orchestrator import keys
from orchestrator.types import CheckpointManifest, Run


class Listed(Protocol):
    """One checkpoint manifest as a listing shows it: where it lies and when the store received it."""

    @property
    def key(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def modified_at(self) -> datetime: ...


class _Object(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def modified_at(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint manifest found in a listing."""

    key: str
    step: int
    attempt: int
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class Ignored:
    """A checkpoint that must not be used, and why."""

    checkpoint: Listed
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Checkpoints in the order to try them, and those left out."""

    order: tuple[Listed, ...]
    ignored: tuple[Ignored, ...] = ()


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What may be deleted: every manifest first, then every blob, each in this order."""

    manifests: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()


def rank(checkpoint: Listed) -> tuple[int, int]:
    """A later attempt counts more than a higher step: it knew of the earlier ones and went on from what verified."""
    return (checkpoint.attempt, checkpoint.step)


def found(objects: Iterable[_Object]) -> list[Found]:
    """The checkpoint manifests among listed objects; foreign names are passed over."""
    result = []
    for item in objects:
        parsed = keys.parse_checkpoint(item.key.rpartition("/")[2])
        if parsed is not None:
            result.append(Found(item.key, parsed[0], parsed[1], item.modified_at))
    return result


def intents(run: Run) -> dict[int, datetime]:
    """When each attempt was decided upon."""
    return {attempt.number: attempt.intended_at for attempt in run.attempts}


def candidates(listed: Iterable[Listed], *, intents: Mapping[int, datetime]) -> Choice:
    """Newest first, compared as numbers.

    A manifest that the store received after a later attempt had been decided upon comes from an instance that was
    already given up, and woke: what it wrote is not a state that anybody went on from.
    """
    order: list[Listed] = []
    ignored: list[Ignored] = []
    for checkpoint in sorted(listed, key=rank, reverse=True):
        later = [n for n, at in intents.items() if n > checkpoint.attempt and at < checkpoint.modified_at]
        if later:
            ignored.append(
                Ignored(checkpoint, f"written by attempt {checkpoint.attempt} after attempt {min(later)} took over")
            )
        else:
            order.append(checkpoint)
    return Choice(tuple(order), tuple(ignored))


def prune_plan(
    choice: Choice,
    *,
    manifests: Mapping[str, CheckpointManifest],
    verified: Collection[str],
    blobs: Iterable[str],
    keep: int,
    best: str | None = None,
    also_named: Collection[str] = (),
    owned_attempts: Collection[int],
    unnamed_may_go: bool = True,
) -> PrunePlan:
    """What may be deleted of `owned_attempts` while the newest `keep` verified checkpoints stay.

    `manifests` holds the readable ones by key; `verified` are the keys whose every object is known to be stored;
    `blobs` are the stored blob keys of the owned attempts; `also_named` are those something else needs (the artifact).
    Nothing goes while nothing is verified. An unreadable manifest that stays protects all blobs of its attempt, because
    nobody knows which of them it names. `unnamed_may_go` covers blobs that no manifest ever named: what an upload left
    that was cut short; say False while an upload may be under way.
    """
    good = [c for c in choice.order if c.key in verified]
    if not good:
        return PrunePlan()
    kept = {c.key for c in good[: max(1, keep)]}
    if best is not None and best in manifests:
        kept.add(best)
    newest = rank(good[0])
    # Above the newest verified one nothing goes: it may be complete and only not yet looked at.
    kept |= {c.key for c in choice.order if rank(c) > newest}
    everything = [*choice.order, *(i.checkpoint for i in choice.ignored)]
    going = [c for c in everything if c.key not in kept and c.attempt in owned_attempts]
    staying = [c for c in everything if c not in going]
    return PrunePlan(
        manifests=tuple(c.key for c in sorted(going, key=rank)),
        blobs=_free_blobs(
            blobs,
            going,
            staying,
            manifests=manifests,
            also_named=also_named,
            owned_attempts=owned_attempts,
            unnamed_may_go=unnamed_may_go,
        ),
    )


def _free_blobs(
    blobs: Iterable[str],
    going: Sequence[Listed],
    staying: Sequence[Listed],
    *,
    manifests: Mapping[str, CheckpointManifest],
    also_named: Collection[str],
    owned_attempts: Collection[int],
    unnamed_may_go: bool,
) -> tuple[str, ...]:
    needed = set(also_named)
    opaque_attempts = {c.attempt for c in staying if c.key not in manifests}
    for checkpoint in staying:
        if checkpoint.key in manifests:
            needed |= {f.key for f in manifests[checkpoint.key].files}
    released = {f.key for c in going if c.key in manifests for f in manifests[c.key].files}
    free = []
    for key in sorted(set(blobs)):
        attempt = _attempt_of(key)
        if key in needed or attempt not in owned_attempts or attempt in opaque_attempts:
            continue
        if unnamed_may_go or key in released:
            free.append(key)
    return tuple(free)


def _attempt_of(blob_key: str) -> int:
    """The attempt in `runs/<id>/a<k>/blobs/<sha256>`; 0, which no attempt has, for anything else."""
    parts = blob_key.split("/")
    if len(parts) < 3 or parts[-2] != "blobs" or not parts[-3].startswith("a"):
        return 0
    digits = parts[-3][1:]
    return int(digits) if digits.isascii() and digits.isdigit() else 0
