"""The agent's parts in this process, on a store in memory whose every call can be watched and made to fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from orchestrator import checkpoints, codec, keys
from orchestrator.agent.bucket import Bucket
from orchestrator.agent.home import Home
from orchestrator.agent.publishing import Publishing
from orchestrator.agent.redact import Redactor
from orchestrator.agent.sync import Sync
from orchestrator.errors import ObjectNotFound
from orchestrator.handover import AgentConfig, JobSpec, Snapshot
from orchestrator.storage.memory import MemoryStore
from orchestrator.types import CheckpointManifest, Namespace, Run, RunId
from tests.agent.stage import RUN_ID, attempt
from tests.agent.stub_trainer import write_weights

SPEC = JobSpec("stub", ("x",), {"base_model": "some/base", "adapter": "lora"}, 4, 2)


class Steps:
    """A clock that moves only when somebody waits, a little with every look, so that writes have an order."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> datetime:
        self.at += 0.001
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.at)

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


class Bench:
    """One attempt's agent parts. `again` makes them new, as after a crash, on the same disk and bucket."""

    def __init__(self, under: Path, *, number: int = 1, bench: Bench | None = None, **config: Any) -> None:
        self.clock = bench.clock if bench else Steps()
        self.store = bench.store if bench else MemoryStore(self.clock)
        self.home = Home(under / f"instance-{number}")
        self.home.root.mkdir(exist_ok=True)
        self.home.prepare()
        self.config = AgentConfig(RUN_ID, number, "memory://", "r" * 64, "d" * 64, **config)
        self.notes: list[str] = []
        self.again()
        if bench is None:
            now = self.clock.now()
            run = Run(
                RunId(RUN_ID), "r", Namespace("abcdef"), now, "r" * 64, "d" * 64, "local", attempts=(attempt(1, now),)
            )
            self.store.put(keys.record(RUN_ID), codec.dump(run))

    def again(self) -> None:
        self.redactor = Redactor(())
        self.bucket = Bucket(self.config, self.home, self.redactor, clock=self.clock, open_store=lambda: self.store)
        self.publishing = Publishing(self.bucket, self.redactor, note=self.notes.append)
        self.sync = Sync(self.bucket, self.publishing, self.home, clock=self.clock, note=self.notes.append)
        self.sync.follow(None, (4, 2))

    def snapshot(self, step: int, *, best: str | None = None, forget: str = "", **more: Any) -> None:
        """What a trainer vouches for."""
        folder = self.home.snapshots / str(step)
        write_weights(folder, step)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "best_model_checkpoint": best}))
        (folder / "tokenizer.json").write_text('{"the same": "every time"}')
        if forget:
            (folder / forget).unlink()
        said = Snapshot(step, 100, {p.name: p.stat().st_size for p in folder.iterdir()}, loss=1 / step, **more)
        (self.home.snapshots / f"{step}.json").write_bytes(codec.dump(said))

    def publish(self, *steps: int, **more: Any) -> None:
        for step in steps:
            self.snapshot(step, **more)
            self.sync.publish_pending()

    def next_attempt(self) -> int:
        where = keys.record(RUN_ID)
        run = codec.load(Run, self.store.get(where).data, where=where)
        number = len(run.attempts) + 1
        run = replace(run, attempts=(*run.attempts, attempt(number, self.clock.now())))
        self.store.put(where, codec.dump(run))
        return number

    @property
    def manifests(self) -> dict[tuple[int, int], CheckpointManifest]:
        """By (attempt, step)."""
        listed = checkpoints.found(self.store.scan(keys.checkpoints(RUN_ID)))
        return {
            (c.attempt, c.step): codec.load(CheckpointManifest, self.store.get(c.key).data, where=c.key) for c in listed
        }

    def is_whole(self, manifest: CheckpointManifest) -> bool:
        try:
            datas = [(f, self.store.get(f.key).data) for f in manifest.files]
        except ObjectNotFound:
            return False
        return all(len(d) == f.size and sha256(d).hexdigest() == f.sha256 for f, d in datas)

    def key_of(self, step: int, name: str, number: int = 1) -> str:
        return next(f.key for f in self.manifests[number, step].files if f.name == name)

    def watch(self, look: Callable[[str, str], None]) -> None:
        """Call `look` before and after every call to the store, its own calls excepted."""
        busy = False

        def once(operation: str, key: str) -> None:
            nonlocal busy
            if busy:
                return
            busy = True
            try:
                look(operation, key)
            finally:
                busy = False

        self.store.fault = once
