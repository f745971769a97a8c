"""Publishes checkpoints while the trainer goes on: its own thread, which never makes the trainer wait."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from orchestrator.agent import inspection, snapshots
from orchestrator.agent.bucket import Bucket, Superseded
from orchestrator.agent.home import Home
from orchestrator.agent.progress import Progress
from orchestrator.agent.publishing import Local, Note, Publishing
from orchestrator.clock import Clock
from orchestrator.errors import StorageDenied, StorageError
from orchestrator.handover import Snapshot
from orchestrator.types import CheckpointManifest

_BACKOFF_MAX_S = 60.0


@dataclass(frozen=True, slots=True)
class Published:
    """The newest checkpoint this attempt has stored and verified."""

    step: int
    at: float  # monotonic
    size: int


class Sync(threading.Thread):
    """From `snapshots/` to the bucket. `drain` ends it once nothing is left to store, or gives up at a given time."""

    def __init__(self, bucket: Bucket, publishing: Publishing, home: Home, *, clock: Clock, note: Note) -> None:
        super().__init__(name="sync", daemon=True)
        self._bucket = bucket
        self._publishing = publishing
        self._home = home
        self._clock = clock
        self._note = note
        self.keep_best = False
        self._wake = threading.Event()
        self._finish = threading.Event()
        self._busy = threading.Lock()
        self._progress: Progress | None = None
        self._setting = (0, 0)
        self.published: Published | None = None
        self.superseded = threading.Event()
        self.blocked = ""  # the last storage error while something waits to be stored
        self.uploading = False

    def follow(self, progress: Progress | None, setting: tuple[int, int]) -> None:
        """Which trainer start the snapshots come from now, and with which batch."""
        self._progress, self._setting = progress, setting

    def poke(self) -> None:
        """Look now."""
        self._wake.set()

    def run(self) -> None:
        wait = 0.5
        while not self._finish.is_set():
            try:
                self.publish_pending()
                wait = 0.5
            except Superseded:
                self.superseded.set()
                return
            except StorageError as e:
                self._say_blocked(e)
                wait = min(wait * 2, _BACKOFF_MAX_S)
            except Exception as e:  # a file that vanished under us, a full disk: the next look may fare better
                self._note(f"publishing failed: {type(e).__name__}: {e}")
                wait = min(wait * 2, _BACKOFF_MAX_S)
            self._wake.wait(wait)
            self._wake.clear()

    def close(self, timeout_s: float = 30.0) -> None:
        """No further looks; an upload under way may finish."""
        self._finish.set()
        self._wake.set()
        if self.is_alive() and threading.current_thread() is not self:
            self.join(timeout_s)

    def publish_pending(self) -> None:
        """Store the newest good snapshot; older ones have nothing to add. Raises StorageError, Superseded."""
        with self._busy:
            for step in reversed(snapshots.pending(self._home)):
                if self._progress is not None and self._progress.is_suspect(step):
                    continue  # held until the losses are sane again, or the attempt ends as diverged
                found = snapshots.examine(
                    self._home, step, allow_optimizer_reset=self._bucket.config.allow_optimizer_reset
                )
                if isinstance(found, str):
                    self._note(f"the checkpoint of step {step} is not published: {found}")
                    snapshots.remove(self._home, step)
                    continue
                self._publish(found)
                self._drop_up_to(step)
                break
            self.blocked = ""

    def drop_suspect(self) -> None:
        """What was saved since the last sane loss, while the losses were not, is worth nothing any more."""
        for step in snapshots.pending(self._home):
            if self._progress is not None and self._progress.is_suspect(step):
                snapshots.remove(self._home, step)

    def _publish(self, snapshot: Snapshot) -> None:
        config = self._bucket.config
        folder = self._home.snapshots / str(snapshot.step)
        self.uploading = True
        try:
            self._publishing.require_command()
            files = self._publishing.upload(Local(name, folder / name) for name in sorted(snapshot.files))
            self._publishing.publish_checkpoint(
                CheckpointManifest(
                    run_id=config.run_id,
                    step=snapshot.step,
                    max_steps=snapshot.max_steps,
                    attempt=config.attempt,
                    created_at=self._clock.now(),
                    files=files,
                    recipe_sha256=config.recipe_sha256,
                    data_sha256=config.data_sha256,
                    micro_batch_size=self._setting[0],
                    gradient_accumulation_steps=self._setting[1],
                    world_size=snapshot.world_size,
                    loss=snapshot.loss,
                    versions=dict(snapshot.versions),
                )
            )
            self.published = Published(snapshot.step, self._clock.monotonic(), sum(snapshot.files.values()))
            best = inspection.best_step(folder) if self.keep_best else None
            self._publishing.prune(keep=config.keep_checkpoints, best=best)
        finally:
            self.uploading = False

    def _drop_up_to(self, step: int) -> None:
        for older in snapshots.pending(self._home):
            if older <= step:
                snapshots.remove(self._home, older)

    def _say_blocked(self, error: StorageError) -> None:
        if not self.blocked:
            kind = "is refused by" if isinstance(error, StorageDenied) else "does not reach"
            self._note(f"the checkpoint {kind} the bucket, trying on: {error}")
        self.blocked = str(error)
        # The disk must not fill while the bucket is away: only the newest is worth keeping, and the newest sane one.
        waiting = snapshots.pending(self._home)
        sane = [step for step in waiting if self._progress is None or not self._progress.is_suspect(step)]
        for step in set(waiting) - {*waiting[-1:], *sane[-1:]}:
            snapshots.remove(self._home, step)
