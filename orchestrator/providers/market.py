"""Several marketplaces as one: every one of them is asked at the same time, and the cheapest offer wins.

A provider over other providers. Its instance ids carry the marketplace's name (`vastai/33402296`), so that each call
goes to the one that rented it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, TypeVar

from orchestrator.errors import ProviderError, ProviderRejected, TuneError, UsageError
from orchestrator.providers.base import Account, Capabilities, Provider
from orchestrator.providers.registry import Bound
from orchestrator.types import Bill, Instance, InstanceId, LaunchSpec, Namespace, Offer, Requirements, Token

if TYPE_CHECKING:
    from orchestrator.remote.base import Remote

T = TypeVar("T")

SEPARATOR = ","


def split(name: str) -> tuple[str, ...]:
    """The marketplaces that a provider's name stands for, in alphabetical order: `vastai, runpod` is two."""
    return tuple(sorted({part.strip() for part in name.split(SEPARATOR) if part.strip()}))


def bind(members: Mapping[str, Bound]) -> Bound:
    """One provider, one way into its instances and one account over several."""
    kinds = {bound.is_elsewhere for bound in members.values()}
    if len(kinds) > 1:
        raise UsageError(
            f"{SEPARATOR.join(members)}: this computer and rented ones cannot stand in for each other",
            hint="name marketplaces only",
        )
    market = Market({name: bound.provider for name, bound in members.items()})

    def connect(instance: Instance) -> Remote:
        name, own = market.owner(instance.instance_id)
        return members[name].connect(replace(instance, instance_id=own))

    accounts = {name: bound.account for name, bound in members.items() if bound.account}
    return Bound(
        market,
        connect,
        account=Accounts(market, accounts),
        is_elsewhere=kinds.pop(),
        members=members,
    )


class Market:
    """Every marketplace that the user has an account at."""

    def __init__(self, members: Mapping[str, Provider]) -> None:
        self._members = dict(sorted(members.items()))

    @property
    def name(self) -> str:
        return SEPARATOR.join(self._members)

    @property
    def capabilities(self) -> Capabilities:
        """As careful as the most careful one calls for."""
        all_of = [member.capabilities for member in self._members.values()]
        return Capabilities(
            spot=any(c.spot for c in all_of),
            list_lag_s=max(c.list_lag_s for c in all_of),
            create_timeout_s=max(c.create_timeout_s for c in all_of),
            stopped_bills=any(c.stopped_bills for c in all_of),
            eviction_notice_s=min(c.eviction_notice_s for c in all_of),
            max_label_len=min(c.max_label_len for c in all_of),
            rebid=any(c.rebid for c in all_of),
            starting_bills=any(c.starting_bills for c in all_of),
            no_spot_reason="; ".join(filter(None, (c.no_spot_reason for c in all_of))),
        )

    def offers(self, want: Requirements, *, timeout_s: float = 30) -> Sequence[Offer]:
        """What could be rented now, cheapest first. One that does not answer does not keep the others from it."""
        answers = self._ask(lambda member: member.offers(want, timeout_s=timeout_s))
        failed = [answer for answer in answers.values() if isinstance(answer, TuneError)]
        if len(failed) == len(answers):
            raise failed[0]
        found = [offer for answer in answers.values() if not isinstance(answer, TuneError) for offer in answer]
        return sorted(found, key=lambda offer: (offer.usd_per_hour, offer.provider, offer.offer_id))

    def create(self, offer: Offer, spec: LaunchSpec, *, token: Token, timeout_s: float = 60) -> Instance:
        """Rent at the marketplace that the offer comes from."""
        member = self._members.get(offer.provider)
        if member is None:
            raise ProviderRejected(f"an offer of {offer.provider}, which is not one of {self.name}")
        return self._named(offer.provider, member.create(offer, spec, token=token, timeout_s=timeout_s))

    def get(self, instance_id: InstanceId, *, timeout_s: float = 30) -> Instance:
        """As it is now."""
        name, own = self.owner(instance_id)
        return self._named(name, self._members[name].get(own, timeout_s=timeout_s))

    def find(self, *, namespace: Namespace, timeout_s: float = 30) -> Sequence[Instance]:
        """Every instance of a namespace, of every marketplace: all of them or an error."""
        answers = self._ask(lambda member: member.find(namespace=namespace, timeout_s=timeout_s))
        found: list[Instance] = []
        for name, answer in answers.items():
            if isinstance(answer, TuneError):
                raise answer
            found += [self._named(name, instance) for instance in answer]
        return found

    def terminate(self, instance_id: InstanceId, *, timeout_s: float = 30) -> None:
        """Ask for destruction."""
        name, own = self.owner(instance_id)
        self._members[name].terminate(own, timeout_s=timeout_s)

    def owner(self, instance_id: InstanceId) -> tuple[str, InstanceId]:
        """Who rented an instance out, and the id by which it is known there."""
        name, _, own = instance_id.partition("/")
        if name not in self._members or not own:
            raise ProviderRejected(f"{instance_id} is not an instance of {self.name}")
        return name, InstanceId(own)

    def _named(self, name: str, instance: Instance) -> Instance:
        return replace(instance, instance_id=named(name, instance.instance_id))

    def _ask(self, question: Callable[[Provider], T]) -> dict[str, T | TuneError]:
        def guarded(member: Provider) -> T | TuneError:
            try:
                return question(member)
            except TuneError as e:
                return e

        with ThreadPoolExecutor(len(self._members)) as pool:
            return dict(zip(self._members, pool.map(guarded, self._members.values()), strict=True))


def named(provider: str, instance_id: InstanceId) -> InstanceId:
    """An instance's id as it is known among several marketplaces."""
    return InstanceId(f"{provider}/{instance_id}")


class Accounts:
    """The money side of several marketplaces."""

    def __init__(self, market: Market, accounts: Mapping[str, Account]) -> None:
        self._market = market
        self._accounts = accounts

    def balance_usd(self, *, timeout_s: float = 30) -> Decimal | None:
        """The smallest balance that is told: whoever is to rent there must have enough there."""
        told = []
        for account in self._accounts.values():
            try:
                told.append(account.balance_usd(timeout_s=timeout_s))
            except ProviderError:
                continue
        return min((usd for usd in told if usd is not None), default=None)

    def billed(
        self, instance_id: InstanceId, *, since: datetime, until: datetime, timeout_s: float = 30
    ) -> Bill | None:
        """What one instance has cost, by the word of who rented it out."""
        name, own = self._market.owner(instance_id)
        account = self._accounts.get(name)
        return account.billed(own, since=since, until=until, timeout_s=timeout_s) if account else None

    def rebid(self, instance_id: InstanceId, usd_per_hour: Decimal, *, timeout_s: float = 30) -> None:
        """Change a bid at who rented the instance out."""
        name, own = self._market.owner(instance_id)
        account = self._accounts.get(name)
        if account is None:
            raise ProviderRejected(f"{name} takes no bids")
        account.rebid(own, usd_per_hour, timeout_s=timeout_s)
