"""Getting started, and what it may cost."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from orchestrator import keys
from orchestrator.types import (
    Limits,
    Outcome,
    Phase,
)
from tests.sim.scenes.telling import LONG, running, scene, true
from tests.sim.world import Killed, Product, World


@scene
def an_instance_that_never_boots_is_replaced_on_another_host(product: Product) -> None:
    world = World(product)
    world.weather(never_boots=True)
    world.until(Phase.TERMINATING, passes=2000)
    true(world.run.attempts[0].outcome is Outcome.UNREACHABLE)
    true(world.settle().phase is Phase.SUCCEEDED)
    hosts = [a.offer.host_id for a in world.run.attempts]
    true(len(set(hosts)) == 2, hosts)


@scene
def an_instance_that_cannot_be_reached_is_replaced(product: Product) -> None:
    world = World(product)
    world.weather(remote_down=True)
    world.until(Phase.TERMINATING, passes=2000)
    true(world.run.attempts[0].outcome is Outcome.UNREACHABLE)
    true(world.settle().phase is Phase.SUCCEEDED)


@scene
def an_orchestrator_that_dies_while_bootstrapping_is_replaced_when_its_claim_runs_out(product: Product) -> None:
    world = World(product)

    def die(when: str, what: str) -> None:
        if (when, what) == ("before", "remote put agent.sh"):
            raise Killed

    for _ in range(40):
        try:
            world.go_on(die)
        except Killed:
            break
        world.advance(5)
    true(world.run.phase is Phase.BOOTSTRAPPING)
    before = world.now_s
    world.until(Phase.RUNNING)
    true(100 < world.now_s - before < 250, world.now_s - before)


@scene
def a_setup_that_fails_on_two_hosts_fails_the_run(product: Product) -> None:
    world = World(product)
    for _ in range(2):
        world.until(Phase.RUNNING)
        world.fail(Outcome.SETUP_FAILED)
        world.until(Phase.PENDING, Phase.FAILED)
    true(world.run.phase is Phase.FAILED, world.run.phase)
    true(world.run.outcome is Outcome.SETUP_FAILED)
    true(len({a.offer.host_id for a in world.run.attempts}) == 2, "the same host twice")


@scene
def a_users_error_is_not_paid_for_twice(product: Product) -> None:
    for outcome in (Outcome.USER_ERROR, Outcome.OOM, Outcome.DIVERGED, Outcome.HUNG, Outcome.LOST_UPLOAD):
        world = running(product)
        world.fail(outcome)
        true(world.settle().phase is Phase.FAILED, world.run.phase)
        true(len(world.rented()) == 1, f"{outcome} was tried again")
        true(world.run.outcome is outcome)


@scene
def a_host_fault_is_recovered_elsewhere(product: Product) -> None:
    world = running(product)
    world.fail(Outcome.HOST_FAULT)
    true(world.settle().phase is Phase.SUCCEEDED)
    true(len({a.offer.host_id for a in world.run.attempts}) == 2, "the same host twice")


@scene
def the_budget_ends_the_run_saved_and_a_resume_grants_it_again(product: Product) -> None:
    world = running(product, climate=LONG, limits=Limits(budget_usd=Decimal("0.10")))
    world.until(Phase.FAILED, passes=400)
    true(world.run.outcome is Outcome.BUDGET, world.run.outcome)
    true(world.runs.checkpoints(world.run_id), "nothing was saved")
    spent = world.now_s
    world.reopen()
    world.until(Phase.RUNNING)
    world.until(Phase.FAILED, passes=400)
    true(world.now_s - spent > 1500, "the second allowance was cut short")


@scene
def the_instance_itself_keeps_to_the_budget_when_nobody_looks(product: Product) -> None:
    world = running(product, climate=LONG, limits=Limits(budget_usd=Decimal("0.10")))
    world.advance(86_400)
    true(world.living() == [])
    cost = sum(((b.gone_s or 0) - b.created_s) / 3600 * float(b.offer.usd_per_hour) for b in world.rented())
    true(cost < 0.13, cost)


@scene
def a_deadline_ends_the_run(product: Product) -> None:
    world = running(product, climate=LONG, limits=Limits(deadline_s=3600))
    world.until(Phase.FAILED, passes=1000)
    true(world.run.outcome is Outcome.BUDGET and "deadline" in world.run.reason, world.run.reason)
    true(world.now_s < 3900, world.now_s)


@scene
def what_ended_attempts_left_is_pruned_and_the_newest_checkpoints_stay(product: Product) -> None:
    world = running(product, climate=replace(LONG, checkpoint_steps=2))
    world.one_pass()
    for _ in range(6):
        world.advance(70)
    stray = keys.blob(world.run_id, 1, "f" * 64)
    world.bucket.put(stray, b"half an upload")
    world.vanish()
    before = world.runs.checkpoints(world.run_id)
    world.until(Phase.PROVISIONING)
    after = world.runs.checkpoints(world.run_id)
    true([c.key for c in after] == [c.key for c in before][:2], f"{len(before)} before, {len(after)} after")
    stored = {i.key for i in world.bucket.scan(keys.blobs(world.run_id, 1))}
    true(stored == {f.key for c in after for f in world.runs.manifest(c.key).files}, stored)
