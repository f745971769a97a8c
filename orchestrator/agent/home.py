"""The tune home: where everything lies on an instance, and how small files there are written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.handover import LAST_HEARTBEAT


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Whole or absent, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A small state file; keys sorted, so that a person can compare two of them."""
    write_atomically(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote; empty when there is nothing, or nothing readable."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class Home:
    """One instance's folder. Every path the agent uses is spelled here."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "agent.json"

    @property
    def secrets(self) -> Path:
        return self.root / "secrets.json"

    @property
    def storage_keys(self) -> Path:
        """The bucket's keys on a rented instance, renewed from outside."""
        return self.root / "storage.json"

    @property
    def deadline(self) -> Path:
        return self.root / "deadline"

    @property
    def ended(self) -> Path:
        return self.root / "ended"

    @property
    def job(self) -> Path:
        return self.root / "job"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def output(self) -> Path:
        return self.work / "out"

    @property
    def snapshots(self) -> Path:
        return self.work / "snapshots"

    @property
    def final(self) -> Path:
        return self.work / "final"

    @property
    def final_record(self) -> Path:
        return self.work / "final.json"

    @property
    def control(self) -> Path:
        return self.work / "control"

    @property
    def restored(self) -> Path:
        """Where checkpoints are downloaded to; outside `out/`, whose rotation counts whatever looks like one."""
        return self.work / "restored"

    @property
    def artifact(self) -> Path:
        """The small files the agent adds to the trainer's final ones."""
        return self.work / "artifact"

    @property
    def trainer_log(self) -> Path:
        return self.root / "log" / "trainer.log"

    @property
    def agent_log(self) -> Path:
        return self.root / "log" / "agent.log"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def lock(self) -> Path:
        return self.state / "agent.lock"

    @property
    def counters(self) -> Path:
        return self.state / "counters.json"

    @property
    def pulse(self) -> Path:
        """How often the heart has beaten; a file of its own, because another thread writes it."""
        return self.state / "pulse.json"

    @property
    def trainer(self) -> Path:
        """The last trainer start: what it was given, and who it is."""
        return self.state / "trainer.json"

    @property
    def ending(self) -> Path:
        """How the attempt ends, once that is decided: a restarted agent does not train again."""
        return self.state / "ending.json"

    @property
    def last_heartbeat(self) -> Path:
        """The newest heartbeat, also when the bucket does not take it."""
        return self.root / LAST_HEARTBEAT

    @property
    def shipped(self) -> Path:
        """How far the logs have been stored."""
        return self.state / "shipped.json"

    def events(self, start: int) -> Path:
        """One file per trainer start, so that nothing old is taken for news."""
        return self.work / f"events-{start}.jsonl"

    def exit_code(self, start: int) -> Path:
        return self.state / f"exit-{start}"

    def trainer_config(self, start: int) -> Path:
        return self.work / f"trainer-{start}.json"

    def prepare(self) -> None:
        """Make the folders the agent writes to."""
        for folder in (self.work, self.snapshots, self.control, self.state, self.agent_log.parent):
            folder.mkdir(parents=True, exist_ok=True)
