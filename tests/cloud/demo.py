"""`make demo-cloud`: rent, be outbid half-way, rent again, finish. All on this computer, without an account.

    python -m tests.cloud.demo [vastai|runpod]

The marketplace, its machines, SSH and the bucket are imitations on loopback; the command line, what it sends, the agent
and the training are real. Ends by showing that the account is empty, and what it cost.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator import keys
from orchestrator.errors import TuneError
from orchestrator.storage.open import open_store
from orchestrator.storage.runs import RunStore
from tests.cloud.__main__ import rehearsal
from tests.cloud.world import KINDS, ROOT, Market

REPOSITORY = Path(__file__).parents[2]
RECIPE = REPOSITORY / "recipes" / "tiny-local.yaml"
NAME = "rehearsal"
STEPS = 40  # of the recipe
OUTBID_AT = STEPS // 2
LOOK_EVERY_S = 0.5


@dataclass
class Rival:
    """Somebody who offers more for the instance once the run has stored a checkpoint half-way."""

    market: Market
    runs: RunStore
    over: threading.Event
    took: str = ""

    def wait_and_outbid(self) -> None:
        while not self.over.wait(LOOK_EVERY_S) and not self.took:
            try:
                run = self.runs.load(self.runs.resolve(NAME)).run
                stored = [
                    keys.parse_checkpoint(i.key.rsplit("/", 1)[1])
                    for i in self.runs.store.scan(keys.checkpoints(run.run_id))
                ]
            except TuneError:
                continue  # not launched yet
            step = max((found[0] for found in stored if found), default=0)
            if step >= OUTBID_AT and run.attempt and run.attempt.instance_id:
                instance_id = str(run.attempt.instance_id)
                self.market.preempt(instance_id, "outbid")
                self.took = instance_id
                tell(f"the marketplace takes instance {instance_id} away; step {step} of {STEPS} is in the bucket")


def tell(what: str) -> None:
    print(f"\n--- {what}\n", flush=True)


def tune(*args: str, env: Mapping[str, str], is_shown: bool = True) -> subprocess.CompletedProcess[str]:
    if is_shown:
        tell(f"$ tune {' '.join(args)}")
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *args],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=None if is_shown else subprocess.PIPE,
        text=True,
        check=False,
    )


def main(name: str) -> int:
    with tempfile.TemporaryDirectory(prefix="demo-cloud-") as folder:
        root = Path(folder)
        with rehearsal(root, [name]) as (markets, variables):
            market = markets[name]
            # Nothing of the user's own setup takes part: no config, no keys, no folders.
            env = {"PATH": os.environ["PATH"], "HOME": str(root), "LANG": "C.UTF-8", "HF_HUB_OFFLINE": "1", **variables}
            tell(
                f"a marketplace that speaks as {name} does listens on {market.url}, a bucket on {variables['AWS_ENDPOINT_URL']}"
            )
            tune("offers", str(RECIPE), "--limit", "5", env=env)
            runs = RunStore(
                open_store(ROOT, options={"endpoint_url": variables["AWS_ENDPOINT_URL"], "region": "us-east-1"})
            )
            over = threading.Event()
            rival = Rival(market, runs, over)
            watching = threading.Thread(target=rival.wait_and_outbid, daemon=True)
            watching.start()
            done = tune("launch", str(RECIPE), "--provider", name, "--name", NAME, env=env)
            over.set()
            watching.join()
            if done.returncode == 0:
                tune("pull", NAME, str(root / "adapter"), env=env)
            return report(market, rival, done.returncode, env)


def report(market: Market, rival: Rival, code: int, env: Mapping[str, str]) -> int:
    """What is left, and what it came to."""
    live, ever = market.meter.live(), market.meter.ever()
    tell(f"the marketplace has rented out {len(ever)} instances, and {len(live) or 'none'} of them still bills")
    for one in ever:
        charges = market.meter.charges(one)
        fate = (
            " (taken away half-way)"
            if one == rival.took
            else ""
            if charges.gpu_usd
            else " (outbid before it ran; given back)"
        )
        print(
            f"  {one}: GPU {charges.gpu_usd:.5f}, disk {charges.disk_usd:.5f}, traffic {charges.traffic_usd:.5f} USD{fate}"
        )
    print(f"  its meter says {market.meter.total_usd():.5f} USD in all", flush=True)
    told = tune("status", NAME, "--json", env=env, is_shown=False)
    if told.returncode == 0:
        print(f"  the run's own ledger says {float(json.loads(told.stdout)['spent_usd']):.5f} USD", flush=True)
    if code or live or not rival.took:
        tell("that went wrong")
        return code or 1
    tell("trained, taken away, carried on, finished; nothing is left")
    return 0


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else "vastai"
    if wanted not in KINDS:
        sys.exit(f"no such marketplace: {wanted}; there are {', '.join(KINDS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of the cleaning up
    sys.exit(main(wanted))
