"""Patience with a marketplace that does not answer. A provider itself, around another one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, TypeVar

import tenacity

from orchestrator.clock import Clock
from orchestrator.errors import ProviderUnavailable, RateLimited
from orchestrator.providers.base import Account, Capabilities, Provider
from orchestrator.types import Bill, Instance, InstanceId, LaunchSpec, Namespace, Offer, Requirements, Token

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")

ATTEMPTS = 4  # with the waits below about 8 s: longer than a blip, shorter than anybody's patience
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 30.0  # a marketplace that asks for more is asked again by the next pass, not by this one
JITTER = 0.5  # up to half again, so that many runs do not come back in step


def wait_s(state: RetryCallState) -> float:
    """Doubling, with jitter, and never sooner than the marketplace asked for."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after_s if isinstance(error, RateLimited) else None
    backoff = FIRST_WAIT_S * 2.0 ** (state.attempt_number - 1)
    return max(backoff, asked or 0.0) * (1 + random.random() * JITTER)  # noqa: S311 - spreads load, hides nothing


def is_worth_it(error: BaseException) -> bool:
    """Only silence and "slow down" pass by themselves. Everything else is an answer."""
    if isinstance(error, RateLimited) and (error.retry_after_s or 0) > LONGEST_WAIT_S:
        return False
    return isinstance(error, ProviderUnavailable)


def policy(clock: Clock) -> tenacity.Retrying:
    """How often and how long. The caller gets the marketplace's own error, never a RetryError."""
    return tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=wait_s,
        retry=tenacity.retry_if_exception(is_worth_it),
        sleep=clock.sleep,
        reraise=True,
    )


class Retrying:
    """Asks again where asking is free. Renting is not, so `create` is passed on once, as it is."""

    def __init__(self, inner: Provider, *, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def offers(self, want: Requirements, *, timeout_s: float = 30) -> Sequence[Offer]:
        """What could be rented now, cheapest first."""
        return self._patiently(lambda: self._inner.offers(want, timeout_s=timeout_s))

    def create(self, offer: Offer, spec: LaunchSpec, *, token: Token, timeout_s: float = 60) -> Instance:
        """Rent, once: a second try could be a second bill."""
        return self._inner.create(offer, spec, token=token, timeout_s=timeout_s)

    def get(self, instance_id: InstanceId, *, timeout_s: float = 30) -> Instance:
        """As it is now."""
        return self._patiently(lambda: self._inner.get(instance_id, timeout_s=timeout_s))

    def find(self, *, namespace: Namespace, timeout_s: float = 30) -> Sequence[Instance]:
        """Every instance whose token is in `namespace`."""
        return self._patiently(lambda: self._inner.find(namespace=namespace, timeout_s=timeout_s))

    def terminate(self, instance_id: InstanceId, *, timeout_s: float = 30) -> None:
        """Ask for destruction."""
        self._patiently(lambda: self._inner.terminate(instance_id, timeout_s=timeout_s))

    def _patiently(self, ask: Callable[[], T]) -> T:
        return policy(self._clock)(ask)


class RetryingAccount:
    """The same patience with the questions about money. A bid is changed once."""

    def __init__(self, inner: Account, *, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock

    def balance_usd(self, *, timeout_s: float = 30) -> Decimal | None:
        """What is left to spend."""
        return policy(self._clock)(lambda: self._inner.balance_usd(timeout_s=timeout_s))

    def billed(
        self, instance_id: InstanceId, *, since: datetime, until: datetime, timeout_s: float = 30
    ) -> Bill | None:
        """What has been charged for one instance."""
        return policy(self._clock)(
            lambda: self._inner.billed(instance_id, since=since, until=until, timeout_s=timeout_s)
        )

    def rebid(self, instance_id: InstanceId, usd_per_hour: Decimal, *, timeout_s: float = 30) -> None:
        """Change a bid, once."""
        self._inner.rebid(instance_id, usd_per_hour, timeout_s=timeout_s)
