"""The questions asked before money is spent, as the command line puts them and shows the answers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from orchestrator.findings import NOTE, OK, WARN, Finding

if TYPE_CHECKING:
    from orchestrator.cli.reach import Reached
    from orchestrator.cli.session import Session
    from orchestrator.launch import Prepared
    from orchestrator.preflight import Report


def preflight(session: Session, prepared: Prepared, reached: Reached, *, is_offline: bool) -> Report | None:
    """Ask everybody; None where nothing is rented from anybody else."""
    if not reached.is_elsewhere:
        return None
    from orchestrator.preflight import Wish, check

    wish = Wish(
        recipe=prepared.recipe,
        want=prepared.want,
        bounds=reached.bounds,
        missing=reached.missing,
        store=session.runs.store,
        storage_options=session.settings.storage_options,
        environment=dict(os.environ),
        is_offline=is_offline,
        clock=session.clock,
    )
    session.render.note("asking the marketplace, the bucket and the hub before anything is rented")
    return check(wish)


def say_findings(session: Session, findings: Iterable[Finding]) -> None:
    """Notes and warnings of a launch that goes ahead; what is in order needs no words but the price."""
    for finding in findings:
        if finding.status in (NOTE, WARN):
            label = "warning" if finding.status == WARN else "note"
            session.render.note(f"{label}: {finding.what}: {finding.text}")
            if finding.hint:
                session.render.note(f"  hint: {finding.hint}")
        elif finding.status == OK and finding.what == "offer":
            session.render.note(f"cheapest now: {finding.text}")


def finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Each in a line, its advice below it."""
    for finding in findings:
        yield f"{finding.status:<5} {finding.what:<12} {finding.text}"
        if finding.hint:
            yield f"{'':<18} hint: {finding.hint}"


def as_document(finding: Finding) -> dict[str, Any]:
    """For programs."""
    return {"status": finding.status, "what": finding.what, "text": finding.text, "hint": finding.hint}
