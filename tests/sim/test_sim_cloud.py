"""The simulated cloud as a user meets it: kept in a file, shared by separate commands, on a person's clock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator import codec
from orchestrator.clock import SystemClock
from orchestrator.errors import ProviderUnavailable, RemoteError, UsageError
from orchestrator.observe import Context
from orchestrator.providers.registry import ProviderSettings
from orchestrator.providers.sim import WATCHABLE, SimCloud, build
from orchestrator.providers.sim.state import CloudState
from orchestrator.reconcile import reconcile
from orchestrator.storage.memory import MemoryStore
from orchestrator.storage.open import open_store
from orchestrator.storage.runs import RunStore
from orchestrator.types import LaunchSpec, Phase, Requirements, Run, Token, new_namespace, new_run_id, token_for
from tests.sim.world import Stepped

SPEC = LaunchSpec("true", deadline_s=3600)


def cloud(path: Path, clock: Stepped) -> SimCloud:
    store = MemoryStore(clock)
    return SimCloud(clock, lambda _url: store, climate=WATCHABLE, path=path / "sim.json")


def rent(sim: SimCloud, token: Token) -> str:
    return sim.create(sim.offers(Requirements())[0], SPEC, token=token).instance_id


def test_separate_commands_see_the_same_cloud(tmp_path: Path) -> None:
    clock, namespace = Stepped(), new_namespace()
    token = token_for(namespace, new_run_id(clock.now()), 1)
    rented = rent(cloud(tmp_path, clock), token)
    other = cloud(tmp_path, clock)
    assert [i.instance_id for i in other.find(namespace=namespace)] == [rented]
    assert rent(other, Token("another")) != rented, "ids are never given twice"


def test_weather_made_by_one_command_is_felt_by_the_next(tmp_path: Path) -> None:
    clock = Stepped()
    with cloud(tmp_path, clock).turn() as state:
        state.weather.api_down = True
    with pytest.raises(ProviderUnavailable):
        cloud(tmp_path, clock).offers(Requirements())


def test_what_is_long_gone_is_forgotten(tmp_path: Path) -> None:
    clock = Stepped()
    rent(cloud(tmp_path, clock), Token("x"))
    clock.sleep(10_000)  # beyond its life
    assert cloud(tmp_path, clock).billing() == []
    clock.sleep(100_000)
    assert cloud(tmp_path, clock).billing() == []
    kept = codec.load(CloudState, (tmp_path / "sim.json").read_bytes(), where="sim.json")
    assert (kept.boxes, kept.rented) == ([], 1)


def test_a_torn_file_is_told_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "sim.json").write_bytes(b'{"boxes": [')
    with pytest.raises(ProviderUnavailable) as caught:
        cloud(tmp_path, Stepped()).offers(Requirements())
    assert "sim.json" in caught.value.message
    assert caught.value.hint
    assert (tmp_path / "sim.json").read_bytes() == b'{"boxes": ['


def test_an_instance_answers_only_when_it_is_up_and_connected(tmp_path: Path) -> None:
    clock, namespace = Stepped(), new_namespace()
    sim = cloud(tmp_path, clock)
    rent(sim, token_for(namespace, new_run_id(clock.now()), 1))
    remote = sim.connect(sim.find(namespace=namespace)[0])
    with pytest.raises(RemoteError):
        remote.put("a", b"")
    clock.sleep(WATCHABLE.boot_s)
    remote.put("a", b"x")
    assert remote.run(["true"]).exit_code == 0
    with sim.turn() as state:
        state.boxes[0].partitioned = True
    with pytest.raises(RemoteError):
        remote.run(["true"])


@pytest.mark.parametrize(
    ("options", "complaint"), [({"stepps": "3"}, "no option 'stepps'"), ({"total_steps": "many"}, "not a number")]
)
def test_a_wrong_option_is_a_usage_error(tmp_path: Path, options: Mapping[str, str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        build(ProviderSettings(tmp_path, options))


def test_a_run_on_it_comes_to_its_end_on_a_persons_clock(tmp_path: Path) -> None:
    """Every pass is a command of its own, as cron would have it; nothing is kept in between but the two folders."""
    options = {"total_steps": "4", "step_s": "0.02", "boot_s": "0.05", "terminate_lag_s": "0.05", "heartbeat_s": "0.05"}
    storage, clock = f"file://{tmp_path / 'store'}", SystemClock()
    runs = RunStore(open_store(storage))
    run = Run(
        run_id=new_run_id(clock.now()),
        name="simulated",
        namespace=runs.namespace(),
        created_at=runs.store.now(),
        recipe_sha256="r" * 64,
        data_sha256="d" * 64,
        provider="sim",
    )
    runs.create(run)
    until = clock.monotonic() + 60
    while not run.phase.is_terminal and clock.monotonic() < until:
        bound = build(ProviderSettings(tmp_path / "state", options))
        context = Context(RunStore(open_store(storage)), lambda _name, bound=bound: bound, "true", b"#!/bin/sh\n")  # type: ignore[misc]
        done = reconcile(context, run.run_id)
        run = done.run
        clock.sleep(min(done.wait_s, 0.3))
    assert run.phase is Phase.SUCCEEDED, run.reason
    assert runs.artifact(run.run_id) is not None
    assert build(ProviderSettings(tmp_path / "state", options)).provider.find(namespace=run.namespace) == []
    assert run.attempts[0].ended_at is not None
