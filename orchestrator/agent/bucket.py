"""The agent's way to storage: keys that can be renewed, answers that may take long, and who is in charge."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from orchestrator import codec, keys
from orchestrator.agent.home import Home
from orchestrator.agent.redact import Redactor
from orchestrator.clock import Clock
from orchestrator.errors import (
    AlreadyExists,
    ObjectNotFound,
    RecordCorrupt,
    StorageError,
    VersionConflict,
)
from orchestrator.handover import AgentConfig
from orchestrator.storage.base import Store
from orchestrator.types import Run

T = TypeVar("T")

_BACKOFF_MAX_S = 60.0


class Superseded(Exception):
    """Another attempt, or nobody, is in charge of the run now: write nothing more."""


class GivenUp(Exception):
    """Storage did not answer before the time was up; carries the last error."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What `run.json` asks of this attempt."""

    superseded: bool = False
    save_and_exit: bool = False
    stop: bool = False  # the user's stop, as opposed to a move


class Bucket:
    """One attempt's storage. Thread-safe, like the store behind it."""

    def __init__(
        self, config: AgentConfig, home: Home, redactor: Redactor, *, clock: Clock, open_store: Callable[[], Store]
    ) -> None:
        self.config = config
        self._home = home
        self._redactor = redactor
        self._clock = clock
        self._open = open_store
        self.stopping = threading.Event()  # set when the instance has to go: waiting for storage ends then
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The store, opened again when `secrets.json` was renewed."""
        with self._lock:
            stamp = _stamp(self._home)
            if self._store is None or (stamp is not None and stamp != self._stamp):
                load_secrets(self._home, self._redactor)
                self._store = self._open()
                self._stamp = stamp
            return self._store

    def patiently(self, doing: Callable[[Store], T], *, until: float) -> T:
        """Try again, more and more slowly, until `until` (monotonic). Answers are passed on at once, errors are not.

        A refusal is waited out too: keys on an instance expire, and are renewed from outside.
        """
        wait = 0.2
        while True:
            try:
                return doing(self.store)
            except (ObjectNotFound, AlreadyExists, VersionConflict, RecordCorrupt):
                raise
            except StorageError as e:
                left = until - self._clock.monotonic()
                if left <= 0 or self.stopping.is_set():
                    raise GivenUp(str(e)) from e
                pause = min(wait, left, _BACKOFF_MAX_S)
            wait *= 2
            self.stopping.wait(pause)

    def run(self) -> Run | None:
        """The run as it is now; None when it cannot be read, which proves nothing."""
        try:
            where = keys.record(self.config.run_id)
            return codec.load(Run, self.store.get(where).data, where=where)
        except StorageError:
            return None

    def orders(self) -> Orders:
        """What is asked of this attempt now. Unreadable means: carry on."""
        run = self.run()
        return Orders() if run is None else orders_of(run, self.config.attempt)


def orders_of(run: Run, attempt: int) -> Orders:
    """A later attempt, or the belief that this one is over, ends it."""
    current = run.attempt
    later = current is not None and current.number > attempt
    proved_gone = current is not None and current.number == attempt and current.ended_at is not None
    stop = run.stop_requested_at is not None
    return Orders(
        superseded=later or proved_gone or run.phase.is_terminal,
        save_and_exit=stop or run.request == "save_and_exit",
        stop=stop,
    )


def load_secrets(home: Home, redactor: Redactor) -> None:
    """`secrets.json` into the environment; from then on nothing shows them."""
    try:
        values = json.loads(home.secrets.read_bytes())
    except (OSError, ValueError):
        return
    if isinstance(values, dict):
        secrets = {str(name): str(value) for name, value in values.items()}
        redactor.add(secrets.values())
        os.environ.update(secrets)


def _stamp(home: Home) -> tuple[int, int] | None:
    try:
        status = home.secrets.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
