"""The callback that makes a Hugging Face Trainer savable, stoppable and visible.

Runs on the instance beside the training script, in the trainer's environment. Works with transformers' Trainer and
everything built on it. A save happens only between two optimizer steps: that is what lets a resumed training repeat an
uninterrupted one bit by bit.
"""

# ruff: noqa: ARG002 - transformers calls these methods with all it has
from __future__ import annotations

import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from tune_events import Events, Snapshots, Stop

STATE_FILE = "tune_state.json"  # beside the Trainer's own files in a snapshot
SUSPICIOUS_RISE = 1.5  # first loss after a resume against the last before it: more looks like a fresh start


class LeaveEvaluation(Exception):
    """An evaluation is cut short because the process has to go."""


class TuneCallback(TrainerCallback):
    """Saves by time, by wish and at the end; publishes each checkpoint; reports every step."""

    def __init__(
        self,
        events: Events,
        snapshots: Snapshots,
        stop: Stop,
        *,
        control_dir: str,
        checkpoint_every_s: float,
        save_steps: int | None,
        identity: dict[str, Any],
        start: dict[str, Any],
        before_s: float,
        resumed_loss: float | None,
    ) -> None:
        self._events = events
        self._snapshots = snapshots
        self._stop = stop
        self._wish = Path(control_dir) / "save"
        self._every_s = checkpoint_every_s
        self._save_steps = save_steps
        self._identity = identity  # what a resume must find unchanged
        self._start = start
        self._before_s = before_s  # trained by earlier processes
        self._resumed_loss = resumed_loss
        self._began = self._saved_at = time.monotonic()
        self._last_loss: float | None = None

    @property
    def train_s(self) -> float:
        """Seconds spent training so far, all processes together."""
        return self._before_s + time.monotonic() - self._began

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._began = self._saved_at = time.monotonic()
        self._events.emit("start", max_steps=state.max_steps, step=state.global_step, **self._start)
        self._events.emit("phase", name="training")
        self._stop.training_begins()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._events.emit("step", step=state.global_step)
        if time.monotonic() - self._saved_at >= self._every_s or self._wished():
            control.should_save = True
        if self._save_steps and state.global_step % self._save_steps == 0:
            control.should_save = True
        if self._stop.wanted:
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._stop.wanted:
            raise LeaveEvaluation

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        logs = logs or {}
        if "eval_loss" in logs:
            self._events.emit("eval", step=state.global_step, loss=logs["eval_loss"])
        if "loss" not in logs:
            return
        self._last_loss = float(logs["loss"])
        self._events.emit(
            "log",
            step=state.global_step,
            loss=self._last_loss,
            grad_norm=_number(logs.get("grad_norm")),
            learning_rate=_number(logs.get("learning_rate")),
            tokens=state.num_input_tokens_seen,
        )
        self._compare_with_before()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        source = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        said = {
            "max_steps": state.max_steps,
            "world_size": args.world_size,
            "loss": self._last_loss if self._last_loss is None or math.isfinite(self._last_loss) else None,
            "versions": self._start["versions"],
            "metrics": {"train_s": round(self.train_s, 3), "tokens": state.num_input_tokens_seen},
        }
        memory = {**self._identity, "train_s": self.train_s, "loss": said["loss"], "step": state.global_step}
        memory["torch"] = said["versions"].get("torch")
        self._snapshots.publish(state.global_step, source, said, {STATE_FILE: json.dumps(memory, indent=1)})
        # The snapshot is the checkpoint now. Left here, it would only fill the disk: the Trainer's own rotation
        # goes by modification time and cannot be trusted with it.
        shutil.rmtree(source)
        self._saved_at = time.monotonic()
        self._events.emit("checkpoint", step=state.global_step)
        self._events.emit("phase", name="training")

    def _wished(self) -> bool:
        try:
            self._wish.unlink()
        except FileNotFoundError:
            return False
        return True

    def _compare_with_before(self) -> None:
        """Once, at the first loss after a resume: a jump means that something was not taken over."""
        before, self._resumed_loss = self._resumed_loss, None
        if before and self._last_loss and self._last_loss > SUSPICIOUS_RISE * before:
            self._events.emit(
                "note",
                text=f"the first loss after resuming is {self._last_loss:.4g}, the last one before was {before:.4g}: "
                "check that the training really went on from its checkpoint",
            )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
