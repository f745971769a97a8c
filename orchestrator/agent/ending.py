"""How an attempt ends: what the trainer's exit means, and the record of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.agent.progress import Progress
from orchestrator.handover import EXIT_OOM, EXIT_SAVED
from orchestrator.types import Outcome

OOM_TEXT = re.compile(
    r"CUDA out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|DefaultCPUAllocator: can't allocate", re.IGNORECASE
)
HOST_TEXT = re.compile(
    r"NVML|\bXid\b|device unavailable|CUDA-capable device\(s\) is/are busy|GPU has fallen off the bus|"
    r"uncorrectable ECC|CUDA driver initialization failed|no CUDA-capable device is detected|ncclSystemError",
    re.IGNORECASE,
)
FULL_TEXT = re.compile(r"No space left on device|Errno 28\b|Disk quota exceeded", re.IGNORECASE)
_KILLED = 137  # 128 + SIGKILL, as a shell reports it
_STOPPED = 143  # 128 + SIGTERM


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the attempt ends. `code` 0 only for a run that is done."""

    outcome: Outcome
    code: int
    reason: str
    publish_artifact: bool = False


class AttemptEnds(Exception):
    """Nothing more can be done on this instance; carries how it ends."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.reason)
        self.ending = ending


@dataclass(frozen=True, slots=True)
class Left:
    """What is known of a trainer that is gone. `code` is None when it vanished together with its keeper."""

    code: int | None
    tail: str
    oom_killed: bool = False


@dataclass(frozen=True, slots=True)
class Again:
    """Start the trainer once more from the newest checkpoint, here."""

    reason: str
    smaller_batch: bool = False


def judge(left: Left, progress: Progress) -> Ending | Again:
    """What it means that the trainer is gone although nobody asked it to go."""
    if _is_oom(left, progress):
        return Again(f"out of memory: {progress.oom or _matching(OOM_TEXT, left.tail) or 'killed'}", smaller_batch=True)
    if left.code == 0:
        return _finished(progress)
    if left.code is None or left.code in {_KILLED, _STOPPED}:
        return Again("the trainer was killed from outside")
    code = left.code
    if code == EXIT_SAVED:
        return Ending(Outcome.PREEMPTED, code, "the trainer was told to stop by someone else; its work is saved")
    line = _matching(HOST_TEXT, left.tail)
    if line:
        return Ending(Outcome.HOST_FAULT, code, f"the hardware or its driver failed: {line}")
    line = _matching(FULL_TEXT, left.tail)
    if line:
        return Ending(Outcome.USER_ERROR, code, f"the disk is full: {line}; ask for more with tune.disk_gb")
    last = _last_line(left.tail)
    if progress.steps_seen == 0:
        return Ending(Outcome.SETUP_FAILED, code, f"the trainer left with code {code} before its first step: {last}")
    return Ending(Outcome.USER_ERROR, code, f"the trainer left with code {code} at step {progress.step}: {last}")


def _finished(progress: Progress) -> Ending:
    """Done means that the last step was reached; an exit code says nothing of that."""
    if progress.done is None:
        if progress.steps_seen == 0 and progress.max_steps > 0:
            return Ending(Outcome.SETUP_FAILED, 1, "the trainer left with code 0 before its first step")
        where = f"at step {progress.step} of {progress.max_steps}"
        return Ending(Outcome.USER_ERROR, 1, f"the trainer left with code 0 {where}: that is not done")
    step, max_steps = progress.done
    if max_steps <= 0:
        return Ending(Outcome.USER_ERROR, 1, "the training had 0 steps: nothing was learned")
    if step < max_steps:
        return Ending(Outcome.USER_ERROR, 1, f"the trainer says it is done at step {step} of {max_steps}")
    return Ending(Outcome.SUCCEEDED, 0, f"step {step} of {max_steps} reached", publish_artifact=True)


def _is_oom(left: Left, progress: Progress) -> bool:
    if left.code in {0, EXIT_SAVED}:
        return False
    if left.code == EXIT_OOM or progress.oom is not None:
        return True
    return (left.code in {None, _KILLED} and left.oom_killed) or bool(OOM_TEXT.search(left.tail))


def _matching(pattern: re.Pattern[str], text: str) -> str:
    """The last line that says it: the first is often a warning about something else."""
    for line in reversed(text.splitlines()):
        if pattern.search(line):
            return line.strip()[:300]
    return ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def smaller(micro_batch_size: int, gradient_accumulation_steps: int) -> tuple[int, int] | None:
    """Half the micro-batch, twice the accumulation: the same effective batch. None when it cannot be halved evenly."""
    if micro_batch_size < 2 or micro_batch_size % 2:
        return None
    return micro_batch_size // 2, gradient_accumulation_steps * 2
