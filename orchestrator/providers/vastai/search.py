"""Vast.ai's market as offers.

Searches are few: ten a minute per address, and a daily quota of rows. An answer holds some 64 rows whatever `limit`
says (September 2026), so the cheapest are asked for first, and the next ones by their price. Filters have been ignored
at times: everything is looked at again here or by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

from orchestrator.providers.vastai import gpus, prices
from orchestrator.providers.vastai.api import Api, Refused, Unheard
from orchestrator.providers.vastai.rows import Ask, read_all
from orchestrator.types import Offer, Requirements

BID, ON_DEMAND = "bid", "on-demand"
KINDS = {"prefer": (BID, ON_DEMAND), "require": (BID,), "never": (ON_DEMAND,)}
PAGE_ROWS = 64  # a shorter answer is the last one
MOST_ROWS = 256  # per kind: who wants more than the 256 cheapest wants to be more precise
MOST_SEARCHES = 4  # per kind, so that both together stay below ten a minute
MIN_RELIABILITY = 0.9  # the share of time that a host was there; dstack's default, too
_COUNTRY = re.compile(r",\s*([A-Z]{2})$")


def search(
    api: Api, want: Requirements, *, provider: str, timeout_s: float, min_reliability: float = MIN_RELIABILITY
) -> list[Offer]:
    """The cheapest of each kind, cheapest first. Raises Refused or Unheard if a kind tells nothing at all."""
    kinds = KINDS[want.spot]
    asks = _asks(api, want, kinds, timeout_s, narrow=True)
    if not any(asks.values()):  # then what comes near is worth knowing, and one page of it is enough
        asks = _asks(api, want, kinds, timeout_s, narrow=False)
    on_demand = {ask.id: ask.dph_base for ask in asks.get(ON_DEMAND, ())}
    found = [
        offer
        for kind, rows in asks.items()
        for ask in rows
        if is_sound(ask, min_reliability)
        and (offer := as_offer(ask, want, kind, provider=provider, on_demand_usd=on_demand.get(ask.id)))
    ]
    return sorted(found, key=lambda o: (o.usd_per_hour, o.spot, o.offer_id))


def is_sound(ask: Ask, min_reliability: float) -> bool:
    """Free, verified, dependable, and of a make that our trainers run on. What is not told is not held against it."""
    return (
        ask.rentable is not False
        and not ask.rented
        and not ask.external
        and ask.verification in (None, "verified")
        and ask.gpu_arch in (None, "nvidia")
        and ask.cpu_arch in (None, "amd64")
        and (ask.reliability2 is None or ask.reliability2 >= min_reliability)
    )


def as_offer(
    ask: Ask, want: Requirements, kind: str, *, provider: str, on_demand_usd: Decimal | None = None
) -> Offer | None:
    """What it costs by the hour with the wanted disk; None where no price is told, or a bid makes no sense."""
    spot = kind == BID
    gpu = _bid(ask, on_demand_usd) if spot else ask.dph_base
    if gpu is None or gpu <= 0:
        return None
    disk = prices.disk_usd_per_hour(prices.disk_gb(want.disk_gb), ask.storage_cost)
    total = prices.usd(gpu + disk)
    details = {"bid": str(gpu)} if spot else {}
    cap = None if spot else want.max_usd_per_hour  # a bid costs what was bid, or something is wrong
    return Offer(
        provider=provider,
        offer_id=f"{ask.id}-bid" if spot else str(ask.id),
        usd_per_hour=total,
        spot=spot,
        gpu_name=gpus.canonical(ask.gpu_name or "", ask.gpu_ram or 0),
        gpu_count=ask.num_gpus or 0,
        vram_gib=gpus.vram_gib(ask.gpu_ram or 0),
        disk_gb=ask.disk_space or 0.0,
        host_ram_gib=_host_ram_gib(ask),
        host_id=str(ask.machine_id) if ask.machine_id is not None else "",
        idle_usd_per_hour=disk,
        starting_bills=False,  # only the disk does until it runs
        download_usd_per_gb=ask.inet_down_cost or Decimal(0),
        upload_usd_per_gb=ask.inet_up_cost or Decimal(0),
        cuda=ask.cuda_max_good or 0.0,
        compute_capability=(ask.compute_cap or 0) / 100,
        download_mbps=ask.inet_down or 0.0,
        upload_mbps=ask.inet_up or 0.0,
        reliability=ask.reliability2,
        region=_region(ask.geolocation or ""),
        lasts_s=ask.duration,
        details={**details, "at_most": str(prices.ceiling(total, cap))},
    )


def _bid(ask: Ask, on_demand_usd: Decimal | None) -> Decimal | None:
    if ask.min_bid is None:
        return None
    told = ask.dph_base if ask.dph_base is not None and ask.dph_base > ask.min_bid else None
    return prices.bid(ask.min_bid, on_demand_usd or told)


def _asks(
    api: Api, want: Requirements, kinds: tuple[str, ...], timeout_s: float, *, narrow: bool
) -> Mapping[str, list[Ask]]:
    ends = api.clock.monotonic() + timeout_s
    with ThreadPoolExecutor(len(kinds)) as pool:
        asked = {kind: pool.submit(_pages, api, want, kind, ends, narrow=narrow) for kind in kinds}
    return {kind: future.result() for kind, future in asked.items()}


def _pages(api: Api, want: Requirements, kind: str, ends: float, *, narrow: bool) -> list[Ask]:
    """Page after page by price. One that does not come ends it: better offers are here already."""
    found: dict[int, Ask] = {}
    bounds: Mapping[str, float] = {}
    for _ in range(MOST_SEARCHES if narrow else 1):
        body = query(want, kind, bounds, narrow=narrow)
        left_s = max(0.1, ends - api.clock.monotonic())
        try:
            rows = api.call("POST", "/bundles/", body=body, timeout_s=left_s).get("offers")
        except (Refused, Unheard):
            if not found:
                raise
            break
        if not isinstance(rows, list):
            raise Unheard("a search without offers")
        page = read_all(Ask, rows)
        known = len(found)
        found |= {ask.id: ask for ask in page}
        told = [ask.dph_total for ask in page if ask.dph_total is not None]
        if len(rows) < PAGE_ROWS or len(found) >= MOST_ROWS or not told:
            break
        onward = _onward(told, bounds, is_stuck=len(found) == known)
        if onward is None:
            break
        bounds = onward
    return list(found.values())


def _onward(told: list[Decimal], bounds: Mapping[str, float], *, is_stuck: bool) -> Mapping[str, float] | None:
    """The prices of the next page: from the dearest of this one on, or, where order was ignored, below the cheapest."""
    if "lt" in bounds or told != sorted(told):
        return None if is_stuck else {"lt": float(min(told))}
    if not is_stuck:
        return {"gte": float(told[-1])}
    return None if "gt" in bounds else {"gt": float(told[-1])}  # a whole page of one price comes again and again


def query(want: Requirements, kind: str, bounds: Mapping[str, float], *, narrow: bool) -> dict[str, Any]:
    """The body of a search. Narrowed by what the caller would throw away anyway, for rows are rationed."""
    asked: dict[str, Any] = {
        "verified": {"eq": True},
        "external": {"eq": False},
        "rentable": {"eq": True},
        "rented": {"eq": False},
    }
    if narrow:
        asked |= _narrowing(want)
    if bounds:
        asked["dph_total"] = dict(bounds)
    return {
        **asked,
        "order": [["dph_total", "asc"]],
        "type": kind,
        "limit": MOST_ROWS,
        "allocated_storage": float(prices.disk_gb(want.disk_gb)),
    }


def _narrowing(want: Requirements) -> dict[str, Any]:
    """Only what the recipe asks for; never the price, which in a bid search has meant different things."""
    wanted: dict[str, Any] = {}
    if want.gpu_count > 0:
        wanted["num_gpus"] = {"gte": want.gpu_count}
    if want.vram_gib > 0:
        wanted["gpu_ram"] = {"gte": gpus.least_ram_mb(want.vram_gib)}
    if want.gpu_names and (names := gpus.spellings(want.gpu_names)):
        wanted["gpu_name"] = {"in": names}
    if want.disk_gb > 0:
        wanted["disk_space"] = {"gte": want.disk_gb}
    if want.min_cuda > 0:
        wanted["cuda_max_good"] = {"gte": want.min_cuda}
    if want.expected_hours > 0:
        wanted["duration"] = {"gte": want.expected_hours * 3600}
    return wanted


def _host_ram_gib(ask: Ask) -> float:
    """Our share of the machine's memory, which is told for the whole machine."""
    share = (ask.cpu_cores_effective or 0) / ask.cpu_cores if ask.cpu_cores else 1.0
    return round((ask.cpu_ram or 0) / 1024 * min(1.0, share or 1.0), 2)


def _region(geolocation: str) -> str:
    match = _COUNTRY.search(geolocation)
    return match[1] if match else geolocation
