"""What Vast.ai charges, and what we bid."""

from __future__ import annotations

import math
from decimal import ROUND_UP, Decimal

HOURS_PER_MONTH = 720  # by its own arithmetic: 5 GB at storage_cost 0.0013333 are 0.00000926 $/h in a real offer
LEAST_DISK_GB = 8  # smaller ones are not rented out
DEFAULT_DISK_GB = 20  # where nobody says: room for the trainer's packages and a small model
MARGIN = Decimal("0.05")  # above the floor, so that the next bidder's cent does not end the run at once
LEAST_STEP_USD = Decimal("0.001")
LEAST_BID_USD, MOST_BID_USD = Decimal("0.001"), Decimal(128)  # what create takes
SLACK = Decimal("0.01")  # of a price: what rounding may make of it
_MICRO = Decimal("0.000001")


def disk_gb(wanted: float) -> int:
    """The disk to rent, in whole GB. Its size is fixed for the instance's life."""
    return max(LEAST_DISK_GB, math.ceil(wanted)) if wanted > 0 else DEFAULT_DISK_GB


def disk_usd_per_hour(gb: int, usd_per_gb_month: Decimal | None) -> Decimal:
    """What the disk costs from creation until it is destroyed, running or not."""
    return (gb * (usd_per_gb_month or Decimal(0)) / HOURS_PER_MONTH).quantize(_MICRO)


def usd(amount: Decimal) -> Decimal:
    """To a millionth of a dollar: their own figures have seventeen digits."""
    return amount.quantize(_MICRO)


def bid(floor: Decimal, on_demand: Decimal | None) -> Decimal | None:
    """What to bid per machine and hour; None where a bid makes no sense.

    Never above the price of the same thing on demand, which nobody can take away.
    """
    amount = max(floor * (1 + MARGIN), floor + LEAST_STEP_USD, LEAST_BID_USD).quantize(_MICRO, ROUND_UP)
    if on_demand is not None:
        if floor >= on_demand:
            return None
        amount = min(amount, usd(on_demand))
    return amount if floor > 0 and amount <= MOST_BID_USD else None


def ceiling(usd_per_hour: Decimal, cap: Decimal | None) -> Decimal:
    """The dearest that an instance may turn out: as offered, or what the user has allowed anyway."""
    return max(usd(usd_per_hour * (1 + SLACK)), cap or Decimal(0))
