"""Which offer to take: filter by what is required, rank by price, traffic included. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from decimal import Decimal

from orchestrator.types import Offer, Requirements

NEAREST = 3  # so many misses are worth reading
USUAL_HOURS = 4.0  # over which the price of traffic is spread where nobody has said how long the work takes


@dataclass(frozen=True, slots=True)
class Miss:
    """An offer that does not fit, and every reason why."""

    offer: Offer
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        name = self.offer.gpu_name or self.offer.offer_id
        return f"{name} at ${self.offer.usd_per_hour}/h: {', '.join(self.reasons)}"


@dataclass(frozen=True, slots=True)
class Ranked:
    """Offers that fit, best first; those that fit but were tried or blamed lately; and what came nearest."""

    fitting: tuple[Offer, ...]
    avoided: tuple[Offer, ...]
    nearest: tuple[Miss, ...]


def rank(
    offers: Iterable[Offer],
    want: Requirements,
    *,
    excluded_offers: Collection[str] = (),
    excluded_hosts: Collection[str] = (),
) -> Ranked:
    """Cheapest by the hour first, traffic spread over the work; of equal price, a kept instance before an interruptible
    one, then the bigger card.
    """
    fitting, avoided, misses = [], [], []
    for offer in offers:
        reasons = unmet(offer, want)
        if reasons:
            misses.append(Miss(offer, reasons))
        elif offer.offer_id in excluded_offers or (offer.host_id and offer.host_id in excluded_hosts):
            avoided.append(offer)
        else:
            fitting.append(offer)

    def by_price(offer: Offer) -> tuple[object, ...]:
        return (with_traffic(offer, want), offer.spot, -offer.vram_gib, offer.offer_id)

    misses.sort(key=lambda miss: (len(miss.reasons), *by_price(miss.offer)))
    return Ranked(tuple(sorted(fitting, key=by_price)), tuple(sorted(avoided, key=by_price)), tuple(misses[:NEAREST]))


def with_traffic(offer: Offer, want: Requirements) -> Decimal:
    """Dollars per hour with what the attempt's traffic costs spread over the expected hours."""
    traffic = offer.download_usd_per_gb * Decimal(str(want.download_gb)) + offer.upload_usd_per_gb * Decimal(
        str(want.upload_gb)
    )
    return offer.usd_per_hour + traffic / Decimal(str(want.expected_hours or USUAL_HOURS))


def unmet(offer: Offer, want: Requirements) -> tuple[str, ...]:
    """Why the offer does not fit, each reason with both numbers; empty when it fits."""
    reasons = []
    if want.spot == "require" and not offer.spot:
        reasons.append("not spot")
    if want.spot == "never" and offer.spot:
        reasons.append("spot, which the recipe rules out")
    if want.max_usd_per_hour is not None and offer.usd_per_hour > want.max_usd_per_hour:
        reasons.append(f"above the cap of ${want.max_usd_per_hour}/h")
    if want.gpu_names and offer.gpu_name not in want.gpu_names:
        reasons.append(f"not one of {', '.join(want.gpu_names)}")
    if want.min_cuda and offer.cuda and offer.cuda < want.min_cuda:
        reasons.append(f"CUDA {offer.cuda:g} of {want.min_cuda:g}")
    if want.expected_hours and offer.lasts_s is not None and offer.lasts_s < want.expected_hours * 3600:
        reasons.append(f"lasts {offer.lasts_s / 3600:.1f} of {want.expected_hours:g} h")
    for name, has, needs, unit in (
        ("GPUs", offer.gpu_count, want.gpu_count, ""),
        ("VRAM", offer.vram_gib, want.vram_gib, " GiB"),
        ("disk", offer.disk_gb, want.disk_gb, " GB"),
        ("RAM", offer.host_ram_gib, want.host_ram_gib, " GiB"),
    ):
        if has < needs:
            reasons.append(f"{name} {has:g} of {needs:g}{unit}")
    return tuple(reasons)
