"""The end of an attempt, in the order that loses nothing: weights, artifact, logs, exit record, then the instance."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from orchestrator import codec, keys
from orchestrator.agent import artifact, snapshots
from orchestrator.agent.bucket import Bucket, GivenUp, Superseded
from orchestrator.agent.ending import Ending
from orchestrator.agent.heartbeat import Pulse, Status, seconds_left
from orchestrator.agent.home import Home, read_json, write_json
from orchestrator.agent.logs import Logs
from orchestrator.agent.publishing import Publishing
from orchestrator.agent.redact import Redactor
from orchestrator.agent.sync import Sync
from orchestrator.clock import Clock
from orchestrator.errors import AlreadyExists, StorageError
from orchestrator.handover import JobSpec
from orchestrator.types import ExitRecord, Outcome

_log = logging.getLogger("tune.agent")

T = TypeVar("T")

_BACKOFF_MAX_S = 60.0
_RECORD_GRACE_S = 600.0  # for an exit record alone, with no weights at stake, an instance is not kept longer
_TAIL_LINES = 50


def remember(home: Home, ending: Ending) -> Ending:
    """From here on a restarted agent finishes, and does not train."""
    write_json(
        home.ending,
        {
            "outcome": ending.outcome.value,
            "code": ending.code,
            "reason": ending.reason,
            "publish_artifact": ending.publish_artifact,
        },
    )
    return ending


def remembered(home: Home) -> Ending | None:
    """How the attempt ends, if that was decided before the agent was restarted."""
    said = read_json(home.ending)
    try:
        return Ending(Outcome(said["outcome"]), int(said["code"]), str(said["reason"]), bool(said["publish_artifact"]))
    except (KeyError, ValueError):
        return None


class Finish:
    """Stores what is left to store, and says how it ended."""

    def __init__(
        self,
        bucket: Bucket,
        publishing: Publishing,
        home: Home,
        status: Status,
        *,
        sync: Sync,
        pulse: Pulse,
        logs: Logs,
        redactor: Redactor,
        clock: Clock,
    ) -> None:
        self._bucket = bucket
        self._publishing = publishing
        self._home = home
        self._status = status
        self._sync = sync
        self._pulse = pulse
        self._logs = logs
        self._redactor = redactor
        self._clock = clock

    def run(self, ending: Ending, spec: JobSpec | None) -> Ending:
        """Returns how it ended in the end. Raises Superseded when somebody else has taken over meanwhile."""
        remember(self._home, ending)
        self._sync.close()
        if ending.outcome is Outcome.DIVERGED:
            self._sync.drop_suspect()
        ending = remember(self._home, self._store_weights(ending, spec))
        self._logs.close()
        self._logs.ship()
        self._record(ending)
        self._status.stage = "ended"
        self._pulse.close()
        self._pulse.beat()
        return ending

    def _store_weights(self, ending: Ending, spec: JobSpec | None) -> Ending:
        self._say("uploading")
        until = self._clock.monotonic() + self._grace_s()
        try:
            if snapshots.pending(self._home):
                self._insist(self._sync.publish_pending, until=until)
            if ending.publish_artifact and spec is not None:
                self._say("finishing")
                return self._insist(lambda: self._publish_artifact(ending, spec), until=until)
        except artifact.Invalid as e:
            self._status.note(f"the result is not published: {e}")
            return Ending(Outcome.USER_ERROR, 1, f"the training ended, but its result is unusable: {e}")
        except GivenUp as e:
            lost = f"not everything could be stored in time, last error: {e}"
            if not ending.publish_artifact:
                lost = f"{ending.reason}; {lost}"
            return Ending(Outcome.LOST_UPLOAD, 1, lost)
        return ending

    def _publish_artifact(self, ending: Ending, spec: JobSpec) -> Ending:
        winner = artifact.publish(
            self._bucket,
            self._publishing,
            self._home,
            spec,
            redactor=self._redactor,
            setting=self._status.setting,
            made_at=self._clock.now(),
        )
        if winner.attempt != self._bucket.config.attempt:
            return replace(ending, reason=f"attempt {winner.attempt} had stored the artifact before")
        return ending

    def _insist(self, doing: Callable[[], T], *, until: float) -> T:
        """Again and again, with the files safe on this disk, for as long as the instance may be kept."""
        wait, said = 0.2, False
        while True:
            try:
                return doing()
            except StorageError as e:
                error = e
            left = until - self._clock.monotonic()
            if self._pulse.orders.superseded:
                raise Superseded
            if left <= 0:
                raise GivenUp(str(error)) from error
            if not said:  # once: each error text may carry another request id
                self._status.note(f"storing the result is blocked, trying on: {error}")
                said = True
            self._say("upload_blocked")
            self._clock.sleep(min(wait, left, _BACKOFF_MAX_S))
            wait *= 2

    def _record(self, ending: Ending) -> None:
        progress, restored = self._status.progress, self._status.restored
        reached = progress.step if progress else 0
        record = ExitRecord(
            attempt=self._bucket.config.attempt,
            code=ending.code,
            outcome=ending.outcome,
            reason=self._redactor.text(ending.reason),
            step=max(reached, restored.step if restored else 0),
            max_steps=progress.max_steps if progress else 0,
            tail=tuple(self._logs.tail(_TAIL_LINES)),
        )
        where = keys.exit_record(self._bucket.config.run_id, self._bucket.config.attempt)
        data = codec.dump(record)
        grace = self._grace_s() if ending.publish_artifact else min(self._grace_s(), _RECORD_GRACE_S)
        try:
            self._insist(lambda: self._put_record(where, data), until=self._clock.monotonic() + grace)
        except GivenUp as e:
            _log.warning("exit record not stored: %s", e)

    def _put_record(self, where: str, data: bytes) -> None:
        self._publishing.require_command()
        try:
            self._bucket.store.put_new(where, data)
        except AlreadyExists:
            _log.info("the exit record is stored already")

    def _grace_s(self) -> float:
        """How long the instance may be kept for an upload: the hard deadline ends it in any case."""
        left = seconds_left(self._home)
        grace = self._bucket.config.upload_grace_s
        return grace if left is None else max(0.0, min(grace, left - 1.0))

    def _say(self, stage: str) -> None:
        if self._status.stage != stage:
            self._status.stage = stage
            self._pulse.poke()
