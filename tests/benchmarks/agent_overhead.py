"""What the agent costs a training that it watches, logs and stores the checkpoints of, step by step."""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from orchestrator import codec, keys
from orchestrator.agent.home import Home
from orchestrator.handover import AgentConfig, JobFile, JobFiles
from orchestrator.recipe import data
from orchestrator.recipe.model import Recipe
from orchestrator.storage.local import LocalStore
from orchestrator.trainers.registry import get_trainer
from orchestrator.types import Namespace, Phase, Run, RunId
from tests.agent.stage import RUN_ID, attempt
from tests.assets import tiny
from tests.trainers.stage import recipe

ROUNDS = 3
STEPS = 600
CHECKPOINT_EVERY_S = 4.0
HEARTBEAT_S, LOG_EVERY_S = 5.0, 10.0  # six times as busy as on a rented instance, because the training is short
WINDOW_S = 1.5  # how long the agent works, or is stopped, at a time
GOAL_RATIO = 1.01

Window = tuple[float, float, bool]  # from, to, whether the agent worked


def fill(bucket: LocalStore, made: Recipe) -> None:
    """What `tune launch` leaves there."""
    listed = []
    with get_trainer("trl").render(made, data.check(made)) as job:
        for name, content in job.files.items():
            body = content if isinstance(content, bytes) else content.read_bytes()
            bucket.put(keys.file(RUN_ID, name), body)
            listed.append(JobFile(name, len(body), sha256(body).hexdigest()))
    bucket.put(keys.files_manifest(RUN_ID), codec.dump(JobFiles(tuple(listed))))
    now = bucket.now()
    run = Run(
        RunId(RUN_ID), "bench", Namespace("abcdef"), now, "r" * 64, "d" * 64, "local", phase=Phase.RUNNING,
        attempts=(attempt(1, now),),
    )  # fmt: skip
    bucket.put(keys.record(RUN_ID), codec.dump(run))


@contextmanager
def agent(home: Home, bucket: LocalStore) -> Iterator[subprocess.Popen[bytes]]:
    """The agent at its work; it must end well."""
    home.root.mkdir()
    config = AgentConfig(
        RUN_ID, 1, bucket.url, "r" * 64, "d" * 64, heartbeat_s=HEARTBEAT_S, log_every_s=LOG_EVERY_S,
        checkpoint_every_s=CHECKPOINT_EVERY_S,
    )  # fmt: skip
    home.config.write_bytes(codec.dump(config))
    child = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.agent", "--home", str(home.root)],
        env={"PATH": os.environ["PATH"], "HOME": str(home.root), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield child
    finally:
        child.send_signal(signal.SIGCONT)
    assert child.wait() == 0, home.agent_log.read_text()
    assert bucket.head(keys.artifact(RUN_ID)).size > 0, home.agent_log.read_text()


def events(home: Home) -> list[dict[str, Any]]:
    try:
        lines = home.events(1).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines[:-1]]


def is_training(home: Home) -> bool:
    told = {e["event"] for e in events(home)}
    return "step" in told and "done" not in told


def alternate(child: subprocess.Popen[bytes], home: Home) -> tuple[list[Window], float]:
    """Let the agent work and stop it in turn while the training goes on; also its share of one core while it worked.

    What it could not do while it was stopped it does when it works again, so nothing of its work is left out.
    """
    while not is_training(home):
        assert child.poll() is None, home.agent_log.read_text()
        time.sleep(0.1)
    windows: list[Window] = []
    used, began = _cpu_s(child.pid), time.time()
    for works in itertools.cycle((True, False)):
        child.send_signal(signal.SIGCONT if works else signal.SIGSTOP)
        start = time.time()
        time.sleep(WINDOW_S)
        windows.append((start, time.time(), works))
        if not is_training(home):
            break
    return windows, (_cpu_s(child.pid) - used) / (time.time() - began)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def step_times(told: list[dict[str, Any]], windows: list[Window]) -> dict[bool, list[float]]:
    """Seconds from one step to the next, with the agent at work and without; steps with a save in them are left out."""
    found: dict[bool, list[float]] = {True: [], False: []}
    told = [e for e in told if e["event"] in {"step", "checkpoint"}]
    for before, after in itertools.pairwise(told):
        if before["event"] == after["event"] == "step":
            for start, end, works in windows:
                if start <= before["at"] and after["at"] <= end:
                    found[works].append(after["at"] - before["at"])
    return found


def main(rounds: int = ROUNDS) -> None:
    on: list[float] = []
    off: list[float] = []
    ratios, shares = [], []
    with tempfile.TemporaryDirectory() as name:
        assets = tiny.cached(Path(name))
        made = recipe(Path(name), assets.model, (assets.alpaca, "alpaca"), max_steps=STEPS)
        for n in range(rounds):
            home, bucket = Home(Path(name) / f"instance-{n}"), LocalStore(Path(name) / f"bucket-{n}")
            fill(bucket, made)
            with agent(home, bucket) as child:
                windows, share = alternate(child, home)
            times = step_times(events(home), windows)
            on, off = [*on, *times[True]], [*off, *times[False]]
            ratios.append(statistics.median(times[True]) / statistics.median(times[False]))
            shares.append(share)
    print(f"{rounds} trainings of {STEPS} steps, a checkpoint every {CHECKPOINT_EVERY_S:g} s (saves left out)")
    for title, taken in (("at work", on), ("stopped", off)):
        print(f"one step, agent {title}: {1000 * statistics.median(taken):6.1f} ms  ({len(taken)} steps)")
    ratio = statistics.median(on) / statistics.median(off)
    print(f"ratio: {ratio:.3f} (goal: at most {GOAL_RATIO}); of each training: {', '.join(f'{r:.3f}' for r in ratios)}")
    print(f"the agent's own work: {100 * statistics.median(shares):.1f} % of one core")


if __name__ == "__main__":
    main()
