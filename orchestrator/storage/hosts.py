"""Machines that have disappointed, remembered for a day by everybody who uses the same bucket."""

from __future__ import annotations

from datetime import timedelta

from orchestrator import keys
from orchestrator.storage.base import Store

REMEMBERED = timedelta(hours=24)  # a host that was down yesterday may have been mended since


def remember(store: Store, provider: str, host_id: str, reason: str) -> None:
    """Avoid this machine from now on, for a day."""
    store.put(keys.bad_host(provider, host_id), reason.encode())


def avoided(store: Store) -> frozenset[tuple[str, str]]:
    """(provider, host id) of every machine that is avoided now. Notes that have had their day are removed."""
    found, now = set(), store.now()
    for info in list(store.scan(keys.HOSTS)):
        named = keys.parse_bad_host(info.key)
        if named is None:
            continue
        if now - info.modified_at > REMEMBERED:
            store.delete(info.key)
        else:
            found.add(named)
    return frozenset(found)
