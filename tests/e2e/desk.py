"""A user's desk: a config file, a bucket in a folder, and the real command line in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator import keys
from orchestrator.clock import SystemClock
from orchestrator.providers.local import LocalProvider
from orchestrator.storage.local import LocalStore
from orchestrator.storage.runs import RunStore
from orchestrator.types import InstanceId, Run, RunId
from tests.assets.tiny import Tiny

POLL_S = 0.02
PATIENCE_S = 240


@dataclass
class Desk:
    """Everything below one folder; nothing of the caller's environment gets in but PATH."""

    root: Path
    tiny: Tiny
    children: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.config.write_text(
            f'storage = {json.dumps(self.bucket.as_uri())}\nstate_dir = {json.dumps(str(self.state))}\nprovider = "local"\n'
        )

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def bucket(self) -> Path:
        return self.root / "bucket"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root / "home"),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "LANG": "C.UTF-8",
        }

    @property
    def runs(self) -> RunStore:
        return RunStore(LocalStore(self.bucket))

    def recipe(self, *, name: str = "recipe.yaml", steps: int = 60, **changes: Any) -> Path:
        """A LoRA on the tiny Llama that takes seconds; `changes` overrides top-level keys, `tune` ones with `tune_`."""
        training: dict[str, Any] = {
            "base_model": str(self.tiny.model),
            "adapter": "lora",
            "lora_r": 8,
            "lora_alpha": 16,
            "lora_dropout": 0.05,
            "lora_target_linear": True,
            "datasets": [{"path": str(self.tiny.alpaca), "type": "alpaca"}],
            "sequence_len": 128,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "max_steps": steps,
            "learning_rate": 0.001,
            "optimizer": "adamw_torch",
            "logging_steps": 1,
            "seed": 7,
        }
        tune: dict[str, Any] = {"trainer": "trl", "provider": "local", "checkpoint_every": "2s"}
        for key, value in changes.items():
            if key.startswith("tune_"):
                tune[key.removeprefix("tune_")] = value
            else:
                training[key] = value
        path = self.root / name
        path.write_text(json.dumps({**training, "tune": tune}, indent=1))  # JSON is YAML
        return path

    def tune(self, *args: str, timeout_s: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._argv(args), env={**self.environment, **environment}, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=timeout_s, cwd="/",
        )  # fmt: skip

    def spawn(self, *args: str, **environment: str) -> subprocess.Popen[str]:
        with (self.root / f"spawned-{len(self.children)}.log").open("w") as log:
            child = subprocess.Popen(
                self._argv(args), env={**self.environment, **environment}, stdout=log, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, text=True, cwd="/", start_new_session=True,
            )  # fmt: skip
        self.children.append(child)
        return child

    def _argv(self, args: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "orchestrator", "--config", str(self.config), *args]

    def run(self, name: str) -> Run:
        return self.runs.load(self.runs.resolve(name)).run

    def cloud(self) -> LocalProvider:
        return LocalProvider(self.state)

    def instances(self) -> list[Any]:
        return list(self.cloud().find(namespace=self.runs.namespace()))

    def tune_home(self, instance_id: InstanceId) -> Path:
        return Path(self.cloud().get(instance_id).address["home"])

    def wait_for(self, what: Callable[[], Any], *, timeout_s: float = PATIENCE_S) -> Any:
        """The first true answer."""
        give_up = time.monotonic() + timeout_s
        while time.monotonic() < give_up:
            answer = what()
            if answer:
                return answer
            time.sleep(POLL_S)
        logs = "\n".join(p.read_text()[-3000:] for p in sorted(self.root.glob("spawned-*.log")))
        raise AssertionError(f"waited {timeout_s} s in vain; the commands said:\n{logs}")

    def home_of(self, name: str, attempt: int) -> Path | None:
        """The tune home of the named run's living attempt, once it exists."""
        try:
            run = self.run(name)
        except Exception:  # not launched yet
            return None
        if len(run.attempts) != attempt or run.attempt is None or run.attempt.instance_id is None:
            return None
        home = self.tune_home(run.attempt.instance_id)
        return home if home.exists() else None

    def events(self, home: Path) -> list[dict[str, Any]]:
        return [e for path in sorted((home / "work").glob("events-*.jsonl")) for e in _events(path)]

    def kill_instance(self, name: str) -> None:
        """The provider takes it: every process at once, no notice, the disk is gone."""
        current = self.run(name).attempt
        assert current and current.instance_id
        self.cloud().preempt(current.instance_id, mode="vanish")

    def checkpoints(self, run_id: RunId) -> list[str]:
        return sorted(info.key for info in self.runs.store.scan(keys.checkpoints(run_id)))

    def close(self) -> None:
        """Whatever still runs is ended, and the bill must be empty."""
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()
        for instance in self.instances():
            self.cloud().terminate(instance.instance_id)


def _events(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:  # torn by the kill
            return


CLOCK = SystemClock()
