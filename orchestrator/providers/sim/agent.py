"""The simulated agent: it keeps the real one's contract with the bucket, and trains nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cached_property
from typing import Protocol

from orchestrator import codec, keys
from orchestrator.errors import AlreadyExists, ObjectNotFound
from orchestrator.handover import EXIT_SAVED, AgentConfig
from orchestrator.providers.sim.state import Box, Climate, Job
from orchestrator.types import (
    ArtifactManifest,
    CheckpointManifest,
    ExitRecord,
    Heartbeat,
    Outcome,
    Phase,
    StoredFile,
)


class _Fetched(Protocol):
    @property
    def data(self) -> bytes: ...


class Bucket(Protocol):
    """As much of a store as the simulated agent uses."""

    def get(self, key: str) -> _Fetched: ...
    def put(self, key: str, data: bytes) -> object: ...
    def put_new(self, key: str, data: bytes) -> object: ...
    def children(self, prefix: str) -> Iterator[str]: ...


class Agent:
    """One instance's agent at one moment. `tick` does everything that was due since the last one."""

    def __init__(self, box: Box, job: Job, climate: Climate, bucket: Bucket, now_s: float) -> None:
        self._box, self._job, self._climate, self._bucket, self._now_s = box, job, climate, bucket, now_s

    @cached_property
    def _config(self) -> AgentConfig:
        return codec.load(AgentConfig, self._box.files["agent.json"].encode(), where="agent.json")

    def tick(self, *, can_write: bool) -> None:
        """Train on, and tell the bucket when it can be reached."""
        job = self._job
        if job.ended or job.died_s is not None:
            return
        if can_write and not self._is_in_charge():
            job.ended = True
            return
        if not job.restored:
            if not can_write:
                job.now_s = self._now_s
                return
            self._restore()
        self._train()
        if can_write:
            self._publish()

    def _is_in_charge(self) -> bool:
        """Reads run.json as often as the real agent does: in between it acts on what it last knew."""
        job = self._job
        if job.restored and self._now_s - job.polled_s < self._climate.poll_s:
            return True
        job.polled_s = self._now_s
        try:
            data = self._bucket.get(keys.record(job.run_id)).data
        except ObjectNotFound:
            return False
        try:
            run = json.loads(data)  # read so often that checking it each time would be most of the simulation's work
        except ValueError:
            return True  # a torn record says nothing about who is in charge
        job.asked_to_save = run["request"] == "save_and_exit"
        newest = run["attempts"][-1]["number"] if run["attempts"] else 0
        return newest == job.attempt and not Phase(run["phase"]).is_terminal

    def _restore(self) -> None:
        job, found = self._job, []
        for name in self._bucket.children(keys.checkpoints(job.run_id)):
            parsed = keys.parse_checkpoint(name)
            if parsed:
                found.append((parsed[1], parsed[0]))
        job.step = float(max(found)[1]) if found else 0.0
        job.saved_step, job.restored, job.now_s = int(job.step), True, self._now_s

    def _train(self) -> None:
        job = self._job
        job.step = min(self._climate.total_steps, job.step + (self._now_s - job.now_s) / self._climate.step_s)
        job.now_s = self._now_s

    def _publish(self) -> None:
        job, total = self._job, self._climate.total_steps
        step = int(job.step)
        due = step - step % self._climate.checkpoint_steps
        if job.fails_with:
            return self._exit(1, Outcome(job.fails_with), "the recipe failed")
        if step >= total:
            return self._finish()
        if job.asked_to_save:
            self._checkpoint(step)
            return self._exit(EXIT_SAVED, Outcome.CANCELLED, "saved on request")
        if due > job.saved_step:
            self._checkpoint(due)
        if not job.seq or self._now_s - job.beat_s >= self._climate.heartbeat_s:
            self._beat("training")
        return None

    def _finish(self) -> None:
        job, total = self._job, self._climate.total_steps
        self._beat("finishing")
        manifest = ArtifactManifest(
            run_id=job.run_id,
            step=total,
            max_steps=total,
            attempt=job.attempt,
            created_at=self._at(),
            files=(self._blob("adapter_model.safetensors", total),),
            recipe_sha256=self._config.recipe_sha256,
            data_sha256=self._config.data_sha256,
        )
        self._put_new(keys.artifact(job.run_id), codec.dump(manifest))
        if job.dies_before_exit:
            job.ended = True
            return
        self._exit(0, Outcome.SUCCEEDED, f"step {total} of {total} reached")

    def _checkpoint(self, step: int) -> None:
        job = self._job
        if step <= job.saved_step:
            return
        manifest = CheckpointManifest(
            run_id=job.run_id,
            step=step,
            max_steps=self._climate.total_steps,
            attempt=job.attempt,
            created_at=self._at(),
            files=(self._blob("adapter_model.safetensors", step),),
            recipe_sha256=self._config.recipe_sha256,
            data_sha256=self._config.data_sha256,
            micro_batch_size=1,
            gradient_accumulation_steps=1,
        )
        self._put_new(keys.checkpoint(job.run_id, step, job.attempt), codec.dump(manifest))
        job.saved_step = step

    def _blob(self, name: str, step: int) -> StoredFile:
        job = self._job
        data = f"{job.run_id} step {step}".encode()
        sha256 = hashlib.sha256(data).hexdigest()
        key = keys.blob(job.run_id, job.attempt, sha256)
        self._bucket.put(key, data)
        return StoredFile(name, key, len(data), sha256)

    def _beat(self, stage: str) -> None:
        job = self._job
        job.seq += 1
        job.beat_s = self._now_s
        beat = Heartbeat(
            attempt=job.attempt,
            seq=job.seq,
            stage=stage,
            step=int(job.step),
            max_steps=self._climate.total_steps,
            loss=round(4.0 / (1.0 + job.step / 10), 4),
            checkpoint_step=job.saved_step or None,
            can_end_itself=self._climate.ends_itself,
            ends_at_latest_s=self._box.life_s,
        )
        self._bucket.put(keys.heartbeat(job.run_id, job.attempt), codec.dump(beat))

    def _exit(self, code: int, outcome: Outcome, reason: str) -> None:
        job = self._job
        record = ExitRecord(job.attempt, code, outcome, reason, int(job.step), self._climate.total_steps)
        self._put_new(keys.exit_record(job.run_id, job.attempt), codec.dump(record))
        job.ended = True

    def _put_new(self, key: str, data: bytes) -> None:
        try:
            self._bucket.put_new(key, data)
        except AlreadyExists:
            return  # a restarted agent finds what it wrote itself; of an artifact, the first one counts

    def _at(self) -> datetime:
        return datetime.fromtimestamp(self._now_s, UTC)


def job_of(box: Box, now_s: float) -> Job | None:
    """What the start command does once `agent.sh` is in place."""
    if "agent.sh" not in box.files or "agent.json" not in box.files:
        return None
    config = json.loads(box.files["agent.json"])
    return Job(config["run_id"], config["attempt"], config["storage_url"], now_s)
