"""Whatever moment the provider takes the instance at, the weights come out the same, bit by bit."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator import keys
from orchestrator.types import Outcome, Phase
from tests.assets.tiny import Tiny
from tests.e2e.desk import Desk
from tests.e2e.tensors import tensor_hashes

STEPS = 60
SAVE_AND_UPLOAD_S = 6.0  # of the tiny model on two shared cores; measured well below 1 s, a neighbour's load on top
CHECKPOINT_EVERY_S = 2.0

pytestmark = pytest.mark.train


@dataclass(frozen=True)
class Moment:
    """When the instance is killed: `ready(desk, home)` turns true at that moment."""

    name: str
    ready: Callable[[Desk, Path], bool]


def at_step(step: int) -> Moment:
    def ready(desk: Desk, home: Path) -> bool:
        return any(e["event"] == "step" and e["step"] >= step for e in desk.events(home))

    return Moment(f"step {step}", ready)


def during_a_save(number: int) -> Moment:
    """A checkpoint folder exists whose snapshot is not vouched for yet."""

    def ready(desk: Desk, home: Path) -> bool:
        begun = {p.name for p in (home / "work" / "out").glob("checkpoint-*")}
        events = [e["step"] for e in desk.events(home) if e["event"] == "checkpoint"]
        return len(begun) > 0 and len(events) >= number - 1 and any(int(n.split("-")[1]) not in events for n in begun)

    return Moment(f"save {number}", ready)


def during_an_upload(number: int) -> Moment:
    """Blobs of a checkpoint lie in the bucket, its manifest does not."""

    def ready(desk: Desk, home: Path) -> bool:
        run = desk.run("r")
        manifests = desk.checkpoints(run.run_id)
        attempt = run.attempts[-1].number
        named = set()
        for key in manifests:
            named |= {f["sha256"] for f in json.loads(desk.runs.store.get(key).data)["files"]}
        blobs = {i.key.rsplit("/", 1)[1] for i in desk.runs.store.scan(keys.blobs(run.run_id, attempt))}
        return len(manifests) >= number - 1 and bool(blobs - named)

    return Moment(f"upload {number}", ready)


def reference(desk: Desk) -> dict[str, str]:
    done = desk.tune("launch", str(desk.recipe(steps=STEPS)), "--name", "reference")
    assert done.returncode == 0, done.stderr + done.stdout
    return adapter(desk, "reference")


def adapter(desk: Desk, name: str) -> dict[str, str]:
    folder = desk.root / f"pulled-{name}"
    pulled = desk.tune("pull", name, str(folder))
    assert pulled.returncode == 0, pulled.stderr
    return tensor_hashes(folder / "adapter_model.safetensors")


def lost_seconds(desk: Desk, home: Path, killed_at: float) -> float:
    """How much training the newest stored checkpoint is behind, in seconds of the trainer's own events."""
    run = desk.run("r")
    stored = [keys.parse_checkpoint(k.rsplit("/", 1)[1]) for k in desk.checkpoints(run.run_id)]
    newest = max((step for step, _ in filter(None, stored)), default=0)
    events = desk.events(home)
    started = next((e["at"] for e in events if e["event"] == "start"), killed_at)
    reached = next((e["at"] for e in events if e["event"] == "step" and e["step"] == newest), started)
    return killed_at - reached


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory, tiny_assets: Tiny) -> dict[str, str]:
    desk = Desk(tmp_path_factory.mktemp("reference"), tiny_assets)
    try:
        return reference(desk)
    finally:
        desk.close()


QUICK = [at_step(23), during_a_save(2), during_an_upload(1)]


@pytest.mark.parametrize("moment", QUICK, ids=lambda m: m.name)
def test_a_killed_run_ends_with_the_same_weights(desk: Desk, wanted: dict[str, str], moment: Moment) -> None:
    kill_once(desk, moment)
    assert adapter(desk, "r") == wanted


@pytest.mark.slow
@pytest.mark.parametrize("draw", range(20))
def test_twenty_drawn_kills_end_with_the_same_weights(desk: Desk, wanted: dict[str, str], draw: int) -> None:
    rng = random.Random(draw)
    kinds = [
        at_step(rng.randrange(1, STEPS)),
        during_a_save(rng.randrange(1, 3)),
        during_an_upload(rng.randrange(1, 3)),
    ]
    kill_once(desk, kinds[draw % 3])
    assert adapter(desk, "r") == wanted


def test_a_run_killed_before_its_first_checkpoint_starts_again(desk: Desk, wanted: dict[str, str]) -> None:
    kill_once(desk, at_step(1))
    assert adapter(desk, "r") == wanted


def kill_once(desk: Desk, moment: Moment) -> None:
    recipe = desk.recipe(steps=STEPS, tune_checkpoint_every=f"{CHECKPOINT_EVERY_S:.0f}s")
    watching = desk.spawn("launch", str(recipe), "--name", "r")
    home = desk.wait_for(lambda: desk.home_of("r", 1))
    desk.wait_for(
        lambda: moment.ready(desk, home) or (desk.events(home)[-1:] and desk.events(home)[-1]["event"] == "done")
    )
    lost = lost_seconds(desk, home, time.time())
    desk.kill_instance("r")
    assert lost <= CHECKPOINT_EVERY_S + SAVE_AND_UPLOAD_S
    assert watching.wait(timeout=300) == 0, (desk.root / "spawned-0.log").read_text()
    run = desk.run("r")
    assert run.phase is Phase.SUCCEEDED
    assert [a.outcome for a in run.attempts] == [Outcome.PREEMPTED, Outcome.SUCCEEDED]
