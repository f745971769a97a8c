"""Several marketplaces as one provider."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal

import pytest

from orchestrator.errors import InstanceNotFound, ProviderRejected, ProviderUnavailable, UsageError
from orchestrator.providers.base import Capabilities
from orchestrator.providers.market import Market, bind, split
from orchestrator.providers.registry import Bound
from orchestrator.remote.base import Completed
from orchestrator.types import (
    Bill,
    Instance,
    InstanceId,
    InstanceState,
    LaunchSpec,
    Namespace,
    Offer,
    Requirements,
    Token,
    parse_token,
)

SPEC = LaunchSpec(start_command="true", deadline_s=3600)
NAMESPACE = Namespace("aaaaaa")
TOKEN = Token("tune-aaaaaa-1sjnsbkkw4-a1")


@dataclass
class Stall:
    """One small marketplace, which can be down."""

    name: str
    usd: str
    is_down: bool = False
    lag_s: float = 5.0
    rented: dict[str, Instance] = field(default_factory=dict)
    meeting: threading.Barrier | None = None  # whoever lists offers waits here for the others

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            spot=self.name == "b",
            list_lag_s=self.lag_s,
            create_timeout_s=60,
            stopped_bills=True,
            eviction_notice_s=5.0,
            max_label_len=100,
            rebid=False,
            no_spot_reason="" if self.name == "b" else f"{self.name} sells none",
        )

    def _answer(self) -> None:
        if self.is_down:
            raise ProviderUnavailable(f"{self.name} is down")

    def offers(self, want: Requirements, *, timeout_s: float = 30) -> Sequence[Offer]:
        if self.meeting:
            self.meeting.wait(10)
        self._answer()
        return [Offer(self.name, "1", Decimal(self.usd), spot=False)]

    def create(self, offer: Offer, spec: LaunchSpec, *, token: Token, timeout_s: float = 60) -> Instance:
        self._answer()
        made = Instance(InstanceId("77"), token, self.name, InstanceState.STARTING)
        self.rented["77"] = made
        return made

    def get(self, instance_id: InstanceId, *, timeout_s: float = 30) -> Instance:
        self._answer()
        if instance_id not in self.rented:
            raise InstanceNotFound(instance_id)
        return self.rented[instance_id]

    def find(self, *, namespace: Namespace, timeout_s: float = 30) -> Sequence[Instance]:
        self._answer()
        return [i for i in self.rented.values() if (p := parse_token(i.token)) and p.namespace == namespace]

    def terminate(self, instance_id: InstanceId, *, timeout_s: float = 30) -> None:
        self._answer()
        if self.rented.pop(instance_id, None) is None:
            raise InstanceNotFound(instance_id)

    def balance_usd(self, *, timeout_s: float = 30) -> Decimal | None:
        self._answer()
        return Decimal(self.usd) * 100

    def billed(
        self, instance_id: InstanceId, *, since: datetime, until: datetime, timeout_s: float = 30
    ) -> Bill | None:
        return Bill(gpu_usd=Decimal(self.usd)) if instance_id == "77" else None

    def rebid(self, instance_id: InstanceId, usd_per_hour: Decimal, *, timeout_s: float = 30) -> None:
        self.rented[instance_id] = replace(self.rented[instance_id], usd_per_hour=usd_per_hour)


class Door:
    """A way in that tells which instance it leads to."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    def run(self, argv: Sequence[str], **_: object) -> Completed:
        return Completed(0, self.instance.instance_id.encode(), b"")

    def put(self, path: str, data: bytes, **_: object) -> None: ...

    def close(self) -> None: ...


def bound(stall: Stall) -> Bound:
    return Bound(stall, Door, account=stall, is_elsewhere=True)  # type: ignore[arg-type]


@pytest.fixture
def a() -> Stall:
    return Stall("a", "0.5")


@pytest.fixture
def b() -> Stall:
    return Stall("b", "0.3", lag_s=30)


