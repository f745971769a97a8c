"""`tune offers` on fake marketplaces of 500 offers each: both at once against the slower one alone."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.cloud.clock import LeapingClock
from tests.cloud.faults import Fault, Faults
from tests.cloud.machines import Machines
from tests.cloud.runpod import FakeRunPod
from tests.cloud.runpod_pods import big_catalog
from tests.cloud.vast import ACCOUNT_KEY, FakeVast
from tests.cloud.vast_rows import market

ROUNDS = 7
OFFERS = 500
GOAL_RATIO = 1.2
ANSWERS_AFTER_S = (0.0, 0.3)  # per call: as quick as loopback, and about as the real ones
ASKED = ("vastai", "runpod", "vastai,runpod")


class Late(Faults):
    """Nothing goes wrong, but every answer takes its time."""

    def __init__(self, after_s: float) -> None:
        super().__init__()
        self._after_s = after_s

    def take(self, call: str) -> Fault | None:
        time.sleep(self._after_s)
        return super().take(call)


def ask(names: str, env: Mapping[str, str]) -> tuple[float, dict[str, float]]:
    """Seconds of the whole command, and of each marketplace within it."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "offers", "--provider", names, "--json"],
        env=dict(env), stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    took_s = time.perf_counter() - begun
    providers = json.loads(done.stdout)["providers"]
    assert [one["offers"] >= OFFERS and not one["trouble"] for one in providers] == [True] * len(names.split(","))
    return took_s, {one["name"]: one["took_s"] for one in providers}


def race(after_s: float, rounds: int, root: Path) -> None:
    with FakeVast(LeapingClock(), Machines(root / "vast"), market(OFFERS)) as vast, FakeRunPod() as runpod:
        runpod.catalog = big_catalog(OFFERS // 2)
        vast.faults, runpod.faults = Late(after_s), Late(after_s)
        env = {
            "PATH": os.environ["PATH"], "HOME": str(root), "TUNE_STATE_DIR": str(root / "state"),
            "TUNE_STORAGE": f"file://{root}/bucket",
            "VAST_API_KEY": ACCOUNT_KEY, "TUNE_VASTAI_API_URL": vast.url,
            "RUNPOD_API_KEY": runpod.account_key, "TUNE_RUNPOD_API_URL": runpod.url,
        }  # fmt: skip
        whole: dict[str, list[float]] = {names: [] for names in ASKED}
        asking: dict[str, list[float]] = {names: [] for names in ASKED}
        for _ in range(rounds):  # in turn: whatever else the machine does hits all of them
            for names in ASKED:
                took_s, each = ask(names, env)
                whole[names].append(took_s)
                asking[names].append(max(each.values()))
    print(f"every call is answered after {after_s:g} s")
    for names in ASKED:
        print(
            f"  {names:<14} {statistics.median(whole[names]):5.2f} s in all, "
            f"the slowest marketplace {statistics.median(asking[names]):5.2f} s"
        )
    by_round = [both / max(one, two) for one, two, both in zip(*whole.values(), strict=True)]
    each = ", ".join(f"{r:.2f}" for r in by_round)
    print(f"  both: {statistics.median(by_round):.2f} x the slower one (goal: at most {GOAL_RATIO}); rounds {each}")


def main(rounds: int = ROUNDS) -> None:
    for after_s in ANSWERS_AFTER_S:
        with tempfile.TemporaryDirectory() as name:
            race(after_s, rounds, Path(name))


if __name__ == "__main__":
    main()
