"""Silence, absence and loss: what proves something, and what does not."""

from __future__ import annotations

from orchestrator.types import (
    Outcome,
    Phase,
)
from tests.sim.scenes.telling import LONG, outcomes_of, pass_for, running, scene, true
from tests.sim.world import Product


@scene
def a_control_plane_hiccup_is_not_a_preemption(product: Product) -> None:
    world = running(product, climate=LONG)
    world.weather(api_down=True)
    world.partition()
    pass_for(world, 600)
    world.fair()
    pass_for(world, 120)
    true(world.run.phase is Phase.RUNNING, world.run.phase)
    true(len(world.rented()) == 1)
    box = world.box()
    true(box is not None and box.dying_s is None, "the healthy instance was ended")


@scene
def a_second_outage_gets_the_full_grace_again(product: Product) -> None:
    world = running(product, climate=LONG)
    for _ in range(3):
        world.partition()
        pass_for(world, 1500)
        world.partition(on=False)
        pass_for(world, 120)
    true(world.run.phase is Phase.RUNNING, f"{world.run.phase}: {world.run.attempts[-1].reason}")
    true(len(world.rented()) == 1)


@scene
def an_instance_that_answers_is_alive_even_when_it_cannot_store_anything(product: Product) -> None:
    world = running(product, climate=LONG)
    world.weather(bucket_down=True)
    pass_for(world, 7200, every=120)
    true(world.run.phase is Phase.RUNNING, world.run.phase)


@scene
def silence_on_both_lines_for_half_an_hour_is_unreachable(product: Product) -> None:
    world = running(product, climate=LONG)
    world.partition()
    pass_for(world, 1500)
    true(world.run.phase is Phase.RUNNING, "given up too early")
    pass_for(world, 900)
    true(world.run.attempts[0].outcome is Outcome.UNREACHABLE, outcomes_of(world))
    world.until(Phase.RUNNING)
    true(world.run.attempts[-1].number == 2)


@scene
def an_instance_whose_agent_is_dead_bills_half_an_hour_and_not_a_day(product: Product) -> None:
    world = running(product, climate=LONG)
    world.kill_agent()
    pass_for(world, 1500)
    true(world.run.phase is Phase.RUNNING, "given up too early")
    pass_for(world, 900)
    true(world.run.attempts[0].outcome is Outcome.UNREACHABLE, outcomes_of(world))
    world.until(Phase.RUNNING)
    true(world.run.attempts[-1].offer.host_id != world.run.attempts[0].offer.host_id, "back on the host to blame")


@scene
def what_the_provider_says_is_gone_is_replaced_at_once(product: Product) -> None:
    world = running(product, climate=LONG)
    world.advance(300)
    world.vanish()
    before = world.now_s
    world.until(Phase.PROVISIONING)
    true(world.now_s - before < 120, world.now_s - before)


@scene
def one_empty_list_proves_nothing(product: Product) -> None:
    world = running(product, climate=LONG)
    world.weather(lists_nothing=True)
    pass_for(world, 600)
    true(world.run.phase is Phase.RUNNING, world.run.phase)
    true(len(world.run.attempts) == 1)


@scene
def an_outbid_instance_is_destroyed_not_forgotten(product: Product) -> None:
    world = running(product)
    world.advance(200)
    world.outbid()
    true(world.settle().phase is Phase.SUCCEEDED, world.run.phase)
    true(outcomes_of(world) == [Outcome.PREEMPTED, Outcome.SUCCEEDED], outcomes_of(world))
    true(world.living() == [])


@scene
def an_outbid_instance_that_wakes_up_is_destroyed_all_the_same(product: Product) -> None:
    world = running(product, climate=LONG)
    world.outbid()
    world.weather(terminate_broken=True)
    pass_for(world, 300)
    world.wake()
    pass_for(world, 300)
    true(len(world.rented()) == 1, "a second one was rented beside it")
    world.weather(terminate_broken=False)
    world.until(Phase.RUNNING)
    true(len(world.living()) == 1)
