"""Runs a rendered job as the agent would: files below `job/`, a TrainerConfig, the job's own command, real signals."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator import codec
from orchestrator.handover import JobSpec, Snapshot, TrainerConfig
from orchestrator.recipe.model import DatasetRef, Recipe, TuneBlock
from orchestrator.trainers.base import RenderedJob

PATIENCE_S = 600.0
SETTINGS: Mapping[str, Any] = {
    "adapter": "lora",
    "lora_r": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "lora_target_linear": True,
    "sequence_len": 128,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "max_steps": 12,
    "learning_rate": 0.002,
    "optimizer": "adamw_torch",
    "logging_steps": 1,
    "seed": 7,
}
QLORA: Mapping[str, Any] = {
    "adapter": "qlora",
    "load_in_4bit": True,
    "lora_r": 32,  # matrices big enough for the 8-bit optimizer to quantise
    "optimizer": "paged_adamw_8bit",
}
FULL: Mapping[str, Any] = {"adapter": None, "learning_rate": 0.0005}


def recipe(folder: Path, model: Path, *data: tuple[Path, str], tune: TuneBlock | None = None, **changes: Any) -> Recipe:
    """A recipe as the loader would make it; a key set to None is left out."""
    asked = {
        key: value for key, value in {**SETTINGS, "base_model": str(model), **changes}.items() if value is not None
    }
    refs = tuple(DatasetRef(path=str(path), type=kind, index=i) for i, (path, kind) in enumerate(data))
    block = tune or TuneBlock(trainer="trl", provider="local")
    return Recipe(folder / "recipe.yaml", b"", "0" * 64, asked, block, refs)


@dataclass
class Ended:
    """How one start of the trainer went."""

    code: int
    events: list[dict[str, Any]]
    log: str

    def of(self, event: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["event"] == event]

    @property
    def losses(self) -> dict[int, Any]:
        return {e["step"]: e["loss"] for e in self.of("log")}

    @property
    def notes(self) -> str:
        return "\n".join(e["text"] for e in self.of("note"))


@dataclass
class Stage:
    """One instance's tune home, and the trainer on it."""

    home: Path
    spec: JobSpec
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @classmethod
    def of(cls, home: Path, job: RenderedJob) -> Stage:
        for name, content in job.files.items():
            path = home / "job" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                shutil.copyfile(content, path)
        (home / "work" / "control").mkdir(parents=True)
        spec = codec.load(JobSpec, (home / "job/trainer/job.json").read_bytes(), where="job.json")
        return cls(home, spec)

    @property
    def work(self) -> Path:
        return self.home / "work"

    @property
    def snapshots(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.work / "snapshots").glob("*.json"))

    def snapshot(self, step: int) -> Snapshot:
        return codec.load(Snapshot, (self.work / f"snapshots/{step}.json").read_bytes(), where="snapshot")

    @property
    def final(self) -> Snapshot:
        return codec.load(Snapshot, (self.work / "final.json").read_bytes(), where="final.json")

    def config(self, **changes: Any) -> TrainerConfig:
        made = TrainerConfig(
            settings=self.spec.settings,
            job_dir=str(self.home / "job"),
            work_dir=str(self.work),
            output_dir=str(self.work / "out"),
            snapshots_dir=str(self.work / "snapshots"),
            final_dir=str(self.work / "final"),
            control_dir=str(self.work / "control"),
            events_path=str(self.work / "events.jsonl"),
            micro_batch_size=self.spec.micro_batch_size,
            gradient_accumulation_steps=self.spec.gradient_accumulation_steps,
            checkpoint_every_s=3600.0,
        )
        return replace(made, **changes)

    def start(self, **changes: Any) -> subprocess.Popen[bytes]:
        """Start the trainer in a process group of its own, without a terminal or an input."""
        path = self.work / "trainer.json"
        path.write_bytes(codec.dump(self.config(**changes)))
        names = {"{python}": sys.executable, "{job}": str(self.home / "job"), "{work}": str(self.work)}

        def filled(text: str) -> str:
            for name, value in names.items():
                text = text.replace(name, value)
            return text

        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "LANG": "C",
            **{name: filled(value) for name, value in self.spec.env.items()},
        }
        with (self.work / "trainer.log").open("ab") as log:
            child = subprocess.Popen(
                [*map(filled, self.spec.argv), str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.work,
                start_new_session=True,
            )
        self.children.append(child)
        return child

    def run(self, **changes: Any) -> Ended:
        """Start it and wait for its end."""
        before = len(self.events())
        return self.ended(self.start(**changes), before)

    def ended(self, child: subprocess.Popen[bytes], before: int = 0) -> Ended:
        """Wait for the end."""
        code = child.wait(PATIENCE_S)
        return Ended(code, self.events()[before:], self.log())

    def killed_at(self, step: int, **changes: Any) -> Ended:
        """Start it and take it down, without a warning, as soon as it reports `step`."""
        before = len(self.events())
        child = self.start(**changes)
        self.wait_for(child, lambda events: any(e["event"] == "step" and e["step"] >= step for e in events), before)
        os.killpg(child.pid, signal.SIGKILL)
        return self.ended(child, before)

    def wait_for(
        self, child: subprocess.Popen[bytes], seen: Callable[[list[dict[str, Any]]], bool], before: int = 0
    ) -> None:
        """Until the events of this start are as wished; an early end is a failure."""
        end = time.monotonic() + PATIENCE_S
        while not seen(self.events()[before:]):
            assert child.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)

    def wish_for_save(self) -> None:
        (self.work / "control/save").touch()

    def events(self) -> list[dict[str, Any]]:
        try:
            lines = (self.work / "events.jsonl").read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines[:-1]]

    def log(self) -> str:
        path = self.work / "trainer.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def close(self) -> None:
        for child in self.children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def tensors(folder: Path) -> dict[str, str]:
    """Each tensor's name, and a hash of its bytes, type and shape."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            digest = hashlib.sha256(repr((entry["dtype"], entry["shape"])).encode() + data[start:end])
            found[name] = digest.hexdigest()
    return found
