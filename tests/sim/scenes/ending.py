"""Ending: by the user, by the recipe, and what the agent leaves behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.types import (
    Outcome,
    Phase,
)
from tests.sim.scenes.telling import LONG, pass_for, running, scene, true
from tests.sim.world import QUICK, Product, World


@scene
def a_terminate_that_fails_keeps_the_run_terminating_and_says_so(product: Product) -> None:
    world = running(product, climate=LONG)
    world.weather(terminate_broken=True)
    world.climate = replace(LONG, ends_itself=False)
    world.cloud.climate = world.climate
    world.stop(at_once=True)
    pass_for(world, 1800)
    true(world.run.phase is Phase.TERMINATING, world.run.phase)
    box = world.box()
    assert box is not None
    told = [t for t in world.troubles if "https://" in t]
    true(told and f"{box.instance_id} may still be billing" in told[-1], world.troubles[-3:])
    world.weather(terminate_broken=False)
    true(world.settle().phase is Phase.CANCELLED)


@scene
def stopping_what_is_already_gone_is_no_error(product: Product) -> None:
    world = running(product, climate=LONG)
    world.vanish()
    world.stop()
    true(world.settle().phase is Phase.CANCELLED)
    true(world.errors == [], world.errors)


@scene
def a_stop_lets_the_agent_save_first(product: Product) -> None:
    world = running(product, climate=LONG)
    world.advance(500)
    world.stop()
    true(world.settle().phase is Phase.CANCELLED)
    saved = world.runs.checkpoints(world.run_id)
    true(saved and saved[0].step % 10, f"nothing was saved at the stop: {saved}")


@scene
def a_stop_at_any_moment_leaves_nothing_within_two_minutes(product: Product) -> None:
    for at in range(0, 240, 12):
        for at_once in (False, True):
            world = World(product, LONG)
            while world.now_s < at:
                world.one_pass()
                world.advance(4)
            world.stop(at_once=at_once)
            pass_for(world, 120, every=4)
            true(world.living() == [], f"stopped at {at} s, and {world.living()} is there two minutes later")
            pass_for(world, 120, every=4)
            true(world.run.phase is Phase.CANCELLED, world.run.phase)


@scene
def a_stop_while_the_list_is_empty_by_mistake_ends_the_instance_by_its_id(product: Product) -> None:
    world = running(product, climate=replace(LONG, ends_itself=False))
    world.weather(lists_nothing=True)
    world.stop(at_once=True)
    pass_for(world, 300)
    true(world.living() == [], "it lives on")
    true(world.settle().phase is Phase.CANCELLED)


@scene
def a_stop_while_the_reply_to_a_create_is_lost_finds_the_instance(product: Product) -> None:
    world = World(product, LONG)
    world.weather(creates=["lost"])
    world.one_pass()
    world.stop()
    true(world.settle().phase is Phase.CANCELLED)
    true(world.living() == [])


@scene
def a_late_exit_record_turns_a_loss_into_success(product: Product) -> None:
    world = running(product)
    world.advance(60)
    world.partition()
    world.finish()
    world.weather(terminate_broken=True)
    world.until(Phase.TERMINATING)
    world.partition(on=False)
    world.weather(terminate_broken=False)
    world.advance(1)
    true(world.settle().phase is Phase.SUCCEEDED, world.run.phase)
    true(len(world.rented()) == 1, "it was run again")


@scene
def an_artifact_counts_although_its_agent_died_before_the_exit_record(product: Product) -> None:
    for ends_itself in (True, False):
        world = running(product, climate=replace(QUICK, ends_itself=ends_itself))
        world.die_before_exit()
        world.finish()
        true(world.settle().phase is Phase.SUCCEEDED, world.run.phase)
        true(len(world.rented()) == 1, "it was run again")


@scene
def an_exit_record_counts_more_than_a_stop_or_a_loss(product: Product) -> None:
    for happening in (World.stop, World.vanish, World.outbid):
        world = running(product)
        world.finish()
        happening(world)
        true(world.settle().phase is Phase.SUCCEEDED, world.run.phase)


@scene
def an_instance_whose_agent_ended_it_is_not_taken_for_lost(product: Product) -> None:
    """It writes its record and is gone between two questions of one look."""
    world = running(product, climate=LONG)
    world.advance(60)
    asked = 0
    find, get = world.cloud.find, world.cloud.get

    def find_after_the_end(**kwargs: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            world.fail(Outcome.USER_ERROR)
            world.advance(1)
        return find(**kwargs)

    world.cloud.find = find_after_the_end  # type: ignore[method-assign]
    world.one_pass()
    world.cloud.find, world.cloud.get = find, get  # type: ignore[method-assign]
    true(world.run.attempts[-1].outcome is Outcome.USER_ERROR, world.run.attempts[-1].outcome)
