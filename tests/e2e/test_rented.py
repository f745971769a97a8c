"""On rented instances, too: whatever moment one is taken at, the weights come out the same and nothing is left billing.

The marketplaces and the bucket are fakes on loopback; the command line, SSH, set-up, agent and training are real.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.types import Outcome, Phase
from tests.assets.tiny import Tiny
from tests.cloud.world import KINDS, CloudDesk, cloud_desk
from tests.e2e.desk import Desk
from tests.e2e.test_resume_equals_uninterrupted import (
    Moment,
    adapter,
    at_step,
    during_a_save,
    during_an_upload,
    reference,
)

STEPS = 60

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory, tiny_assets: Tiny) -> dict[str, str]:
    """What the same recipe makes of it on this very computer, without an interruption."""
    desk = Desk(tmp_path_factory.mktemp("reference"), tiny_assets)
    try:
        return reference(desk)
    finally:
        desk.close()


def drawn(draw: int) -> tuple[Moment, str]:
    """A moment, and what the marketplace does then."""
    rng = random.Random(draw)
    moments = [
        at_step(rng.randrange(1, STEPS)),
        during_a_save(rng.randrange(1, 3)),
        during_an_upload(rng.randrange(1, 3)),
    ]
    return moments[draw % 3], rng.choice(["outbid", "vanish"])


def rent_and_lose(desk: CloudDesk, moment: Moment, how: str) -> None:
    """Launch; at that moment the instance is taken away; wait for the run's end."""
    watching = desk.spawn("launch", str(desk.recipe(steps=STEPS)), "--name", "r")
    home = desk.wait_for(lambda: desk.home_of("r", 1))
    desk.wait_for(lambda: moment.ready(desk, home) or any(e["event"] == "done" for e in desk.events(home)))
    desk.kill_instance("r", how)
    assert watching.wait(timeout=300) == 0, (desk.root / "spawned-0.log").read_text()


@pytest.fixture
def desk(
    request: pytest.FixtureRequest, tmp_path: Path, tiny_assets: Tiny, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CloudDesk]:
    with cloud_desk(tmp_path, tiny_assets, markets=[request.param], keys=monkeypatch.setenv) as made:
        yield made


MARKETS = pytest.mark.parametrize("desk", sorted(KINDS), indirect=True)


@MARKETS
@pytest.mark.parametrize("draw", [0, 2])
def test_a_rented_run_that_loses_its_instance_ends_with_the_same_weights(
    desk: CloudDesk, draw: int, wanted: dict[str, str]
) -> None:
    check(desk, draw, wanted)


@pytest.mark.slow
@MARKETS
@pytest.mark.parametrize("draw", range(3, 23))
def test_twenty_drawn_losses_end_with_the_same_weights(desk: CloudDesk, draw: int, wanted: dict[str, str]) -> None:
    check(desk, draw, wanted)


def check(desk: CloudDesk, draw: int, wanted: dict[str, str]) -> None:
    rent_and_lose(desk, *drawn(draw))
    run = desk.run("r")
    assert run.phase is Phase.SUCCEEDED
    rented = [a.outcome for a in run.attempts if not a.refused]  # whoever outbids us may hold the cheapest offer, too
    assert rented == [Outcome.PREEMPTED, Outcome.SUCCEEDED]
    assert adapter(desk, "r") == wanted
    assert desk.instances() == []
    assert desk.sightings() == []