def test_the_name_says_which_marketplaces_it_stands_for(a: Stall, b: Stall) -> None:
    assert split("b, a") == split("a,b") == ("a", "b")
    assert split("local") == ("local",)
    assert Market({"b": b, "a": a}).name == "a,b"


def test_the_cheapest_offer_of_all_comes_first_and_is_rented_where_it_comes_from(a: Stall, b: Stall) -> None:
    market = Market({"a": a, "b": b})
    offers = market.offers(Requirements())
    assert [o.provider for o in offers] == ["b", "a"]
    made = market.create(offers[0], SPEC, token=TOKEN)
    assert made.instance_id == "b/77"
    assert (list(a.rented), list(b.rented)) == ([], ["77"])
    assert market.get(made.instance_id).instance_id == "b/77"
    assert [i.instance_id for i in market.find(namespace=NAMESPACE)] == ["b/77"]


def test_the_same_id_at_two_marketplaces_is_two_instances(a: Stall, b: Stall) -> None:
    market = Market({"a": a, "b": b})
    for offer in market.offers(Requirements()):
        market.create(offer, SPEC, token=TOKEN)
    market.terminate(InstanceId("a/77"))
    with pytest.raises(InstanceNotFound):
        market.get(InstanceId("a/77"))
    assert market.get(InstanceId("b/77")).provider == "b"


def test_all_are_asked_at_the_same_time(a: Stall, b: Stall) -> None:
    a.meeting = b.meeting = threading.Barrier(2)
    assert len(Market({"a": a, "b": b}).offers(Requirements())) == 2


def test_one_that_is_down_hides_no_offers_but_no_list_is_whole_without_it(a: Stall, b: Stall) -> None:
    market = Market({"a": a, "b": b})
    b.is_down = True
    assert [o.provider for o in market.offers(Requirements())] == ["a"]
    with pytest.raises(ProviderUnavailable, match="b is down"):
        market.find(namespace=NAMESPACE)
    with pytest.raises(ProviderUnavailable, match="b is down"):
        market.get(InstanceId("b/77"))
    a.is_down = True
    with pytest.raises(ProviderUnavailable):
        market.offers(Requirements())


def test_an_id_of_somebody_else_proves_nothing(a: Stall, b: Stall) -> None:
    market = Market({"a": a, "b": b})
    for odd in ("77", "c/77", "a/", ""):
        with pytest.raises(ProviderRejected):
            market.get(InstanceId(odd))


def test_it_is_as_careful_as_the_most_careful_of_them(a: Stall, b: Stall) -> None:
    said = Market({"a": a, "b": b}).capabilities
    assert (said.list_lag_s, said.spot, said.no_spot_reason) == (30, True, "a sells none")


def test_the_way_in_and_the_money_belong_to_who_rents_it_out(a: Stall, b: Stall) -> None:
    both = bind({"a": bound(a), "b": bound(b)})
    made = both.provider.create(both.provider.offers(Requirements())[0], SPEC, token=TOKEN)
    assert both.connect(made).run(["id"]).stdout == b"77"
    assert both.account is not None
    now = datetime.fromisoformat("2026-12-01T00:00:00+00:00")
    billed = both.account.billed(made.instance_id, since=now, until=now)
    assert billed is not None
    assert billed.usd == Decimal("0.3")
    both.account.rebid(made.instance_id, Decimal("0.4"))
    assert b.rented["77"].usd_per_hour == Decimal("0.4")
    assert both.account.balance_usd() == 30


def test_this_computer_does_not_stand_in_for_a_rented_one(a: Stall, b: Stall) -> None:
    with pytest.raises(UsageError, match="cannot stand in"):
        bind({"a": bound(a), "local": replace(bound(b), is_elsewhere=False)})


def test_who_takes_no_bids_says_so_and_never_that_an_instance_is_gone(a: Stall, b: Stall) -> None:
    both = bind({"a": replace(bound(a), account=None), "b": bound(b)})
    assert both.account is not None
    with pytest.raises(ProviderRejected, match="takes no bids"):
        both.account.rebid(InstanceId("a/77"), Decimal(1))
