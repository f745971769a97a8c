"""Whether a store can keep runs: every right is tried with a small object, and every promise that tune builds on.

It is asked before anything is rented. Some stores that speak S3's language answer a write that must fail with 200, and
overwrite; others drop the body, or call the same object by another version each time. None of that is seen in time by
anyone who does not look.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from orchestrator import keys
from orchestrator.errors import (
    AlreadyExists,
    ObjectNotFound,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    VersionConflict,
)
from orchestrator.storage import grants
from orchestrator.storage.base import Store
from orchestrator.storage.grants import Grant
from orchestrator.storage.s3 import S3Store
from orchestrator.storage.uri import parse

OK, MISSING, WRONG = "ok", "missing", "wrong"
_NAME = "canary-"  # no run's id begins like this
_OLD = timedelta(hours=1)  # a check is over in seconds: what is older was left by one that was killed
_FIRST, _SECOND, _THIRD = b"one", b"two, which is longer", b"three"
_STALE = "refuse stale writes"
_REFUSED = {
    _STALE: "two computers would rent twice: use a store that knows If-None-Match and If-Match (S3, R2, MinIO from "
    "2024-09 on), or write `single_writer = true` in the [storage] table, if no other computer ever works with it"
}
_FOR_AN_INSTANCE = ("addressing_style", "single_writer")  # beside the way to the bucket


@dataclass(frozen=True, slots=True)
class Right:
    """One thing that was tried. `missing`: it was refused. `wrong`: it was done, and not as promised."""

    what: str
    status: str = OK
    text: str = ""  # what has happened, with the store's own code
    hint: str = ""
    is_required: bool = True
    kind: type[StorageError] = StorageError

    @property
    def stands_in_the_way(self) -> bool:
        return self.is_required and self.status != OK


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """Keys as an instance would get them, and what they can do."""

    grant: Grant
    rights: tuple[Right, ...]


def check(store: Store, *, prefix: str = keys.RUNS, with_parts: bool = True) -> list[Right]:
    """Try everything below a folder of its own in `prefix`; nothing is left there, whatever happens.

    Raises StorageUnavailable when the store does not answer: then nothing is known.
    """
    trial = _Trial(store, f"{prefix}{_NAME}{secrets.token_hex(6)}/", with_parts=with_parts)
    try:
        return list(trial.run())
    finally:
        trial.clean(prefix)


def check_keys(
    url: str, options: Mapping[str, str], *, environment: Mapping[str, str], prefix: str = keys.RUNS
) -> KeyCheck:
    """Make keys as an instance would get them, and try them: they must do inside, and should not outside.

    Raises CredentialsMissing when none can be made.
    """
    location = parse(url)
    folder = f"{prefix}{_NAME}{secrets.token_hex(6)}/"
    grant = grants.mint(location, options, run_prefix=folder, environment=environment)
    told = {name: value for name, value in options.items() if name in _FOR_AN_INSTANCE}
    told |= S3Store(location.bucket, location.prefix, options=options).reach()
    store = S3Store(location.bucket, location.prefix, options=told, grant=grant)
    rights = [
        replace(right, what=f"an instance's key: {right.what}")
        for right in check(store, prefix=folder, with_parts=False)
    ]
    if not any(right.stands_in_the_way for right in rights):
        rights += [_absence(store, folder), _outside(store, grant, prefix)]
    return KeyCheck(grant, tuple(rights))


class _Trial:
    """One check. The order is that of growing demands; without the first nothing else can be told."""

    def __init__(self, store: Store, folder: str, *, with_parts: bool) -> None:
        self._store = store
        self._folder = folder
        self._with_parts = with_parts
        self._key = f"{folder}object"
        self._made = [self._key, f"{folder}new", f"{folder}parts", f"{folder}unfinished"]

    def run(self) -> Iterator[Right]:
        write = _tried("write", self._write)
        yield write
        if write.status != OK:
            return
        yield _tried("read", self._read)
        yield _tried("list", self._list)
        yield _tried(_STALE, lambda: self._create_only() or self._update_only())
        yield from self._parts()
        yield _optional("delete", self._delete, "old checkpoints cannot be removed, and cost storage")

    def clean(self, prefix: str) -> None:
        with suppress(StorageError):
            long_ago = self._store.now() - _OLD
            left = [info.key for info in self._store.scan(prefix + _NAME) if info.modified_at < long_ago]
            for key in left:
                self._store.delete(key)
        for key in self._made:
            with suppress(StorageError):
                self._store.delete(key)

    def _write(self) -> str:
        self._store.put(self._key, _FIRST)
        self._store.put(self._key, _SECOND)
        return ""

    def _read(self) -> str:
        got = self._store.get(self._key)
        if got.data != _SECOND:
            return f"of {len(_SECOND)} bytes that were written, {len(got.data)} are read back, and not the same"
        written = self._store.put(self._key, _SECOND)
        versions = {written.version, self._store.head(self._key).version, self._store.get(self._key).info.version}
        if len(versions) > 1 or not written.version:
            return "one object has several versions (ETags), depending on how it is asked for"
        return ""

    def _list(self) -> str:
        found = [info for info in self._store.scan(self._folder) if info.key == self._key]
        if not found:
            return "what was written is not listed"
        if found[0].size != len(_SECOND):
            return f"an object of {len(_SECOND)} bytes is listed with {found[0].size}"
        return ""

    def _create_only(self) -> str:
        self._store.put_new(f"{self._folder}new", _FIRST)
        try:
            self._store.put_new(self._key, _THIRD)
        except AlreadyExists:
            return self._unchanged("If-None-Match")
        return "it ignores conditional writes (If-None-Match), and overwrites what must only be created"

    def _update_only(self) -> str:
        stale = self._store.put(self._key, _FIRST)
        current = self._store.put_if(self._key, _SECOND, version=stale.version)
        try:
            self._store.put_if(self._key, _THIRD, version=stale.version)
        except VersionConflict:
            if self._store.head(self._key).version != current.version:
                return "it refuses a stale write, and writes all the same (If-Match)"
            return self._unchanged("If-Match")
        return "it ignores conditional writes (If-Match), and overwrites what has changed in between"

    def _unchanged(self, header: str) -> str:
        whole = self._store.get(self._key).data == _SECOND
        return "" if whole else f"it refuses a write, and writes all the same ({header})"

    def _parts(self) -> Iterator[Right]:
        if not isinstance(self._store, S3Store) or not self._with_parts:
            return
        trial = self._store.trial
        yield _tried("large files", lambda: trial.parts(f"{self._folder}parts"))
        costs = "parts of uploads that broke off stay, and cost storage"
        yield _optional("abort uploads", lambda: trial.abort(f"{self._folder}unfinished"), costs)
        yield _optional("list unfinished uploads", lambda: trial.unfinished(self._folder), costs)

    def _delete(self) -> str:
        self._store.delete(self._key)
        try:
            self._store.head(self._key)
        except ObjectNotFound:
            return ""
        return "what was deleted is still there"


def _tried(what: str, doing: Callable[[], str | None]) -> Right:
    """One step. What it says is wrong; nothing, or None, is right."""
    try:
        wrong = doing()
    except StorageUnavailable:
        raise
    except StorageError as e:
        return Right(what, MISSING, e.message, _REFUSED.get(what, e.hint), kind=type(e))
    return Right(what, WRONG, wrong, _REFUSED.get(what, "this store cannot keep runs")) if wrong else Right(what)


def _optional(what: str, doing: Callable[[], str | None], otherwise: str) -> Right:
    right = _tried(what, doing)
    return replace(right, is_required=False, hint="" if right.status == OK else otherwise)


def _absence(store: S3Store, folder: str) -> Right:
    """An agent looks for what may not be there: it must be able to tell that from a refusal."""
    what = "an instance's key: tell what is absent"
    try:
        store.get(f"{folder}nothing")
    except ObjectNotFound:
        return Right(what)
    except StorageUnavailable:
        raise
    except StorageError as e:
        hint = "the key needs s3:ListBucket, at least for the runs' prefix (condition s3:prefix)"
        return Right(what, MISSING, e.message, hint, kind=type(e))
    return Right(what, WRONG, "what was never written is read", "this store cannot keep runs")


def _outside(store: S3Store, grant: Grant, prefix: str) -> Right:
    """Temporary keys are for one run; a worker key is for all of them, and for nothing else."""
    what = "an instance's key: only what it needs"
    name = f"{_NAME}{secrets.token_hex(6)}"
    key = f"{prefix}{name}/object" if grant.session_token else name
    try:
        store.put(key, _FIRST)
    except StorageDenied:
        return Right(what)
    except StorageUnavailable:
        raise
    except StorageError:
        return Right(what)
    with suppress(StorageError):
        store.delete(key)
    reach = "other runs" if grant.session_token else "all of the bucket"
    text = f"it opens {reach}, too ({grant.how}): whoever owns a rented computer could read and change them"
    return Right(
        what, WRONG, text, "limit the key to the runs' prefix, or keep the runs in a bucket of their own", False
    )
