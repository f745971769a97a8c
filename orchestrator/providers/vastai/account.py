"""What Vast.ai says of money."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from orchestrator.errors import InstanceNotFound
from orchestrator.providers.vastai.api import Api, Refused, Unheard
from orchestrator.providers.vastai.provider import is_id
from orchestrator.providers.vastai.refusals import translate
from orchestrator.providers.vastai.rows import Charge, read
from orchestrator.types import Bill, InstanceId

SETTLED_S = 3600.0  # charges run behind by minutes; an hour after the end nothing is added any more
PAGE_ROWS = 500  # the server's own maximum
MOST_PAGES = 64  # 32,000 contracts within a run's days
_KINDS = {"gpu": "gpu", "disk": "disk", "bwd": "traffic", "bwu": "traffic"}
_NOT_TOLD = frozenset({403, 404, 405, 410})  # a key without the right to see bills, or an API that has gone


class VastAccount:
    """The balance, what instances have cost, and bids."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def balance_usd(self, *, timeout_s: float = 30) -> Decimal | None:
        """The prepaid credit that is left."""
        try:
            told = self._api.call("GET", "/users/current", timeout_s=timeout_s).get("credit")
        except (Refused, Unheard) as e:
            raise translate(e, doing="asking for the balance") from None
        return Decimal(told) if isinstance(told, (Decimal, int)) and not isinstance(told, bool) else None

    def billed(
        self, instance_id: InstanceId, *, since: datetime, until: datetime, timeout_s: float = 30
    ) -> Bill | None:
        """What one instance has cost, living or gone. None: nothing is on record of it yet, which is not nothing."""
        doing = f"reading the bill of instance {instance_id}"
        try:
            rows = [c for c in self._charges(since, until, timeout_s) if c.source == f"instance-{instance_id}"]
        except (Refused, Unheard) as e:
            if isinstance(e, Refused) and e.status in _NOT_TOLD:
                return None
            raise translate(e, doing=doing) from None
        if not rows:
            return None
        parts = dict.fromkeys(("gpu", "disk", "traffic", "other"), Decimal(0))
        for row in rows:
            items = row.items or []
            for item in items:
                parts[_KINDS.get(item.type or "", "other")] += item.amount
            if not items:
                parts["other"] += row.amount
        return Bill(
            gpu_usd=parts["gpu"],
            disk_usd=parts["disk"],
            traffic_usd=parts["traffic"],
            other_usd=parts["other"],
            is_final=(self._api.clock.now() - until).total_seconds() >= SETTLED_S,
        )

    def rebid(self, instance_id: InstanceId, usd_per_hour: Decimal, *, timeout_s: float = 30) -> None:
        """Change a bid, in dollars per machine and hour without its disk. Sent once."""
        if not is_id(instance_id):
            raise InstanceNotFound(f"Vast.ai has no instance {instance_id!r}")
        body = {"client_id": "me", "price": float(usd_per_hour)}  # without a price it would bid whatever wins
        try:
            self._api.call("PUT", f"/instances/bid_price/{instance_id}/", body=body, timeout_s=timeout_s)
        except (Refused, Unheard) as e:
            raise translate(e, doing=f"bidding for instance {instance_id}", instance_id=instance_id) from None

    def _charges(self, since: datetime, until: datetime, timeout_s: float) -> Iterator[Charge]:
        """Every contract's charges of the UTC days from `since` to `until`: there is no asking for one of them."""
        ends = self._api.clock.monotonic() + timeout_s
        query = {
            "select_filters": {
                "day": {"gte": _midnight(since), "lte": _midnight(until) + 86_399},
                "type": {"in": ["instance"]},
            },
            "format": "table",
            "latest_first": False,
            "limit": PAGE_ROWS,
        }
        seen: set[str] = set()
        while True:
            left_s = ends - self._api.clock.monotonic()
            if left_s <= 0 or len(seen) >= MOST_PAGES:
                raise Unheard(f"the charges did not end: {len(seen)} pages in {timeout_s:g} s")
            told = self._api.call("GET", "/charges/", query=query, timeout_s=left_s)
            rows, token = told.get("results"), told.get("next_token")
            if not isinstance(rows, list):
                raise Unheard("charges without results")
            for row in rows:
                charge = read(Charge, row)
                if charge is None:
                    raise Unheard("a charge of another form than expected")
                yield charge
            if not token:
                return
            if token in seen:
                raise Unheard("charges that come back to where they were")
            seen.add(token)
            query["after_token"] = token


def _midnight(when: datetime) -> int:
    day = when.astimezone(UTC)
    return int((day - timedelta(hours=day.hour, minutes=day.minute, seconds=day.second)).timestamp())
