"""From "the marketplace has taken the instance" to "training again" on the next one, on the fakes; how long, and what for."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.types import Phase
from tests.assets import tiny
from tests.cloud.world import KINDS, CloudDesk, Market, cloud_desk

ROUNDS = 3
STEPS = 4000  # far more than are trained before the instance is taken
TAKEN_AFTER = 40  # steps
GOAL_S = 30


def step_of(desk: CloudDesk, home: Path | None) -> int:
    """How far the attempt in this tune home has trained; 0 when it has not."""
    return max((e["step"] for e in desk.events(home) if e["event"] == "step"), default=0) if home else 0


def next_home(desk: CloudDesk) -> Path | None:
    """Where a later attempt has been put; the first offer tried may have been refused, as whoever outbid us holds it."""
    attempts = len(desk.run("r").attempts)
    return desk.home_of("r", attempts) if attempts > 1 else None


def rented(market: Market) -> int:
    return len(market.meter.ever())


def changeover(name: str, root: Path, assets: tiny.Tiny, *, how: str) -> dict[str, float]:
    """Seconds from the moment it is taken until each stage is reached."""
    with cloud_desk(root, assets, markets=[name], keys=os.environ.__setitem__) as desk:
        desk.spawn("launch", str(desk.recipe(steps=STEPS)), "--name", "r")
        first = desk.wait_for(lambda: desk.home_of("r", 1))
        desk.wait_for(lambda: step_of(desk, first) >= TAKEN_AFTER and desk.checkpoints(desk.run("r").run_id))
        before = rented(desk.market)
        desk.kill_instance("r", how)
        taken = time.perf_counter()

        def reached(what: Callable[[], object]) -> float:
            desk.wait_for(what)
            return time.perf_counter() - taken

        times = {
            "rented again": reached(lambda: rented(desk.market) > before),
            "its start script runs": reached(lambda: next_home(desk)),
            "the agent runs": reached(lambda: desk.run("r").phase is Phase.RUNNING),
            "training again": reached(lambda: step_of(desk, next_home(desk))),
        }
        assert desk.tune("stop", "r").returncode == 0
        desk.wait_for(lambda: desk.run("r").phase.is_terminal)
    return times


def main(rounds: int = ROUNDS) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assets = tiny.cached(Path(folder))
        for name in sorted(KINDS):
            for how in ("outbid", "vanish"):
                taken = [changeover(name, Path(folder) / f"{name}-{how}-{n}", assets, how=how) for n in range(rounds)]
                median = {stage: statistics.median(t[stage] for t in taken) for stage in taken[0]}
                stages = ", ".join(f"{stage} {at:.1f} s" for stage, at in median.items())
                print(f"{name}, {how}: {stages} (goal: {GOAL_S}; the fake boots at once)", flush=True)


if __name__ == "__main__":
    main()
