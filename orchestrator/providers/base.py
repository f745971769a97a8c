"""What a marketplace must promise. `tests/contract/provider_contract.py` holds every adapter to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from orchestrator.types import Bill, Instance, InstanceId, LaunchSpec, Namespace, Offer, Requirements, Token


@dataclass(frozen=True, slots=True)
class Capabilities:
    """How this marketplace behaves; declared, and held to by the contract tests."""

    spot: bool  # can rent interruptible capacity today
    list_lag_s: float  # longest a new instance may be missing from find()
    create_timeout_s: float  # longest create() may block before OutcomeUnknown
    stopped_bills: bool  # a stopped instance still costs money
    eviction_notice_s: float  # 0 when the instance simply dies
    max_label_len: int
    rebid: bool  # the bid of a living instance can be raised
    starting_bills: bool = True  # the whole price runs while an instance starts, not only its disk
    no_spot_reason: str = ""  # why `spot` is False, for people


class Provider(Protocol):
    """One marketplace. Blocking, thread-safe, no printing, no sleeping, no retries of its own."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def offers(self, want: Requirements, *, timeout_s: float = 30) -> Sequence[Offer]:
        """What could be rented now, cheapest first.

        May ignore any part of `want`; the caller filters again. Empty is an answer.
        """

    def create(self, offer: Offer, spec: LaunchSpec, *, token: Token, timeout_s: float = 60) -> Instance:
        """Rent `offer` and label it `token`. Returns as soon as there is an id; never waits for ready.

        Sent at most once: SDK retries are off. Exactly one of:
          returns                  rented; the token is readable through find()
          InsufficientCapacity     nothing is rented and nothing is left behind
          OutcomeUnknown(token)    it may be rented; call find() before anything else
          any other ProviderError  nothing is rented
        """

    def get(self, instance_id: InstanceId, *, timeout_s: float = 30) -> Instance:
        """As it is now. InstanceNotFound is proof of absence; any other error proves nothing."""

    def find(self, *, namespace: Namespace, timeout_s: float = 30) -> Sequence[Instance]:
        """Every instance whose token is in `namespace`, stopped and dying ones included.

        May lag create by `capabilities.list_lag_s`. All pages or an error, never a part.
        """

    def terminate(self, instance_id: InstanceId, *, timeout_s: float = 30) -> None:
        """Ask for destruction, disks included. Idempotent.

        Returning means "accepted". Only InstanceNotFound means "gone": call again until you get it.
        """


class Account(Protocol):
    """What a marketplace says of money, and the bid of a living instance. Blocking, thread-safe, no retries of its own.

    None is an answer: the marketplace does not tell. Raises ProviderError, as Provider does.
    """

    def balance_usd(self, *, timeout_s: float = 30) -> Decimal | None:
        """What is left to spend."""

    def billed(
        self, instance_id: InstanceId, *, since: datetime, until: datetime, timeout_s: float = 30
    ) -> Bill | None:
        """What it has charged for one instance, living or gone. `until`: when the instance was proved gone, or now."""

    def rebid(self, instance_id: InstanceId, usd_per_hour: Decimal, *, timeout_s: float = 30) -> None:
        """Change the bid of a living interruptible instance, in dollars per machine and hour."""
