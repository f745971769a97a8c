"""On rented instances, too: whatever moment one is taken at, the weights come out the same and nothing is left billing.

The marketplaces and the bucket are fakes on loopback; the command line, SSH, set-up, agent and training are real.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.types import Outcome, Phase, Run
from tests.assets.tiny import Tiny
from tests.cloud import faults
from tests.cloud.world import KINDS, CloudDesk, cloud_desk
from tests.e2e.desk import Desk
from tests.e2e.losing import NAME, Loss, check_the_bill, drawn, in_training, launched, stored_step
from tests.e2e.test_resume_equals_uninterrupted import STEPS, adapter, during_an_upload, reference

OFFERS = {"runpod": "catalog", "vastai": "search"}  # the call that tells of them

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory, tiny_assets: Tiny) -> dict[str, str]:
    """What the same recipe makes of it on this very computer, without an interruption."""
    desk = Desk(tmp_path_factory.mktemp("reference"), tiny_assets)
    try:
        return reference(desk)
    finally:
        desk.close()


@pytest.fixture
def desk(
    request: pytest.FixtureRequest, tmp_path: Path, tiny_assets: Tiny, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CloudDesk]:
    with cloud_desk(tmp_path, tiny_assets, markets=request.param, keys=monkeypatch.setenv) as made:
        yield made


MARKETS = pytest.mark.parametrize("desk", [[name] for name in sorted(KINDS)], indirect=True, ids="".join)


@MARKETS
@pytest.mark.parametrize("draw", [0, 1])
def test_a_rented_run_that_loses_its_instance_ends_with_the_same_weights(
    desk: CloudDesk, draw: int, wanted: dict[str, str]
) -> None:
    rent_and_lose(desk, drawn(draw), wanted)


@pytest.mark.slow
@MARKETS
@pytest.mark.parametrize("draw", range(2, 22))
def test_twenty_drawn_losses_end_with_the_same_weights(desk: CloudDesk, draw: int, wanted: dict[str, str]) -> None:
    rent_and_lose(desk, drawn(draw), wanted)


@pytest.mark.slow  # the same on a stepped clock, without training: test_an_outage.py
@pytest.mark.parametrize("desk", [["runpod", "vastai"]], indirect=True, ids=["both"])
def test_what_the_cheapest_of_two_marketplaces_takes_the_other_gives(desk: CloudDesk, wanted: dict[str, str]) -> None:
    """It takes the instance and shows no more offers; once that instance is seen to be gone, it answers nothing at all."""
    watching = desk.spawn("launch", str(desk.recipe(steps=STEPS)), "--name", NAME)
    first = desk.wait_for(lambda: in_training(during_an_upload(2))(desk) and launched(desk))
    here, there = first.attempts[0].offer.provider, "vastai"
    assert here == "runpod", "it is the cheaper one"
    assert desk.markets[there].log, "the other one was asked, too"
    desk.markets[here].faults.from_now_on(OFFERS[here], faults.UNAVAILABLE)
    desk.kill_instance(NAME, "outbid")
    desk.wait_for(lambda: desk.run(NAME).attempts[0].ended_at)
    desk.markets[here].faults.from_now_on(faults.ANY, faults.UNAVAILABLE)
    assert watching.wait(timeout=300) == 0, (desk.root / "spawned-0.log").read_text()
    desk.markets[here].faults.clear()
    run = desk.run(NAME)
    rented = [(a.outcome, a.offer.provider) for a in run.attempts if not a.refused]
    assert rented == [(Outcome.PREEMPTED, here), (Outcome.SUCCEEDED, there)]
    check(desk, run, wanted)


def rent_and_lose(desk: CloudDesk, loss: Loss, wanted: dict[str, str]) -> None:
    """Launch; at that moment the instance is taken away; look at everything after the run's end."""
    watching = desk.spawn("launch", str(desk.recipe(steps=STEPS)), "--name", NAME)
    desk.wait_for(lambda: loss.is_now(desk))
    stored = stored_step(desk, desk.run(NAME))
    if desk.instances() or not loss.may_be_too_late:
        with contextlib.suppress(*[KeyError] if loss.may_be_too_late else []):  # it has just ended itself
            desk.kill_instance(NAME, loss.how)
    assert watching.wait(timeout=300) == 0, (desk.root / "spawned-0.log").read_text()
    run = desk.run(NAME)
    rented = [a for a in run.attempts if not a.refused]  # whoever outbids us may hold the cheapest offer, too
    if not (loss.may_be_too_late and len(rented) == 1):
        assert [a.outcome for a in rented] == [Outcome.PREEMPTED, Outcome.SUCCEEDED], loss
        assert len({a.instance_id for a in rented}) == 2
        last = desk.runs.heartbeat(run.run_id, rented[-1].number)
        assert last is not None
        assert (last[0].restored_step or 0) >= stored, "training went on from what was stored"
    check(desk, run, wanted)


def check(desk: CloudDesk, run: Run, wanted: dict[str, str]) -> None:
    """It has succeeded with the same weights, nothing bills, the bill is right, and no secret lies about."""
    assert run.phase is Phase.SUCCEEDED
    assert adapter(desk, NAME) == wanted
    assert desk.instances() == []
    assert desk.sightings() == []
    check_the_bill(desk)
