"""One hash for one training job, however its file is written.

It covers what changes the trained weights: every training key but those below, the trainer, extra files, environment
variables and the number of GPUs. It leaves out where and for how much the run is rented, how long anything may take,
how often it saves, and where results are sent: changing those never makes it another training job. The rows of the
data sets have a hash of their own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from orchestrator.recipe.model import TuneBlock

_REPORTING = (
    "wandb_",
    "mlflow_",
    "comet_",
    "trackio_",
    "otel_",
    "gradio_",
    "swanlab_",
    "hub_",
    "use_otel",
    "hf_mlflow_",
)
_ELSEWHERE = frozenset(
    [
        "output_dir",
        "dataset_prepared_path",
        "resume_from_checkpoint",
        "auto_resume_from_checkpoints",
        "logging_steps",
        "save_steps",
        "saves_per_epoch",
        "save_strategy",
        "save_total_limit",
        "save_first_step",
        "use_tensorboard",
        "use_wandb",
        "use_mlflow",
        "use_comet",
        "use_trackio",
        "dataset_num_proc",
        "dataloader_pin_memory",
        "push_dataset_to_hub",
        "dynamic_checkpoint",
        "profiler_steps",
        "include_tokens_per_second",
        "ray_run_name",
        "strict",
    ]
)


def counts(key: str) -> bool:
    """Whether a training key changes the weights that come out."""
    return key not in _ELSEWHERE and not key.startswith(_REPORTING)


def digest(training: Mapping[str, Any], tune: TuneBlock) -> str:
    """Hex sha256 of the canonical JSON."""
    content = {
        "format": 1,
        "training": {k: v for k, v in training.items() if counts(k)},
        "tune": {
            "trainer": tune.trainer,
            "environment": dict(tune.env),
            "files": sorted(tune.files),
            "gpu_count": tune.gpu_count or 1,  # none counts as one: the same training, only slower
        },
    }
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
