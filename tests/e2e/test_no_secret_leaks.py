"""Secrets that open nothing, looked for everywhere: in what commands say with every library talking, in local state, the
bucket, requests, command lines, and in what lies and runs on rented machines. In success and in failure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import CredentialsMissing
from orchestrator.types import Phase
from tests.assets.tiny import Tiny
from tests.cloud import faults
from tests.cloud.canaries import Canaries
from tests.cloud.machines import Quirks
from tests.cloud.runpod import FakeRunPod
from tests.cloud.vast import FakeVast
from tests.cloud.witness import Witness
from tests.cloud.world import KINDS, CloudDesk, cloud_desk

pytestmark = pytest.mark.train

STEPS = 6
LONG = 4000
PASSES = 10  # by then whatever was rented has been ended
TALK = """
import logging
logging.basicConfig(level=logging.DEBUG)
logging.getLogger().setLevel(logging.DEBUG)
"""
Watched = tuple[CloudDesk, Witness]


@pytest.fixture
def watched(
    request: pytest.FixtureRequest, tmp_path: Path, tiny_assets: Tiny, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Watched]:
    """A desk whose every library logs at DEBUG; afterwards no secret has been seen anywhere."""
    talking = tmp_path / "talking"
    talking.mkdir()
    (talking / "sitecustomize.py").write_text(TALK)
    with cloud_desk(tmp_path, tiny_assets, markets=[request.param], keys=monkeypatch.setenv) as desk:
        desk.extra |= {name: desk.canaries.values[name] for name in ("HF_TOKEN", "WANDB_API_KEY")}
        desk.extra["PYTHONPATH"] = str(talking)
        with Witness([market.machines.root for market in desk.markets.values()]) as witness:
            yield desk, witness
            clear(desk)
        said = b"\n".join(data for _, data in desk.places())
        assert b"DEBUG:" in said, "the libraries do not talk"
        assert witness.argv_with(b"orchestrator")
        assert desk.sightings(witness.places()) == []
        unneeded = Canaries({name: v for name, v in desk.canaries.values.items() if name != "AWS_ACCESS_KEY_ID"})
        assert unneeded.sightings([("a file for keys", witness.kept_apart())]) == []


def clear(desk: CloudDesk) -> None:
    """Whatever the test has broken is whole again, and the run is over."""
    for market in desk.markets.values():
        market.faults.clear()
    desk.s3.denied.clear()
    desk.close()
    with contextlib.suppress(Exception):  # never launched
        if not desk.run("r").phase.is_terminal:
            desk.tune("stop", "r", "--now", "--no-wait", "--debug")
    for _ in range(PASSES):
        desk.tune("reconcile", "--all", "--debug")
        if not desk.instances():
            return


def at(*names: str) -> pytest.MarkDecorator:
    """At these marketplaces, or at all."""
    return pytest.mark.parametrize("watched", names or sorted(KINDS), indirect=True)


def launch(desk: CloudDesk, *, code: int, **recipe: Any) -> None:
    done = desk.tune("launch", str(desk.recipe(**{"steps": STEPS, **recipe})), "--name", "r", "--debug")
    assert done.returncode == code, done.stderr[-3000:]


def launched(desk: CloudDesk, until: Callable[[CloudDesk], object], **recipe: Any) -> Any:
    """Launch, and come back once it is so far."""
    child = desk.spawn("launch", str(desk.recipe(**{"steps": LONG, **recipe})), "--name", "r", "--debug")
    desk.wait_for(lambda: _run_phase(desk) is not None and until(desk))
    return child


def _run_phase(desk: CloudDesk) -> Phase | None:
    try:
        return desk.run("r").phase
    except Exception:  # not launched yet
        return None


def at_step(step: int) -> Callable[[CloudDesk], bool]:
    def reached(desk: CloudDesk) -> bool:
        home = desk.home_of("r", 1)
        return home is not None and any(e["event"] == "step" and e["step"] >= step for e in desk.events(home))

    return reached


def in_phase(*phases: Phase) -> Callable[[CloudDesk], bool]:
    return lambda desk: _run_phase(desk) in phases


def broken(desk: CloudDesk, quirks: Quirks) -> None:
    """Every machine from now on is like that."""
    fake = desk.market.fake
    if isinstance(fake, FakeVast):
        for ask in fake.asks.values():
            ask.quirks = quirks
    else:
        fake.quirks = quirks


def stop(desk: CloudDesk) -> None:
    done = desk.tune("stop", "r", "--debug")
    assert done.returncode == 0, done.stderr[-3000:]
    assert desk.run("r").phase is Phase.CANCELLED


@at()
def test_success(watched: Watched) -> None:
    desk, _ = watched
    launch(desk, code=0)
    for command in (["status", "r"], ["logs", "r"], ["ls"], ["pull", "r"], ["doctor"], ["providers"], ["offers"]):
        desk.tune(*command, "--debug")


@at()
def test_a_wrong_key_to_the_marketplace(watched: Watched) -> None:
    desk, _ = watched
    (name,) = desk.markets
    wrong = "canary-of-nobody-0123456789"
    desk.canaries = desk.canaries.with_value("a wrong key", wrong)
    desk.extra[KINDS[name].key_variable] = wrong
    launch(desk, code=CredentialsMissing.exit_code)
    desk.tune("doctor", "--debug")
    del desk.extra[KINDS[name].key_variable]


@at()
def test_nothing_to_rent(watched: Watched) -> None:
    desk, _ = watched
    if isinstance(desk.market.fake, FakeRunPod):
        for row in desk.market.fake.catalog:
            row["availability"] = "NONE"
    else:
        for ask in desk.market.fake.asks.values():
            ask.slots = 0
    done = desk.tune("launch", str(desk.recipe()), "--name", "r", "--debug")
    assert done.returncode != 0


@pytest.mark.slow
@at()
def test_renting_whose_answer_is_lost(watched: Watched) -> None:
    desk, _ = watched
    desk.market.faults.on("create", faults.RESET.after_effect())
    launched(desk, in_phase(Phase.RUNNING))


@pytest.mark.slow
@at("runpod")
def test_a_price_that_is_broken(watched: Watched) -> None:
    desk, _ = watched
    desk.market.fake.surcharge = Decimal(5)
    launched(desk, lambda desk: bool(desk.market.log) and len(desk.market.meter.ever()) > 1)


@pytest.mark.slow
@at()
def test_no_way_in_and_stopped_then(watched: Watched) -> None:
    desk, _ = watched
    broken(desk, Quirks(no_ssh=True))
    launched(desk, in_phase(Phase.BOOTSTRAPPING))
    stop(desk)


@pytest.mark.slow
@at("vastai")
def test_a_host_without_sftp(watched: Watched) -> None:
    desk, _ = watched
    broken(desk, Quirks(no_sftp=True))
    launched(desk, in_phase(Phase.RUNNING))


@pytest.mark.slow
@at("runpod")
def test_a_set_up_that_fails(watched: Watched) -> None:
    desk, _ = watched
    launched(desk, lambda desk: len(desk.market.meter.ever()) > 0 and _ended(desk), tune_environment="/nowhere/python")


@pytest.mark.slow
@at("vastai")
def test_a_trainer_that_fails(watched: Watched) -> None:
    desk, _ = watched
    launched(desk, _ended, lora_target_linear=False, lora_target_modules=["no_such_layer"])


def _ended(desk: CloudDesk) -> bool:
    """An attempt has come to its end."""
    return any(a.outcome is not None for a in desk.run("r").attempts)


@pytest.mark.slow
@at("runpod")
def test_a_bucket_that_takes_nothing_any_more(watched: Watched) -> None:
    desk, _ = watched
    launched(desk, at_step(3))
    desk.s3.deny("PutObject", "CreateMultipartUpload")
    home = desk.home_of("r", 1)
    assert home is not None
    now = len(desk.events(home))
    desk.wait_for(lambda: len(desk.events(home)) > now + 20)
    desk.tune("status", "r", "--debug")


@pytest.mark.slow
@at("vastai")
def test_an_instance_that_is_taken(watched: Watched) -> None:
    desk, _ = watched
    launched(desk, at_step(3))
    desk.kill_instance("r", "outbid")
    desk.wait_for(lambda: len(desk.run("r").attempts) > 1 and _run_phase(desk) is Phase.RUNNING)


@pytest.mark.slow
@at("runpod")
@pytest.mark.parametrize("phase", [Phase.PROVISIONING, Phase.BOOTSTRAPPING, Phase.RUNNING])
def test_a_stop_at_each_phase(watched: Watched, phase: Phase) -> None:
    desk, _ = watched
    launched(desk, in_phase(phase))
    stop(desk)
