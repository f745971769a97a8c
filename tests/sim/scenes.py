"""Promises as short stories. Each takes the product, so that a broken copy of it can be put through the same."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

from orchestrator import keys
from orchestrator.errors import NoOfferFits, RecordCorrupt, TerminationUnconfirmed
from orchestrator.types import (
    Instance,
    LaunchSpec,
    Limits,
    Outcome,
    Phase,
    Requirements,
    Token,
    new_namespace,
    token_for,
)
from tests.sim.world import QUICK, Broken, Killed, Product, World

Scene = Callable[[Product], None]
SCENES: dict[str, Scene] = {}

LONG = replace(QUICK, total_steps=1000, checkpoint_steps=10)  # eight hours: it does not finish by itself


def scene(tell: Scene) -> Scene:
    """Collect a story under its name."""
    SCENES[tell.__name__] = tell
    return tell


def running(product: Product, **kwargs: Any) -> World:
    world = World(product, **kwargs)
    world.until(Phase.RUNNING)
    return world


def pass_for(world: World, seconds: float, *, every: float = 30.0) -> None:
    """Somebody looks every so often."""
    end = world.now_s + seconds
    while world.now_s < end:
        world.one_pass()
        world.advance(every)


def true(holds: object, otherwise: object = "") -> None:
    if not holds:
        raise Broken(str(otherwise))


def outcomes_of(world: World) -> list[Outcome | None]:
    return [a.outcome for a in world.run.attempts]


# -- silence ----------------------------------------------------------------------------------------------------------


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


# -- ending -----------------------------------------------------------------------------------------------------------


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


# -- renting ----------------------------------------------------------------------------------------------------------


@scene
def a_crash_between_create_and_its_record_is_mended_by_the_next_pass(product: Product) -> None:
    for when in ("before", "after"):
        world = World(product)
        strangers = _strangers(world)

        def die(at: str, what: str, when: str = when) -> None:
            if (at, what) == (when, "create"):
                raise Killed

        try:
            world.one_pass(die)
        except Killed:
            world.check()
        true(world.settle().phase is Phase.SUCCEEDED)
        true(len(world.rented()) == 1)
        world.advance(1000)
        world.sweep()
        world.advance(1000)
        world.sweep()
        alive = {b.instance_id for b in world.cloud.billing()}
        true(strangers <= alive, "somebody else's instance was ended")


def _strangers(world: World) -> set[str]:
    """What else the account holds: made by hand, by another user of ours, and without any label."""
    spec, offer = LaunchSpec("true", 1e9), world.cloud.offers(Requirements())[0]
    mine = world.runs.namespace()
    labels = [
        "tune-demo",
        "",
        token_for(new_namespace(), world.run_id, 1),
        f"{token_for(mine, world.run_id, 1)}0x",
        f"tune-{mine}",
    ]
    return {world.cloud.create(offer, spec, token=Token(label)).instance_id for label in labels}


@scene
def an_unclear_create_is_settled_by_looking(product: Product) -> None:
    for reply in ("lost", "never"):
        world = World(product)
        world.weather(creates=[reply])
        true(world.settle().phase is Phase.SUCCEEDED)
        true(len(world.rented()) == 1)


@scene
def an_instance_that_shows_up_long_after_its_time_is_ended(product: Product) -> None:
    world = World(product, LONG)
    world.weather(creates=["late"])
    for _ in range(100):  # the promise of one instance cannot hold: the provider broke its own
        world.tolerates_superseded = True
        try:
            world.one_pass()
        except Broken:
            true(world.now_s < 420, "it lives on")
        world.clock.sleep(10)
    living = world.living()
    true(len(living) == 1 and living[0].token.endswith("-a2"), [b.token for b in living])


@scene
def a_thin_market_does_not_use_up_the_attempts(product: Product) -> None:
    world = World(product, limits=Limits(max_attempts=2))
    world.weather(no_capacity=True)
    pass_for(world, 7200, every=20)
    true(world.run.phase in (Phase.PENDING, Phase.TERMINATING), f"{world.run.phase}: {world.run.reason}")
    true(len(world.run.attempts) <= 25, "the record grows for ever")
    true(world.settle().phase is Phase.SUCCEEDED)


@scene
def a_marketplace_that_is_down_does_not_use_up_the_attempts(product: Product) -> None:
    world = World(product, limits=Limits(max_attempts=2))
    world.weather(creates=["unavailable"] * 40)
    true(world.until(Phase.RUNNING, passes=2000).phase is Phase.RUNNING)


@scene
def attempts_are_bounded(product: Product) -> None:
    world = World(product, LONG, Limits(max_attempts=3))
    for _ in range(3):
        world.until(Phase.RUNNING)
        world.vanish()
        world.until(Phase.PENDING, Phase.FAILED)
    true(world.settle().phase is Phase.FAILED)
    true("3 attempts" in world.run.reason, world.run.reason)


@scene
def a_refused_offer_is_followed_by_the_next_one(product: Product) -> None:
    world = World(product)
    world.weather(refused_offers=["offer-0", "offer-1"])
    before = world.now_s
    world.until(Phase.RUNNING)
    true(world.run.attempts[-1].offer.offer_id == "offer-2")
    true(world.now_s - before < 150, "refusals need no waiting")


@scene
def an_offer_above_the_cap_is_never_taken(product: Product) -> None:
    world = World(product, want=Requirements(max_usd_per_hour=Decimal("0.10")))
    pass_for(world, 600)
    true(world.rented() == [])
    true(world.errors and isinstance(world.errors[0], NoOfferFits) and "$0.20" in str(world.errors[0]), world.errors)


@scene
def a_nap_between_intent_and_create_makes_the_intent_void(product: Product) -> None:
    world = World(product)

    def nap(when: str, what: str) -> None:
        if when == "after" and what.startswith("put_if") and world.run.phase is Phase.PROVISIONING:
            world.clock.sleep(40)

    world.one_pass(nap)
    true(world.rented() == [], "an old intent was acted on")
    true(world.settle().phase is Phase.SUCCEEDED)


@scene
def a_stop_between_intent_and_create_is_seen(product: Product) -> None:
    world = World(product)

    def stop(when: str, what: str) -> None:
        if when == "after" and what.startswith("put_if") and not world.run.stop_requested_at:
            world.stop()

    world.one_pass(stop)
    true(world.rented() == [], "it was rented although the user had said stop")
    true(world.settle().phase is Phase.CANCELLED)


@scene
def a_reply_that_comes_after_the_run_has_moved_on_leaves_nothing(product: Product) -> None:
    """The computer sleeps with the create on its way; when it wakes, the run is at its second attempt."""
    world = World(product, LONG)
    world.tolerates_superseded = True

    def sleep(when: str, what: str) -> None:
        if (when, what) == ("before", "create") and len(world.run.attempts) == 1:
            while not (world.run.phase is Phase.RUNNING and len(world.run.attempts) == 2):
                world.one_pass()
                world.clock.sleep(20)

    world.one_pass(sleep)
    pass_for(world, 300, every=10)
    true([b.token[-3:] for b in world.living()] == ["-a2"], [b.token for b in world.living()])


@scene
def what_somebody_rents_while_another_looks_is_no_stray(product: Product) -> None:
    """The record is read, somebody rents, and only then comes the list with an instance that the record knows not of."""
    world = World(product, replace(LONG, list_lag_s=0))

    def rent(when: str, what: str) -> None:
        if when == "read" and what.endswith("run.json") and world.run.phase is Phase.PENDING:
            world.one_pass()

    world.one_pass(rent)
    box = world.box()
    true(box is not None and box.dying_s is None, "it was ended at once")
    world.until(Phase.RUNNING)
    true(len(world.rented()) == 1)


@scene
def twenty_resumes_at_once_rent_one_instance(product: Product) -> None:
    for number in range(5):
        world = World(product)
        if number:
            world.stop()
            world.settle()

        def resume(_: int, world: World = world) -> None:
            world.reopen()
            for _ in range(6):
                product.reconcile.reconcile(world.context(), world.run_id)

        with ThreadPoolExecutor(20) as pool:
            list(pool.map(resume, range(20)))
        world.check()
        true(len(world.living()) == 1, len(world.living()))
        true(world.run.resumes == (1 if number else 0), world.run.resumes)
        true(world.settle().phase is Phase.SUCCEEDED)


# -- getting started --------------------------------------------------------------------------------------------------


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


# -- money ------------------------------------------------------------------------------------------------------------


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


# -- several runs -----------------------------------------------------------------------------------------------------


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


# -- sweep ------------------------------------------------------------------------------------------------------------


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
