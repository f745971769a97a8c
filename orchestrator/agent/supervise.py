"""The agent's main loop: one attempt from its first file to its end, whoever dies on the way."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from orchestrator import codec
from orchestrator.agent import compute, disk, finish, machine, publishing, ready, restore, snapshots, trainer, watchdog
from orchestrator.agent.bucket import Bucket, GivenUp, Superseded
from orchestrator.agent.ending import Again, AttemptEnds, Ending, Left, judge, smaller
from orchestrator.agent.fetch import fetch_job
from orchestrator.agent.heartbeat import Pulse, Status, seconds_left
from orchestrator.agent.home import Home, read_json, write_json
from orchestrator.agent.logs import Logs
from orchestrator.agent.progress import Progress
from orchestrator.agent.redact import Redactor
from orchestrator.agent.restore import Restored
from orchestrator.agent.sync import Published, Sync
from orchestrator.clock import Clock
from orchestrator.errors import CheckpointCorrupt, RecordCorrupt
from orchestrator.handover import EXIT_SAVED, AgentConfig, JobSpec
from orchestrator.storage.base import Store
from orchestrator.types import Outcome

_log = logging.getLogger("tune.agent")
_TICK_S = 1.0
_DISK_EVERY_S = 5.0
_SETUP_PATIENCE_S = 3600.0  # a bucket that is away longer than this at the start is not worth the rent
_RESTARTS_MAX = 3  # of one kind, however far each got
_TAIL_LINES = 400
# Of the time to save and leave: the request was heard up to a heartbeat late, and what was saved must still be stored.
_TRAINERS_SHARE = 0.5


class Supervisor:
    """Runs one attempt. `stop` may be set from a signal handler: save, publish, leave."""

    def __init__(
        self,
        home: Home,
        config: AgentConfig,
        *,
        redactor: Redactor,
        clock: Clock,
        open_store: Callable[[], Store],
        free: Callable[[Path], int] = machine.disk_free_bytes,
    ) -> None:
        self._home = home
        self._config = config
        self._clock = clock
        self._free = free
        self._status = Status()
        self._bucket = Bucket(config, home, redactor, clock=clock, open_store=open_store)
        self.stop = self._bucket.stopping
        note = self._status.note
        self._publishing = publishing.Publishing(self._bucket, redactor, note=note)
        self._sync = Sync(self._bucket, self._publishing, home, clock=clock, note=note)
        self._pulse = Pulse(self._bucket, home, self._status, self._sync, redactor=redactor, clock=clock)
        self._logs = Logs(self._bucket, home, redactor)
        self._finish = finish.Finish(
            self._bucket,
            self._publishing,
            home,
            self._status,
            sync=self._sync,
            pulse=self._pulse,
            logs=self._logs,
            redactor=redactor,
            clock=clock,
        )
        self._tick_s = min(_TICK_S, config.heartbeat_s / 5, config.hang_timeout_s / 5)
        self._disk_looked_at = 0.0
        self._spec: JobSpec | None = None

    def run(self) -> Ending | None:
        """How the attempt ended, once that is stored; None when somebody else is in charge of the run now."""
        self._count_start()
        self._pulse.start()
        self._logs.start()
        try:
            ending = self._attempt()
            return self._finish.run(ending, self._spec)
        except Superseded:
            _log.warning("another attempt is in charge of run %s: leaving without a word", self._config.run_id)
            trainer.end_leftovers(self._home, clock=self._clock)
            return None
        finally:
            self._sync.close(1.0)
            self._logs.close()
            self._pulse.close()

    def _attempt(self) -> Ending:
        """Decide how it ends. Afterwards nothing of a trainer is left, except after a fault of the agent's own: then
        the next agent takes the trainer over.
        """
        self._publishing.require_command()
        ending = finish.remembered(self._home)
        if ending is not None:
            self._read_spec()
            last = trainer.adopt(self._home, clock=self._clock)
            if last is not None:
                self._take(last)
        else:
            ending = self._train()
        trainer.end_leftovers(self._home, clock=self._clock)
        return ending

    def _train(self) -> Ending:
        try:
            return self._watch(self._begin())
        except AttemptEnds as e:
            return e.ending
        except CheckpointCorrupt as e:
            return Ending(Outcome.USER_ERROR, e.exit_code, e.message)
        except GivenUp as e:
            leave = self._reason_to_leave()
            return leave or Ending(Outcome.SETUP_FAILED, 1, f"the bucket did not answer: {e}")

    def _begin(self) -> trainer.Trainer:
        """The trainer that is there already, or a new one."""
        last = trainer.adopt(self._home, clock=self._clock)
        if last is not None and (last.is_alive or last.code is not None):
            _log.info("found the trainer of start %d again", last.start.number)
            self._read_spec()
            if self._spec is not None:
                self._config = ready.as_before(self._home, self._config)
                self._take(last)
                self._sync.start()
                return last
        trainer.end_leftovers(self._home, clock=self._clock)
        made = ready.make_ready(
            self._home,
            self._config,
            self._bucket,
            self._status,
            clock=self._clock,
            say=self._say,
            is_over=lambda: self._pulse.orders.superseded or self._reason_to_leave() is not None,
            free=self._free,
        )
        self._config = made.config
        self._say("fetching")
        self._use(fetch_job(self._bucket, self._home, until=self._patience()))
        compute.require_quantising(made.computes, self._spec)
        if last is not None:
            if not self._may_restart("vanished", last.start.restored_step or 0, at_most=5):
                raise AttemptEnds(Ending(Outcome.HOST_FAULT, 1, "the trainer keeps vanishing on this instance"))
            self._status.note("the trainer had vanished, as after a restart of the instance; it goes on here")
            self._take(last)
        self._sync.start()
        return self._start(self._status.setting if last is not None else None)

    def _start(self, setting: tuple[int, int] | None) -> trainer.Trainer:
        """From the newest checkpoint there is, here or in the bucket. `setting` None: as that checkpoint was made."""
        spec = self._spec
        assert spec is not None
        if self._pulse.orders.superseded:
            raise Superseded
        leave = self._reason_to_leave()
        if leave is not None:
            raise AttemptEnds(leave)
        self._say("restoring")
        own = (spec.micro_batch_size, spec.gradient_accumulation_steps)
        restored = self._newest(setting or own)
        if setting is None:
            setting = (restored.micro_batch_size, restored.gradient_accumulation_steps) if restored else own
        if setting != own:
            self._status.note(f"micro-batch {setting[0]} x accumulation {setting[1]} instead of {own[0]} x {own[1]}")
        # The snapshots of this start must never be looked at without its events: follow first, then start.
        self._sync.drop_suspect()
        self._follow(trainer.next_number(self._home), setting)
        started = trainer.launch(
            self._home,
            self._config,
            spec,
            restored,
            setting=setting,
            base_env=os.environ,
            clock=self._clock,
            note=self._status.note,
        )
        where = f"step {restored.step}" if restored else "the beginning"
        _log.info("trainer start %d, pid %d, from %s", started.start.number, started.start.pid, where)
        self._status.restored = restored
        self._say("training")
        return started

    def _newest(self, setting: tuple[int, int]) -> Restored | None:
        """A snapshot that is not stored yet counts more than what is stored: it is from this attempt, and later."""
        published = self._sync.published.step if self._sync.published else -1
        for step in reversed(snapshots.pending(self._home)):
            progress = self._status.progress
            if step <= published or (progress is not None and progress.is_suspect(step)):
                continue
            found = snapshots.examine(self._home, step, allow_optimizer_reset=self._config.allow_optimizer_reset)
            if isinstance(found, str):
                continue
            try:
                return restore.from_snapshot(self._home, step, found, batch=setting, note=self._status.note)
            except OSError as e:  # it was stored and removed just now
                _log.info("snapshot %d is gone: %s", step, e)
        spec = self._spec
        assert spec is not None
        note, until = self._status.note, self._patience()
        return restore.newest(self._bucket, self._home, spec, note=note, until=until, free=self._free)

    def _take(self, current: trainer.Trainer) -> None:
        """Follow a trainer that an earlier agent had started."""
        start = current.start
        self._follow(start.number, (start.micro_batch_size, start.gradient_accumulation_steps))
        self._status.restored = trainer.restored_of(start)
        self._say("training")

    def _follow(self, number: int, setting: tuple[int, int]) -> None:
        progress = Progress(self._home.events(number), clock=self._clock, bad_loss_logs=self._config.bad_loss_logs)
        progress.poll()
        self._status.progress, self._status.setting, self._status.trainer_starts = progress, setting, number
        self._sync.follow(progress, setting)

    def _watch(self, current: trainer.Trainer) -> Ending:
        while True:
            progress = self._status.progress
            assert progress is not None
            if self._sync.superseded.is_set() or self._pulse.orders.superseded:
                current.end()
                raise Superseded
            alive = current.is_alive  # before the events: what it said last must not be missed
            progress.poll()
            leave = self._reason_to_leave()
            if progress.has_diverged:
                current.end()
                return self._diverged(progress)
            if leave is not None and alive:
                return self._save_and_exit(current, leave)
            if not alive:
                verdict = self._judge(current, progress)
                if isinstance(verdict, Ending):
                    return verdict
                current = self._again(current, verdict, progress)
            elif watchdog.is_hung(progress, self._config.hang_timeout_s, now=self._clock.monotonic()):
                current = self._unhang(current, progress)
            elif progress.started and self._disk_is_full():
                return self._stop_for_disk(current)
            if snapshots.pending(self._home):
                self._sync.poke()
            self._logs.trim()
            self.stop.wait(self._tick_s)

    def _reason_to_leave(self) -> Ending | None:
        orders, left = self._pulse.orders, seconds_left(self._home)
        if orders.stop:
            return Ending(Outcome.CANCELLED, EXIT_SAVED, "stopped on request")
        if orders.save_and_exit:
            return Ending(Outcome.MOVED, EXIT_SAVED, "asked to save and leave")
        if self.stop.is_set():
            return Ending(Outcome.PREEMPTED, EXIT_SAVED, "the instance was told to stop")
        if left is not None and left <= self._config.save_and_exit_s:
            return Ending(Outcome.MOVED, EXIT_SAVED, "the instance's hard deadline has come")
        return None

    def _save_and_exit(self, current: trainer.Trainer, ending: Ending) -> Ending:
        self._say("saving")
        current.end(grace_s=self._config.save_and_exit_s * _TRAINERS_SHARE)
        progress = self._status.progress
        assert progress is not None
        progress.drain()
        if current.code == 0 and progress.done is not None:  # it had just come to its end by itself
            verdict = judge(Left(0, ""), progress)
            if isinstance(verdict, Ending) and verdict.code == 0:
                return verdict
        saved = "saved" if current.code == EXIT_SAVED else "not saved in time, the last checkpoint counts"
        step = max(progress.step, current.start.restored_step or 0)
        return Ending(ending.outcome, ending.code, f"{ending.reason}; at step {step}, {saved}")

    def _judge(self, current: trainer.Trainer, progress: Progress) -> Ending | Again:
        current.end()  # its workers may have outlived it
        progress.drain()
        tail = "\n".join(self._logs.tail(_TAIL_LINES, since=current.start.log_at))
        verdict = judge(Left(current.code, tail, current.was_oom_killed), progress)
        if progress.has_diverged:
            return self._diverged(progress)
        return verdict

    def _again(self, current: trainer.Trainer, verdict: Again, progress: Progress) -> trainer.Trainer:
        """Start it once more, or raise AttemptEnds where that would lead nowhere."""
        setting = (current.start.micro_batch_size, current.start.gradient_accumulation_steps)
        spec = self._spec
        assert spec is not None
        if verdict.smaller_batch:
            half = smaller(*setting)
            if half is None or setting[0] != spec.micro_batch_size:
                reason = f"{verdict.reason}; micro-batch {setting[0]} is not halved any further"
                raise AttemptEnds(Ending(Outcome.OOM, current.code or 1, reason))
            self._status.note(f"{verdict.reason}; the micro-batch is halved and the accumulation doubled")
            return self._start(half)
        if not self._may_restart("killed", progress.step):
            reason = f"{verdict.reason}, again at step {progress.step}"
            raise AttemptEnds(Ending(Outcome.HOST_FAULT, current.code or 1, reason))
        self._status.note(f"{verdict.reason} at step {progress.step}; started again from its newest checkpoint")
        return self._start(setting)

    def _unhang(self, current: trainer.Trainer, progress: Progress) -> trainer.Trainer:
        where = f"no step for {self._config.hang_timeout_s:g} s after step {progress.step} ({progress.phase})"
        _log.warning("hang: %s", where)
        at = self._home.trainer_log.stat().st_size
        current.show_stacks()
        self._logs.dump_stacks(current.start.number, at)
        current.end()
        step = max(progress.step, current.start.restored_step or 0)
        if not self._may_restart("hung", step):
            raise AttemptEnds(Ending(Outcome.HUNG, 1, f"{where}, for the second time"))
        self._status.note(f"{where}; the stacks are stored, the trainer was started again from its newest checkpoint")
        return self._start((current.start.micro_batch_size, current.start.gradient_accumulation_steps))

    def _diverged(self, progress: Progress) -> Ending:
        return Ending(
            Outcome.DIVERGED,
            1,
            f"{progress.bad_logs} losses in a row were NaN, infinite or zero; the last good one was at step "
            f"{progress.last_good_step}",
        )

    def _disk_is_full(self) -> bool:
        """Make room in time. True when there is none to be made."""
        if self._clock.monotonic() - self._disk_looked_at < min(_DISK_EVERY_S, self._tick_s * 5):
            return False
        self._disk_looked_at = self._clock.monotonic()
        restored, published = self._status.restored, self._sync.published
        # Once a later checkpoint is stored, nobody comes back for the one this start began with, but as the best one.
        needed = restored is not None and (published is None or self._sync.keep_best)
        room = disk.make_room(
            self._home,
            checkpoint_bytes=self._checkpoint_bytes(published),
            min_free_bytes=int(self._config.min_free_gb * 1e9),
            in_use=restored.folder if restored and needed else None,
            free=self._free,
        )
        if room.removed:
            self._status.note(f"the disk was getting full; removed {', '.join(room.removed)}")
        return room.is_short

    def _stop_for_disk(self, current: trainer.Trainer) -> Ending:
        free, size = self._free(self._home.root), self._checkpoint_bytes(self._sync.published)
        reason = f"the disk is nearly full: {free / 1e9:.1f} GB free; ask for more with tune.disk_gb"
        self._status.note(reason)
        if free > size:
            return self._save_and_exit(current, Ending(Outcome.USER_ERROR, 1, reason))
        current.end()
        return Ending(Outcome.USER_ERROR, 1, f"{reason}; too little to save once more, the last checkpoint counts")

    def _checkpoint_bytes(self, published: Published | None) -> int:
        if published is not None:
            return published.size
        waiting = snapshots.pending(self._home)
        if waiting:
            return snapshots.size_of(self._home.snapshots / str(waiting[-1]))
        return self._status.restored.size if self._status.restored else 0

    def _may_restart(self, kind: str, step: int, *, at_most: int = _RESTARTS_MAX) -> bool:
        """Once at any one step, and only a few times at all. Remembered on disk."""
        counters = read_json(self._home.counters)
        count, highest = int(counters.get(f"{kind}_count", 0)), int(counters.get(f"{kind}_step", -1))
        lenient = kind == "vanished"
        if count >= at_most or (count > 0 and step <= highest and not lenient):
            return False
        write_json(self._home.counters, {**counters, f"{kind}_count": count + 1, f"{kind}_step": step})
        return True

    def _count_start(self) -> None:
        counters = read_json(self._home.counters)
        starts = int(counters.get("agent_starts", 0)) + 1
        write_json(self._home.counters, {**counters, "agent_starts": starts})
        self._status.agent_starts = starts

    def _read_spec(self) -> None:
        try:
            data = (self._home.job / "trainer" / "job.json").read_bytes()
            self._use(codec.load(JobSpec, data, where="trainer/job.json"))
        except (OSError, RecordCorrupt):
            self._spec = None

    def _use(self, spec: JobSpec) -> None:
        self._spec = spec
        self._sync.keep_best = bool(spec.settings.get("load_best_model_at_end"))

    def _patience(self) -> float:
        """Until when an absent bucket is waited for, on the monotonic clock."""
        left = seconds_left(self._home)
        wait = min(_SETUP_PATIENCE_S, self._config.upload_grace_s)
        return self._clock.monotonic() + (wait if left is None else max(0.0, min(wait, left)))

    def _say(self, stage: str) -> None:
        if self._status.stage != stage:
            self._status.stage = stage
            self._pulse.poke()
