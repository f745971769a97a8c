"""tune providers"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.providers.registry import Row

EXAMPLES = ("tune providers", "tune providers --json | jq '.providers[] | select(.usable)'")


def providers() -> None:
    """List whom can be rented from, and why not from the others."""
    from orchestrator.cli.session import Session
    from orchestrator.providers.market import split

    session = Session()
    rows = session.provider_rows()
    chosen = session.settings.provider

    def say() -> None:
        session.render.table(
            ("PROVIDER", "USABLE", "SPOT", "LISTED WITHIN", "WHY NOT"),
            [
                (
                    row.name + (" *" if row.name in split(chosen) or chosen == "any" else ""),
                    "yes" if row.capabilities else "no",
                    ("yes" if row.capabilities.spot else "no") if row.capabilities else "-",
                    f"{row.capabilities.list_lag_s:.0f}s" if row.capabilities else "-",
                    row.reason or _no_spot(row),
                )
                for row in rows
            ],
        )
        session.render.say("* used when neither recipe nor command names one")

    session.render.result({"default": chosen, "providers": [_document(row) for row in rows]}, say)


def _no_spot(row: Row) -> str:
    """Why nothing interruptible is to be had there."""
    if row.capabilities is None or row.capabilities.spot or not row.capabilities.no_spot_reason:
        return ""
    return f"no spot: {row.capabilities.no_spot_reason}"


def _document(row: Row) -> dict[str, Any]:
    from dataclasses import asdict

    capabilities = asdict(row.capabilities) if row.capabilities else None
    return {"name": row.name, "usable": capabilities is not None, "reason": row.reason, "capabilities": capabilities}
