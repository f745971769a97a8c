"""What an orchestrator hands to an instance, and what the agent and the trainer say to each other.

On the instance everything lies under one folder, the tune home (`TUNE_HOME`):

    agent.json        AgentConfig; mode 0600
    secrets.json      name -> value, added to the agent's and trainer's environment; mode 0600; removed at the end
    agent.sh          starts the agent; put there last, its presence is what the start command waits for
    deadline          epoch seconds, written once at first boot by the start command: restarts keep the original
    ended             the agent is done; the start command stops restarting it and ends the instance
    job/              the run's files as the bucket has them (recipe.yaml, data/..., trainer/...)
    work/             the trainer's own: TrainerConfig, events, control, out/, snapshots/, final/
    log/              agent.log, trainer.log
    state/            what a restarted agent needs to adopt a living trainer

The trainer is any program that keeps to this:

* argv comes from `JobSpec.argv`; the last argument is the path of a TrainerConfig in JSON.
* It appends one JSON object per line to `events_path`, each with `event` and `at` (epoch seconds):
    start       max_steps, versions, tokens_per_step (null if unknown)
    phase       name: loading | training | evaluating | saving | finishing
    step        step                                          after every optimizer step
    log         step, loss, grad_norm, learning_rate, tokens  NaN and infinity as the strings "nan", "inf", "-inf"
    checkpoint  step                                          snapshots/<step>.json is in place
    note        text                                          something worth a user's eye
    oom         text                                          before leaving with EXIT_OOM
    done        step, max_steps                               final/ and final.json are in place
* A checkpoint is a hard-linked copy in `snapshots/<step>/`, complete before `snapshots/<step>.json` (a Snapshot) is
  renamed into place. The same for `final/` and `final.json`. Nothing else in the work folder is trusted.
* It saves when `checkpoint_every_s` of monotonic time have passed, when `control/save` appears (and removes it), and at
  the end. SIGTERM means: save after the current step and leave with EXIT_SAVED. SIGUSR1: write every thread's stack
  to stderr.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

LAST_HEARTBEAT = "state/heartbeat.json"  # written at every beat, also while the bucket does not take it
EXIT_SAVED = 75  # stopped on request, checkpoint in place (EX_TEMPFAIL)
EXIT_OOM = 76  # ran out of GPU or host memory; nothing was saved on the way out


@dataclass(frozen=True, slots=True)
class Expected:
    """What was paid for. An instance that has less is given back."""

    gpu_count: int = 0  # 0: GPUs are not looked at
    gpu_name: str = ""
    vram_gib: float = 0.0  # per GPU
    min_cuda: float = 0.0
    disk_gb: float = 0.0


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """`agent.json`: all the agent knows of the world."""

    run_id: str
    attempt: int
    storage_url: str
    recipe_sha256: str
    data_sha256: str
    storage_options: Mapping[str, str] = field(default_factory=dict)  # endpoint_url, region; never a key
    trainer_python: str = ""  # empty: the interpreter that runs the agent
    heartbeat_s: float = 30.0
    log_every_s: float = 60.0
    checkpoint_every_s: float = 1200.0
    hang_timeout_s: float = 1800.0
    keep_checkpoints: int = 2
    save_and_exit_s: float = 90.0
    upload_grace_s: float = 86_400.0
    allow_optimizer_reset: bool = False
    bad_loss_logs: int = 3  # so many NaN, infinite or zero losses in a row are a divergence
    min_free_gb: float = 0.0  # stop below so much free disk, whatever the last checkpoint's size makes of it
    environment: str = ""  # whose interpreter trains: auto | image | pinned | a path; empty: `trainer_python`
    stack: str = ""  # the pinned versions, by the name of their file below stacks/
    expect: Expected | None = None  # None: the instance is taken as it is
    format: int = 1


@dataclass(frozen=True, slots=True)
class JobFile:
    """One file of the run, under `files/` in the bucket and under `job/` on the instance."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class JobFiles:
    """`files.json`: what `tune launch` uploaded; written after the files themselves."""

    files: tuple[JobFile, ...]
    format: int = 1


@dataclass(frozen=True, slots=True)
class JobSpec:
    """`trainer/job.json` among the run's files: how to start the trainer.

    `{python}`, `{job}` and `{work}` in `argv` and `env` values stand for the trainer's interpreter, the job folder and
    the work folder. Of the settings, only a text that begins with `{job}/` is a path of the job: any other may hold
    braces of its own, as chat templates do.
    """

    trainer: str
    argv: tuple[str, ...]
    settings: Mapping[str, Any]  # resolved recipe keys, Axolotl's vocabulary
    micro_batch_size: int
    gradient_accumulation_steps: int
    env: Mapping[str, str] = field(default_factory=dict)
    format: int = 1


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """What the agent writes for one start of the trainer; the trainer's last argument is its path."""

    settings: Mapping[str, Any]
    job_dir: str
    work_dir: str
    output_dir: str
    snapshots_dir: str
    final_dir: str
    control_dir: str
    events_path: str
    micro_batch_size: int
    gradient_accumulation_steps: int
    checkpoint_every_s: float
    resume_from: str | None = None
    format: int = 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`snapshots/<step>.json` and `final.json`: what the trainer vouches for."""

    step: int
    max_steps: int
    files: Mapping[str, int]  # name -> size in bytes
    world_size: int = 1
    loss: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float | int | str | None] = field(default_factory=dict)
    format: int = 1


def start_command() -> str:
    """What an instance runs from its first boot on: POSIX sh, needs nothing but `date`, `sleep` and `mkdir`."""
    return resources.files("orchestrator.agent").joinpath("start.sh").read_text(encoding="utf-8")
