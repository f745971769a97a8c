"""TRL's SFTTrainer with an order of data that can be repeated, and resumes that are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tune_model
from trl import SFTTrainer
from tune_callback import LeaveEvaluation
from tune_data import EpochSampler
from tune_events import Events


class TuneTrainer(SFTTrainer):
    """Checks what it resumes from, and can leave an evaluation."""

    attention_used = ""

    def set_up(self, events: Events, *, lengths: list[int] | None) -> None:
        """What SFTTrainer's own constructor has no room for."""
        self._events = events
        self._lengths = lengths

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler:
        count = len(self.train_dataset if train_dataset is None else train_dataset)
        batch = self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps
        return EpochSampler(count, seed=self.args.seed, lengths=self._lengths, batch=batch)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder = Path(resume_from_checkpoint)
        tune_model.require_same_shapes(folder, self.model)
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        tune_model.require_loaded(folder, self.model)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._events.emit("phase", name="saving")
        super()._save_checkpoint(model, trial)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate; cut short when the process is asked to go, which then saves and stops."""
        self._events.emit("phase", name="evaluating")
        try:
            return super().evaluate(*args, **kwargs)
        except LeaveEvaluation:
            self.control.should_save = self.control.should_training_stop = True
            return {}
        finally:
            self._events.emit("phase", name="training")
