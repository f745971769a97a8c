"""Several runs together, and the sweep over what nobody owns."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from orchestrator import keys
from orchestrator.errors import RecordCorrupt, TerminationUnconfirmed
from orchestrator.types import (
    Instance,
    LaunchSpec,
    Phase,
    Requirements,
    token_for,
)
from tests.sim.scenes.telling import LONG, pass_for, running, scene, true
from tests.sim.world import QUICK, Broken, Product, World


@scene
def one_unreadable_run_does_not_stop_the_others(product: Product) -> None:
    world = World(product)
    other = world.new_run("other")
    world.runs.create(other)
    world.bucket.put(keys.record(other.run_id), b'{"half": ')
    done = product.reconcile.reconcile_all(world.context())
    true(set(done.errors) == {other.run_id} and isinstance(done.errors[other.run_id], RecordCorrupt), done.errors)
    true(world.run.phase is Phase.PROVISIONING, world.run.phase)
    true(world.bucket.get(keys.record(other.run_id)).data == b'{"half": ', "it was overwritten")


@scene
def a_pass_over_many_runs_asks_for_one_list(product: Product) -> None:
    world = World(product)
    for n in range(5):
        world.runs.create(world.new_run(f"run {n}"))
    lists = 0
    find = world.cloud.find

    def counted(**kwargs: Any) -> list[Instance]:
        nonlocal lists
        lists += 1
        return list(find(**kwargs))

    world.cloud.find = counted  # type: ignore[method-assign]
    done = product.reconcile.reconcile_all(world.context())
    true(len(done.passes) == 6 and not done.errors, done.errors)
    true(lists == 1, lists)


@scene
def a_marker_left_by_a_crash_is_removed(product: Product) -> None:
    world = World(product)
    world.stop()
    world.settle()
    world.bucket.put(keys.active(world.run_id), b"")
    product.reconcile.reconcile_all(world.context())
    true(world.runs.active() == [])


def _orphan(world: World, attempt: int = 7, run_id: Any = None) -> str:
    token = token_for(world.runs.namespace(), run_id or world.run_id, attempt)
    offer = world.cloud.offers(Requirements())[0]
    created = world.cloud.create(offer, LaunchSpec("true", 1e9), token=token)
    world.clock.sleep(30)
    return created.instance_id


def _lives(world: World, instance_id: str) -> bool:
    return instance_id in {b.instance_id for b in world.cloud.billing()}


@scene
def the_sweep_ends_only_what_it_has_seen_before(product: Product) -> None:
    world = World(product)
    world.stop()
    world.settle()
    orphans = [_orphan(world), _orphan(world, run_id=world.new_run("never stored").run_id)]
    first = world.sweep()
    true(len(first.suspects) == 2 and all(_lives(world, o) for o in orphans), "ended at first sight")
    world.clock.sleep(60)
    world.sweep()
    true(all(_lives(world, o) for o in orphans), "ended before it was quiet")
    world.clock.sleep(300)
    report = world.sweep()
    true(len(report.terminated) == 2 and not any(_lives(world, o) for o in orphans), report)
    true(list(world.bucket.scan(keys.SWEEP)) == [], "notes were left behind")


@scene
def the_sweep_ends_what_a_later_attempt_has_replaced(product: Product) -> None:
    world = running(product, climate=LONG)
    world.outbid()
    world.until(Phase.TERMINATING)
    world.until(Phase.RUNNING)
    world.tolerates_superseded = True
    offer = world.cloud.offers(Requirements())[0]
    old = world.cloud.create(offer, LaunchSpec("true", 1e9), token=token_for(world.runs.namespace(), world.run_id, 1))
    world.clock.sleep(30)
    product.sweep.sweep(world.context(), ["sim"], clock=world.clock)
    world.clock.sleep(300)
    product.sweep.sweep(world.context(), ["sim"], clock=world.clock)
    true(not _lives(world, old.instance_id), "it lives on")
    true(len(world.living()) == 1)


@scene
def an_unreadable_record_proves_nothing_to_the_sweep(product: Product) -> None:
    world = running(product, climate=LONG)
    box = world.box()
    assert box is not None
    record = world.bucket.get(keys.record(world.run_id)).data
    world.bucket.put(keys.record(world.run_id), record[:100])
    for _ in range(3):
        report = product.sweep.sweep(world.context(), ["sim"], clock=world.clock)
        world.clock.sleep(400)
    true(_lives(world, box.instance_id), "a run's instance was ended because its record was torn")
    true(any(box.instance_id in t for t in report.troubles), report.troubles)


@scene
def the_sweep_does_not_say_gone_before_it_is(product: Product) -> None:
    world = World(product, replace(QUICK, terminate_lag_s=600))
    world.stop()
    world.settle()
    orphan = _orphan(world)
    world.sweep()
    world.clock.sleep(300)
    report = world.sweep(confirm_s=60)
    try:
        report.check()
    except TerminationUnconfirmed as e:
        true(orphan in e.message and "https://" in e.hint, e)
    else:
        raise Broken("an instance that is still billing was reported as gone")


@scene
def the_sweep_never_touches_a_run_that_is_well(product: Product) -> None:
    world = running(product, climate=LONG)
    for _ in range(4):
        world.sweep()
        pass_for(world, 300)
    true(world.run.phase is Phase.RUNNING and len(world.rented()) == 1)


@scene
def the_sweep_names_records_that_nobody_backs(product: Product) -> None:
    world = running(product, climate=LONG)
    world.vanish()
    true(world.sweep().unbacked == [world.run_id])
    world.advance(timedelta(minutes=5).total_seconds())
    true(world.settle_long().phase is Phase.RUNNING)
