"""The sweep's corners; its promises about owners are told in scenes.py."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import keys
from orchestrator.errors import TerminationUnconfirmed, UsageError
from orchestrator.providers.sim import SimCloud
from orchestrator.sweep import sweep, sweep_without_storage
from orchestrator.types import LaunchSpec, Namespace, Requirements, Token, new_namespace, new_run_id, token_for
from tests.sim.world import START, World

SPEC = LaunchSpec("true", deadline_s=1e9)


def rent(cloud: SimCloud, token: str) -> str:
    return cloud.create(cloud.offers(Requirements())[0], SPEC, token=Token(token)).instance_id


def orphan(world: World, namespace: Namespace | None = None) -> str:
    found = rent(world.cloud, token_for(namespace or world.namespace, new_run_id(START), 1))
    world.clock.sleep(60)
    return found


def alive(world: World) -> set[str]:
    return {b.instance_id for b in world.cloud.billing()}


class TestWithoutStorage:
    def test_it_wants_to_be_told_that_it_may(self) -> None:
        world = World()
        kept = orphan(world)
        with pytest.raises(UsageError) as caught:
            sweep_without_storage([world.cloud], world.namespace, clock=world.clock, consent=False)
        assert str(world.namespace) in caught.value.message
        assert alive(world) == {kept}

    def test_it_ends_the_namespace_and_nothing_else(self) -> None:
        world = World()
        strangers = {orphan(world, new_namespace()), rent(world.cloud, "tune-demo"), rent(world.cloud, "")}
        ours = [orphan(world), orphan(world)]
        report = sweep_without_storage([world.cloud], world.namespace, clock=world.clock, consent=True)
        assert sorted(o.instance.instance_id for o in report.terminated) == sorted(ours)
        assert alive(world) == strangers
        report.check()

    def test_a_silent_marketplace_is_told(self) -> None:
        world = World()
        world.weather(api_down=True)
        report = sweep_without_storage([world.cloud], world.namespace, clock=world.clock, consent=True)
        assert report.troubles == ["sim does not list its instances: the marketplace does not answer"]


class TestNotes:
    def test_they_are_shared_so_that_two_computers_count_as_two_looks(self) -> None:
        world = World()
        found = orphan(world)
        sweep(world.context(), ["sim"], clock=world.clock)
        world.clock.sleep(300)
        assert len(sweep(world.context(), ["sim"], clock=world.clock).terminated) == 1
        assert found not in alive(world)

    def test_a_dry_run_only_tells(self) -> None:
        world = World()
        found = orphan(world)
        for _ in range(2):
            report = sweep(world.context(), ["sim"], clock=world.clock, dry_run=True)
            world.clock.sleep(300)
        assert [o.instance.instance_id for o in report.suspects] == [found]
        assert "no record" in report.suspects[0].reason
        assert alive(world) == {found}

    def test_an_instance_that_is_gone_is_forgotten(self) -> None:
        world = World()
        found = orphan(world)
        sweep(world.context(), ["sim"], clock=world.clock)
        assert len(list(world.bucket.scan(keys.SWEEP))) == 1
        with world.cloud.turn() as state:
            state.boxes[0].gone_s = world.clock.now().timestamp()
        sweep(world.context(), ["sim"], clock=world.clock)
        assert list(world.bucket.scan(keys.SWEEP)) == []
        assert found not in alive(world)

    def test_without_a_list_the_notes_stay(self) -> None:
        world = World()
        orphan(world)
        sweep(world.context(), ["sim"], clock=world.clock)
        world.weather(api_down=True)
        report = sweep(world.context(), ["sim"], clock=world.clock)
        assert report.troubles
        assert len(list(world.bucket.scan(keys.SWEEP))) == 1

    @pytest.mark.parametrize("instance_id", ["i-1", "a/b", "ü %2F", "..", "x" * 100])
    def test_any_provider_and_id_make_a_key_that_reads_back(self, instance_id: str) -> None:
        assert keys.parse_suspect(keys.suspect("sim", instance_id)) == ("sim", instance_id)


def test_an_end_that_cannot_be_confirmed_exits_21_with_ids_and_where_to_look() -> None:
    world = World()
    found = orphan(world)
    sweep(world.context(), ["sim"], clock=world.clock)
    world.clock.sleep(300)
    world.weather(terminate_broken=True)
    report: Any = sweep(world.context(), ["sim"], clock=world.clock)
    with pytest.raises(TerminationUnconfirmed) as caught:
        report.check()
    assert caught.value.exit_code == 21
    assert found in caught.value.message
    assert "https://" in caught.value.hint
    world.weather(terminate_broken=False)
    sweep(world.context(), ["sim"], clock=world.clock).check()
    assert alive(world) == set()
