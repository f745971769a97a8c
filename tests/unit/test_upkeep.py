"""What a pass does beside moving a run: keys, bills, and machines that have disappointed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from orchestrator import keys, upkeep
from orchestrator.errors import ProviderUnavailable, RemoteError
from orchestrator.observe import Context
from orchestrator.providers.registry import Bound
from orchestrator.providers.sim import Climate, SimCloud
from orchestrator.remote.base import Completed
from orchestrator.storage import hosts
from orchestrator.storage.grants import Grant
from orchestrator.storage.memory import MemoryStore
from orchestrator.storage.runs import RunStore
from orchestrator.types import Bill, Instance, InstanceId, InstanceState, Offer, Outcome, Phase, Run
from tests.unit.cases import RUN_ID, attempt, ended, instance, run

START = datetime(2026, 12, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()

    def sleep(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


class Door:
    """A way in that keeps what was put through it."""

    def __init__(self, is_shut: bool = False) -> None:
        self.is_shut, self.put_there, self.closed = is_shut, {}, 0
        self.modes: dict[str, int] = {}

    put_there: dict[str, bytes]

    def run(self, argv: Sequence[str], **_: Any) -> Completed:
        return Completed(0, b"", b"")

    def put(self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = 120) -> None:
        if self.is_shut:
            raise RemoteError("no answer")
        self.put_there[path], self.modes[path] = data, mode

    def close(self) -> None:
        self.closed += 1


@dataclass
class Till:
    """An account that charges what it is told, late."""

    bills: dict[str, Bill | None] = field(default_factory=dict)
    is_down: bool = False
    asked: list[str] = field(default_factory=list)

    def balance_usd(self, *, timeout_s: float = 30) -> Decimal | None:
        return None

    def billed(
        self, instance_id: InstanceId, *, since: datetime, until: datetime, timeout_s: float = 30
    ) -> Bill | None:
        self.asked.append(instance_id)
        if self.is_down:
            raise ProviderUnavailable("no answer")
        return self.bills.get(instance_id)

    def rebid(self, instance_id: InstanceId, usd_per_hour: Decimal, *, timeout_s: float = 30) -> None: ...


@dataclass
class Desk:
    clock: Clock
    store: MemoryStore
    runs: RunStore
    door: Door
    till: Till
    context: Context

    def keep(self, wanted: Run) -> Run:
        self.runs.create(wanted)
        return wanted


@pytest.fixture
def desk() -> Desk:
    clock = Clock()
    store = MemoryStore(clock)
    runs, door, till = RunStore(store), Door(), Till()
    cloud = SimCloud(clock, lambda _url: store, climate=Climate())
    bound = Bound(cloud, lambda _instance: door, account=till, is_elsewhere=True)
    context = Context(
        runs,
        lambda _name: bound,
        start_command="",
        agent_script=b"",
        secrets={"HF_TOKEN": "hf", "WANDB_API_KEY": "wb"},
        grant=lambda _: Grant("id", "secret", "token", clock.now() + timedelta(hours=12)),
    )
    return Desk(clock, store, runs, door, till, context)


def test_a_host_that_let_a_run_down_is_avoided_by_everybody_for_a_day(desk: Desk) -> None:
    before = run(Phase.RUNNING, attempt(host_id="m-7"))
    after = run(Phase.TERMINATING, attempt(host_id="m-7", outcome=Outcome.HOST_FAULT, reason="1 of 2 GPUs"))
    assert upkeep.remember_hosts(desk.context, before, after) == []
    provider = after.attempts[0].offer.provider
    assert hosts.avoided(desk.store) == {(provider, "m-7")}
    assert desk.store.get(keys.bad_host(provider, "m-7")).data == b"1 of 2 GPUs"
    desk.clock.sleep(25 * 3600)
    assert hosts.avoided(desk.store) == frozenset()
    assert list(desk.store.scan(keys.HOSTS)) == [], "the note is gone, too"


@pytest.mark.parametrize("outcome", [Outcome.PREEMPTED, Outcome.SETUP_FAILED, Outcome.USER_ERROR, Outcome.OOM])
def test_a_host_is_not_blamed_for_what_others_did(desk: Desk, outcome: Outcome) -> None:
    after = run(Phase.TERMINATING, attempt(host_id="m-7", outcome=outcome))
    upkeep.remember_hosts(desk.context, run(Phase.RUNNING, attempt(host_id="m-7")), after)
    assert hosts.avoided(desk.store) == frozenset()


def test_a_blame_is_noted_once(desk: Desk) -> None:
    blamed = run(Phase.TERMINATING, attempt(host_id="m-7", outcome=Outcome.UNREACHABLE))
    upkeep.remember_hosts(desk.context, blamed, blamed)
    assert hosts.avoided(desk.store) == frozenset()


def test_keys_are_renewed_long_before_they_run_out(desk: Desk) -> None:
    handed = attempt(keys_at=START, keys_until=START + timedelta(hours=12))
    assert not upkeep.keys_are_due(handed, START + timedelta(minutes=30))
    assert upkeep.keys_are_due(handed, START + timedelta(minutes=36))
    assert not upkeep.keys_are_due(attempt(), START + timedelta(days=9)), "keys without an end need no renewal"
    short = attempt(keys_at=START, keys_until=START + timedelta(minutes=15))
    assert not upkeep.keys_are_due(short, START + timedelta(seconds=59)), "not at every glance"


def test_a_pass_hands_out_fresh_keys_and_notes_until_when_they_are_good(desk: Desk) -> None:
    wanted = desk.keep(
        run(
            Phase.RUNNING,
            attempt(keys_at=START - timedelta(hours=1), keys_until=START + timedelta(hours=11)),
            needs=("HF_TOKEN",),
        )
    )
    after, troubles = upkeep.renew_keys(desk.context, wanted, instance(), START)
    assert troubles == []
    assert (after.attempts[0].keys_at, after.attempts[0].keys_until) == (START, START + timedelta(hours=12))
    assert desk.runs.load(RUN_ID).run.attempts[0].keys_until == START + timedelta(hours=12)
    assert b'"secret_access_key": "secret"' in desk.door.put_there["storage.json"]
    assert desk.door.modes == {"storage.json": 0o600, "secrets.json": 0o600}
    assert b"hf" in desk.door.put_there["secrets.json"]
    assert b"wb" not in desk.door.put_there["secrets.json"], "only what the recipe needs"
    assert desk.door.closed == 1


def test_keys_that_cannot_be_renewed_are_a_trouble_and_nothing_more(desk: Desk) -> None:
    desk.door.is_shut = True
    old = attempt(keys_at=START - timedelta(hours=1), keys_until=START + timedelta(hours=11))
    wanted = desk.keep(run(Phase.RUNNING, old))
    after, troubles = upkeep.renew_keys(desk.context, wanted, instance(), START)
    assert after == wanted
    assert len(troubles) == 1
    assert "could not be renewed" in troubles[0]


@pytest.mark.parametrize("state", [InstanceState.STOPPED, InstanceState.STARTING, InstanceState.UNKNOWN])
def test_nobody_knocks_at_what_does_not_run(desk: Desk, state: InstanceState) -> None:
    old = attempt(keys_at=START - timedelta(hours=1), keys_until=START + timedelta(hours=11))
    wanted = desk.keep(run(Phase.RUNNING, old))
    for there in (instance(state=state), None):
        assert upkeep.renew_keys(desk.context, wanted, there, START) == (wanted, [])
    assert desk.door.put_there == {}


def test_the_bill_of_an_ended_run_is_asked_for_until_it_is_final(desk: Desk) -> None:
    over = desk.keep(run(Phase.SUCCEEDED, ended(1, Outcome.SUCCEEDED, ended_at=START), outcome=Outcome.SUCCEEDED))
    upkeep.note_open_bill(desk.context, over, START)
    assert upkeep.settle_ended(desk.context) == []
    assert list(desk.store.children(keys.UNBILLED)) == [RUN_ID], "nothing is charged yet"
    desk.till.is_down = True
    assert "no bill for i-1 yet" in upkeep.settle_ended(desk.context)[0]
    desk.till.is_down = False
    desk.till.bills["i-1"] = Bill(gpu_usd=Decimal("0.5"), is_final=True)
    assert upkeep.settle_ended(desk.context) == []
    assert desk.runs.load(RUN_ID).run.attempts[0].bill == Bill(gpu_usd=Decimal("0.5"), is_final=True)
    assert list(desk.store.children(keys.UNBILLED)) == []
    count = len(desk.till.asked)
    upkeep.settle_ended(desk.context)
    assert len(desk.till.asked) == count, "whoever has answered is left in peace"


def test_a_bill_that_never_becomes_final_is_not_asked_for_for_ever(desk: Desk) -> None:
    over = desk.keep(run(Phase.SUCCEEDED, ended(1, Outcome.SUCCEEDED, ended_at=START), outcome=Outcome.SUCCEEDED))
    upkeep.note_open_bill(desk.context, over, START)
    desk.clock.sleep(25 * 3600)
    upkeep.settle_ended(desk.context)
    assert list(desk.store.children(keys.UNBILLED)) == []


def test_an_instance_that_still_lives_is_not_billed_yet(desk: Desk) -> None:
    living = desk.keep(run(Phase.RUNNING, attempt()))
    assert upkeep.settle_bills(desk.context, living, START) == (living, [])
    assert desk.till.asked == []


def test_a_grant_never_shows_its_keys() -> None:
    shown = repr(Grant("AKIDX", "s3cr3t", "t0ken", START, how="by hand"))
    assert not any(word in shown for word in ("AKIDX", "s3cr3t", "t0ken"))


def test_an_offer_of_a_host_that_disappointed_is_passed_over(desk: Desk) -> None:
    from orchestrator.acts import Renting

    first = Offer("sim", "o-1", Decimal("0.1"), False, host_id="m-1")
    second = replace(first, offer_id="o-2", usd_per_hour=Decimal("0.2"), host_id="m-2")
    hosts.remember(desk.store, "sim", "m-1", "stuck in loading")

    class Market:
        name = "sim"
        capabilities = SimCloud(desk.clock, lambda _url: desk.store).capabilities

        def offers(self, want: Any, *, timeout_s: float = 30) -> list[Offer]:
            return [first, second]

        def create(self, offer: Offer, spec: Any, *, token: Any, timeout_s: float = 60) -> Instance:
            return Instance(InstanceId("i-9"), token, "sim", InstanceState.STARTING, usd_per_hour=offer.usd_per_hour)

    bound = Bound(Market(), lambda _: desk.door, is_elsewhere=False)  # type: ignore[arg-type]
    for is_elsewhere, chosen in ((True, "o-2"), (False, "o-1")):
        wanted = run(Phase.PENDING, run_id=RUN_ID)
        version = desk.runs.create(wanted) if is_elsewhere else desk.runs.load(RUN_ID).version
        here = replace(bound, is_elsewhere=is_elsewhere)
        context = replace(desk.context, bound=lambda _name, here=here: here)
        renting = Renting(context, desk.runs.load(RUN_ID).run, version)
        picked = renting._choose()
        assert picked is not None
        assert picked.offer_id == chosen


def test_a_marketplace_without_money_is_passed_over_while_another_one_has_offers(desk: Desk) -> None:
    from orchestrator.acts import Renting
    from orchestrator.errors import OutOfFunds, QuotaExceeded

    class Market:
        name = "broke,rich"
        capabilities = SimCloud(desk.clock, lambda _url: desk.store).capabilities

        def offers(self, want: Any, *, timeout_s: float = 30) -> list[Offer]:
            return [
                Offer("broke", "b-1", Decimal("0.1"), False),
                Offer("broke", "b-2", Decimal("0.15"), False),
                Offer("rich", "r-1", Decimal("0.2"), False),
            ]

        def create(self, offer: Offer, spec: Any, *, token: Any, timeout_s: float = 60) -> Instance:
            if offer.provider == "broke":
                raise OutOfFunds("no credit")
            return Instance(InstanceId("rich/i-9"), token, "rich", InstanceState.STARTING)

    both = Bound(Market(), lambda _: desk.door)  # type: ignore[arg-type]
    both = replace(both, members={"broke": both, "rich": both})
    context = replace(desk.context, bound=lambda _name: both)
    version = desk.runs.create(run(Phase.PENDING))
    refused = Renting(context, desk.runs.load(RUN_ID).run, version).rent()
    assert refused.attempts[-1].reason == "broke: no credit"
    assert refused.not_before is None, "there is no need to wait for a person"
    again = replace(refused, phase=Phase.PENDING)
    version = desk.runs.save(again, expect=desk.runs.load(RUN_ID).version)
    assert Renting(context, again, version).rent().attempts[-1].instance_id == "rich/i-9"
    alone = replace(context, bound=lambda _name: replace(both, members={}))
    pending = replace(again, excluded_offers=())
    version = desk.runs.save(pending, expect=desk.runs.load(RUN_ID).version)
    with pytest.raises(QuotaExceeded):
        Renting(alone, pending, version).rent()


def test_a_key_service_that_is_down_says_nothing_of_the_instance(desk: Desk) -> None:
    """The instance answers: it is not given up because the bucket's keys cannot be renewed for now."""
    from orchestrator.errors import StorageUnavailable
    from orchestrator.observe import Listing, Look
    from orchestrator.states import Probe

    def none_now(_: Run) -> Grant:
        raise StorageUnavailable("STS does not answer")

    wanted = desk.keep(run(Phase.RUNNING, attempt()))
    look = Look(replace(desk.context, grant=none_now), wanted, Listing(desk.context))
    assert look._probe((instance(),), {}) is Probe.ANSWERED
    assert look.troubles == ["the bucket's keys cannot be renewed: STS does not answer"]
    assert list(desk.door.put_there) == ["secrets.json"], "the keys that are there are left alone"
    desk.door.is_shut = True
    assert look._probe((instance(),), {}) is Probe.FAILED


def test_a_run_depends_on_the_lists_of_where_something_of_it_may_be_or_still_turn_up(desk: Desk) -> None:
    from orchestrator.observe import _concerned

    both = Bound(desk.context.bound("sim").provider, lambda _: desk.door)
    both = replace(both, members={"a": both, "b": both})

    def at(provider: str, number: int, **changes: Any) -> Any:
        return attempt(number, offer=replace(attempt().offer, provider=provider), **changes)

    gone = {"ended_at": START - timedelta(minutes=5), "quiet_after": START - timedelta(minutes=4)}
    late = {**gone, "quiet_after": START + timedelta(minutes=1)}
    assert _concerned(both, run(Phase.RUNNING, at("a", 1, **gone), at("b", 2)), START) == ["b"]
    assert _concerned(both, run(Phase.RUNNING, at("a", 1, **late), at("b", 2)), START) == ["a", "b"]
    assert _concerned(both, run(Phase.RUNNING, at("a", 1, **late, refused=True), at("b", 2)), START) == ["b"]
    assert _concerned(replace(both, members={}), run(Phase.RUNNING), START) == [""]
