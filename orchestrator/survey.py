"""What several marketplaces have to rent now, and what is left at each to rent it with: all asked at the same time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal

from orchestrator.clock import Clock
from orchestrator.errors import ProviderRejected, TuneError
from orchestrator.offers import Ranked, rank
from orchestrator.providers.registry import Bound
from orchestrator.types import Offer, Requirements


@dataclass(frozen=True, slots=True)
class Answer:
    """What one marketplace said."""

    name: str
    offers: tuple[Offer, ...] = ()
    trouble: TuneError | None = None  # why it says nothing of offers
    balance_usd: Decimal | None = None  # None: it does not tell
    balance_trouble: TuneError | None = None
    took_s: float = 0.0
    no_spot_reason: str = ""  # why it rents out nothing interruptible


def ask(
    bounds: Mapping[str, Bound], want: Requirements, *, clock: Clock, with_balance: bool = False
) -> tuple[Answer, ...]:
    """One answer per marketplace, in the order given. One that fails is an answer, too."""
    if not bounds:
        return ()
    with ThreadPoolExecutor(max_workers=2 * len(bounds)) as pool:
        asked = {
            name: (
                pool.submit(_offers, name, bound, want, clock),
                pool.submit(_balance, bound) if with_balance else None,
            )
            for name, bound in bounds.items()
        }
        return tuple(_together(offers, balance) for offers, balance in asked.values())


def _together(offers: Future[Answer], balance: Future[Decimal | TuneError | None] | None) -> Answer:
    answer, told = offers.result(), balance.result() if balance else None
    return Answer(
        name=answer.name,
        offers=answer.offers,
        trouble=answer.trouble,
        balance_usd=None if isinstance(told, TuneError) else told,
        balance_trouble=told if isinstance(told, TuneError) else None,
        took_s=answer.took_s,
        no_spot_reason=answer.no_spot_reason,
    )


def _offers(name: str, bound: Bound, want: Requirements, clock: Clock) -> Answer:
    started = clock.monotonic()
    found: tuple[Offer, ...] = ()
    trouble: TuneError | None = None
    reason = ""
    try:
        capabilities = bound.provider.capabilities  # may ask the marketplace, too
        reason = "" if capabilities.spot else capabilities.no_spot_reason or f"{name} sells no interruptible capacity"
        found = tuple(bound.provider.offers(want))
    except TuneError as e:
        trouble = e
    except Exception as e:  # one adapter's bug must not hide what the others have
        trouble = ProviderRejected(f"{name}: {type(e).__name__} while its offers were read")
    return Answer(name, found, trouble, took_s=clock.monotonic() - started, no_spot_reason=reason)


def _balance(bound: Bound) -> Decimal | TuneError | None:
    try:
        return bound.account.balance_usd() if bound.account else None
    except TuneError as e:
        return e


def ranked(answers: Iterable[Answer], want: Requirements) -> Ranked:
    """The offers of all marketplaces in one order, cheapest first."""
    return rank([offer for answer in answers for offer in answer.offers], want)


def affordable(answers: Iterable[Answer], fitting: Iterable[Offer], *, hours: int = 1) -> Offer | None:
    """The cheapest fitting offer whose marketplace has money for so long, or does not say how much there is."""
    left = {answer.name: answer.balance_usd for answer in answers}
    for offer in fitting:
        balance = left.get(offer.provider)
        if balance is None or balance >= offer.usd_per_hour * hours:
            return offer
    return None
