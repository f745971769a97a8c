"""What was told to end and has not gone is said aloud, with where to look, and never with exit code 0."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.cli import app, drive, follow
from orchestrator.cli.session import Session
from orchestrator.sweep import Orphan, SweepReport
from orchestrator.types import Attempt, Instance, LaunchSpec, Phase, Requirements, RunId, Token, new_run_id, token_for
from tests.cli.simdesk import SimDesk

PAGE = "https://sim.invalid/sim-1"


@pytest.fixture
def deaf(sim: SimDesk) -> Iterator[SimDesk]:
    """A marketplace that answers every terminate with an error, until the test is over."""
    cloud = sim.cloud()._inner
    with cloud.turn() as state:
        state.weather.terminate_broken = True
    yield sim
    with cloud.turn() as state:
        state.weather.terminate_broken = False
        state.boxes.clear()


def rented(sim: SimDesk, run_id: RunId) -> Instance:
    cloud = sim.cloud()
    offer = cloud.offers(Requirements())[0]
    return cloud.create(offer, LaunchSpec("true", 86_400), token=token_for(sim.runs.namespace(), run_id, 1))


def ending(sim: SimDesk, *, since: timedelta) -> None:
    """A run that was stopped so long ago, and whose instance is still there."""
    began = sim.runs.store.now() - since
    run_id = new_run_id(began)
    instance = rented(sim, run_id)
    attempt = Attempt(
        number=1,
        token=Token(instance.token),
        provider="sim",
        offer=sim.cloud().offers(Requirements())[0],
        intended_at=began,
        quiet_after=began,
        instance_id=instance.instance_id,
        terminate_asked_at=began,
    )
    sim.a_run(
        "stuck",
        created_at=began,
        run_id=run_id,
        phase=Phase.TERMINATING,
        attempts=(attempt,),
        stop_requested_at=began,
    )


@pytest.mark.parametrize("which", ["stuck", "--all"])
def test_a_pass_over_what_does_not_go_exits_21_and_says_where_to_look(deaf: SimDesk, which: str) -> None:
    ending(deaf, since=timedelta(minutes=20))
    done = deaf.tune("reconcile", which)
    assert done.returncode == 21, done.stderr
    assert "sim-1 may still be billing" in done.stderr
    assert PAGE in done.stderr


def test_a_pass_over_what_was_just_told_to_go_exits_0(deaf: SimDesk) -> None:
    ending(deaf, since=timedelta(0))
    done = deaf.tune("reconcile", "--all")
    assert done.returncode == 0, done.stderr


def test_an_orphan_that_does_not_go_makes_the_pass_of_cron_exit_21(
    sim: SimDesk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    orphan = Orphan(rented(sim, RunId("0000000000")), "there is no record of it")

    def nobody_goes(*_: Any, **__: Any) -> SweepReport:  # the real one waits two minutes for it
        return SweepReport(unconfirmed=[orphan])

    monkeypatch.setattr(Session, "sweep", nobody_goes)
    assert app.run(["--config", str(sim.config), "reconcile", "--all"]) == 21
    assert PAGE in capsys.readouterr().err
    with sim.cloud()._inner.turn() as state:
        state.boxes.clear()


def test_a_stop_that_gives_up_waiting_names_the_page_of_the_instance(
    deaf: SimDesk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow, "UNCONFIRMED_AFTER_S", 0.0)
    monkeypatch.setattr(drive, "EMBEDDED_WAIT_S", 0.05)
    ending(deaf, since=timedelta(minutes=20))
    assert app.run(["--config", str(deaf.config), "stop", "stuck"]) == 21
    assert f"look at {PAGE};" in capsys.readouterr().err


def test_every_later_command_asks_again_and_warns_until_it_has_gone(deaf: SimDesk) -> None:
    ending(deaf, since=timedelta(minutes=20))
    assert deaf.tune("reconcile", "--all").returncode == 21
    later = deaf.tune("ls")
    assert later.returncode == 0
    assert "WARNING: instance" in later.stderr
    assert "may still be billing" in later.stderr
    with deaf.cloud()._inner.turn() as state:
        state.weather.terminate_broken = False
    deaf.wait_for(lambda: "WARNING" not in deaf.tune("ls").stderr)
