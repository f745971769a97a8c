"""A rented contract as an instance of ours: its state, its price, and where its SSH listens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from orchestrator.providers.vastai.rows import Contract
from orchestrator.types import Instance, InstanceId, InstanceState

CONSOLE_URL = "https://cloud.vast.ai/instances/"
SAYS_CHARS = 200
_MICRO = Decimal("0.000001")
_STARTING = frozenset({"", "created", "loading", "rebooting", "scheduling"})
# The host has given up, and the contract does not say so: what Docker answers, in `status_msg`.
_FAILED = re.compile(r"error response from daemon|oci runtime|no space left on device|manifest unknown", re.IGNORECASE)


def instance(row: Contract, *, provider: str) -> Instance:
    """Everything that the marketplace tells of it."""
    state = state_of(row)
    return Instance(
        instance_id=InstanceId(str(row.id)),
        token=row.label or "",
        provider=provider,
        state=state,
        usd_per_hour=(row.dph_total or Decimal(0)).quantize(_MICRO),
        host_id=str(row.machine_id) if row.machine_id is not None else "",
        created_at=datetime.fromtimestamp(row.start_date, UTC) if row.start_date else None,
        address={} if state is InstanceState.STOPPED else address(row),
        console_url=CONSOLE_URL,
        spot=row.is_bid,
        says=says(row),
    )


def state_of(row: Contract) -> InstanceState:
    """What its four status words come to.

    Outbid, paused, or given up by the host: all but `actual_status` say "stopped", whatever the container last did
    (dstack 0.22.5; also while an image is still loading). `exited` with the others running is a container that ended by
    itself. None of these comes back by itself soon, nor do `offline` and `unknown` (SKILL.md of vastai 1.9.1).
    """
    actual = (row.actual_status or "").strip().lower()
    if row.cur_state == row.next_state == row.intended_status == "stopped" or actual in ("stopped", "exited"):
        return InstanceState.STOPPED
    if actual == "running":
        return InstanceState.RUNNING if address(row) else InstanceState.STARTING
    if actual in _STARTING and not _FAILED.search(row.status_msg or ""):
        return InstanceState.STARTING
    return InstanceState.UNKNOWN


def address(row: Contract) -> Mapping[str, str]:
    """Direct endpoint and proxy, as far as they are known: each a real SSH server.

    The SDK's own `ssh_url` gives the proxy even where there is a direct way, and pairs hosts with the wrong ports.
    """
    found: dict[str, str] = {}
    host, port = (row.public_ipaddr or "").strip(), _ssh_port(row.ports)
    if host and port:
        found |= {"direct_host": host, "direct_port": port}
    if row.ssh_host and row.ssh_port:
        found |= {"proxy_host": row.ssh_host.strip(), "proxy_port": str(row.ssh_port), "proxy_user": "root"}
    return found | {"user": "root"} if found else {}


def says(row: Contract) -> str:
    """Its state in the marketplace's own words, on one line."""
    words = row.actual_status or "not there yet"
    if row.intended_status and row.intended_status != row.actual_status:
        words += f", meant to be {row.intended_status}"
    message = " ".join((row.status_msg or "").split())
    return (f"{words}: {message}" if message else words)[:SAYS_CHARS]


def _ssh_port(ports: Any) -> str:
    """The host's port for the container's 22: a dict once there are any, before that null, [] or a bare list."""
    bound = ports.get("22/tcp") if isinstance(ports, dict) else None
    first = bound[0] if isinstance(bound, list) and bound else None
    port = str(first.get("HostPort") or "") if isinstance(first, dict) else ""
    return port if port.isascii() and port.isdigit() and 0 < int(port) < 65_536 else ""
