"""Do the GPUs compute? Asked with the interpreter that will train, before anything big is downloaded."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.agent.ending import AttemptEnds, Ending
from orchestrator.agent.probe import within
from orchestrator.handover import Expected, JobSpec
from orchestrator.types import Outcome

_PROGRAM = Path(__file__).with_name("compute_check.py")
_TIMEOUT_S = 240.0  # importing torch from a cold disk alone may take a minute


@dataclass(frozen=True, slots=True)
class Computes:
    """What the trainer's interpreter can do here. `quantising_failed` is empty where nothing speaks against it."""

    torch: str = ""
    cuda: str = ""
    gpus: int = 0
    quantising_failed: str = ""


def check(python: str, expect: Expected, *, env: Mapping[str, str], timeout_s: float = _TIMEOUT_S) -> Computes:
    """Raises AttemptEnds: HOST_FAULT when the GPUs are to blame, SETUP_FAILED when it is the environment."""
    said = _ask(python, env, timeout_s)
    if said.get("import_failed"):
        raise _ends(Outcome.SETUP_FAILED, f"{python} cannot import torch: {said['import_failed']}")
    if not said.get("cuda"):
        raise _ends(Outcome.SETUP_FAILED, f"torch {said.get('torch')} of {python} is built without CUDA")
    if said.get("failed"):
        raise _ends(Outcome.HOST_FAULT, f"the GPUs do not compute: {said['failed']}")
    if int(said.get("gpus", 0)) < expect.gpu_count:
        raise _ends(Outcome.HOST_FAULT, f"{expect.gpu_count} GPUs expected, torch sees {said.get('gpus')}")
    return Computes(str(said["torch"]), str(said["cuda"]), int(said["gpus"]), str(said.get("quantising_failed") or ""))


def require_quantising(found: Computes | None, spec: JobSpec | None) -> None:
    """A job that quantises is not started where that is known to fail."""
    settings = spec.settings if spec else {}
    eight_bit = "8bit" in str(settings.get("optimizer") or "") or "bnb" in str(settings.get("optimizer") or "")
    if found is None or not (settings.get("load_in_4bit") or settings.get("load_in_8bit") or eight_bit):
        return
    if found.quantising_failed:
        raise _ends(Outcome.SETUP_FAILED, f"bitsandbytes does not work here: {found.quantising_failed}")


def _ask(python: str, env: Mapping[str, str], timeout_s: float) -> dict[str, Any]:
    def run() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [python, str(_PROGRAM)],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )

    try:
        done = within(timeout_s + 5, run)
    except (subprocess.TimeoutExpired, TimeoutError):
        raise _ends(Outcome.HOST_FAULT, f"the GPUs do not answer within {timeout_s:g} s") from None
    except OSError as e:
        raise _ends(Outcome.SETUP_FAILED, f"{python} cannot be run: {e.strerror or e}") from e
    lines = done.stdout.decode(errors="replace").strip().splitlines()  # libraries may have their say before
    try:
        said = json.loads(lines[-1]) if lines else None
    except ValueError:
        said = None
    if isinstance(said, dict):
        return said
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"code {done.returncode}"]
    raise _ends(Outcome.HOST_FAULT, f"the check of the GPUs died: {last[0][:300]}")


def _ends(outcome: Outcome, reason: str) -> AttemptEnds:
    return AttemptEnds(Ending(outcome, 1, reason))
