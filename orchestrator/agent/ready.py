"""Before anything of the run is fetched: is the instance what was paid for, and what will train on it?"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.agent import compute, environment, probe
from orchestrator.agent import setup as setting_up
from orchestrator.agent.bucket import Bucket
from orchestrator.agent.heartbeat import Status
from orchestrator.agent.home import Home
from orchestrator.clock import Clock
from orchestrator.handover import AgentConfig


@dataclass(frozen=True, slots=True)
class Ready:
    """What training here rests on. `computes` is None where GPUs were not looked at."""

    config: AgentConfig
    computes: compute.Computes | None = None


def make_ready(
    home: Home,
    config: AgentConfig,
    bucket: Bucket,
    status: Status,
    *,
    clock: Clock,
    say: Callable[[str], None],
    is_over: Callable[[], bool],
    free: Callable[[Path], int],
) -> Ready:
    """Raises AttemptEnds when it is not, or cannot be made so.

    With a reason to leave it stops half-way: whoever goes on looks for that reason first.
    """
    if config.expect is not None:
        say("probing")
        can = probe.probe(home, config.expect, bucket, clock=clock, note=status.note, free=free)
        status.can_end_itself = can if can is not None else status.can_end_itself
    if not config.environment:
        return Ready(config)
    say("setting up")
    setup = setting_up.Setup(home, config, bucket, clock=clock, note=status.note, is_over=is_over)
    try:
        prepared = setup.prepare()
    except setting_up.Interrupted:
        return Ready(config)
    config = replace(config, trainer_python=prepared.python)
    if config.expect is None or config.expect.gpu_count == 0:
        return Ready(config)
    env = environment.trainer_environment(home, os.environ, {}, note=status.note)
    return Ready(config, compute.check(prepared.python, config.expect, env=env))


def as_before(home: Home, config: AgentConfig) -> AgentConfig:
    """For an agent that was restarted and finds its trainer alive: the same interpreter, should it start again."""
    prepared = setting_up.remembered(home) if config.environment else None
    return replace(config, trainer_python=prepared.python) if prepared else config
