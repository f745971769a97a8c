"""tune sweep"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.commands._arguments import YesOption

if TYPE_CHECKING:
    from orchestrator.cli.session import Session
    from orchestrator.sweep import Orphan, SweepReport

EXAMPLES = (
    "tune sweep                            end instances that no run owns",
    "tune sweep --dry-run                  only look",
    "tune sweep --without-storage --yes    the bucket is gone: end everything that was ours",
)


def sweep(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Look, and end nothing.")] = False,
    without_storage: Annotated[
        bool, typer.Option("--without-storage", help="The bucket is gone for good: end all of this namespace.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Look for instances that nobody owns, and end them.

    Nothing goes on one look: an instance has to be seen without an owner twice, long enough apart. Exits 21 while
    something that was told to end may still be billing.
    """
    from orchestrator.cli.session import Session

    session = Session()
    if without_storage:
        swept = session.sweep_without_storage(consent=yes or _consents(session))
    else:
        swept = session.sweep(dry_run=dry_run)
    session.render.result(report(swept), lambda: say(session, swept))
    swept.check()


def _consents(session: Session) -> bool:
    if not session.render.is_terminal:
        return False
    question = f"End every instance labelled tune-{session.cached_namespace()}-…, whatever it does?"
    return typer.confirm(question)


def report(swept: SweepReport) -> dict[str, Any]:
    """The sweep as JSON data."""
    return {
        "suspects": [_orphan(one) for one in swept.suspects],
        "terminated": [_orphan(one) for one in swept.terminated],
        "unconfirmed": [_orphan(one) for one in swept.unconfirmed],
        "unbacked": list(swept.unbacked),
        "troubles": list(swept.troubles),
    }


def _orphan(orphan: Orphan) -> dict[str, Any]:
    instance = orphan.instance
    return {
        "provider": instance.provider,
        "instance_id": instance.instance_id,
        "token": instance.token,
        "reason": orphan.reason,
        "since": orphan.since,
        "console_url": instance.console_url,
    }


def say(session: Session, swept: SweepReport, *, quiet: bool = False) -> None:
    """The sweep in lines; `quiet` leaves out that there was nothing."""
    for label, orphans in (
        ("ended and confirmed gone", swept.terminated),
        ("NOT confirmed gone, may still be billing", swept.unconfirmed),
        ("without an owner so far; the next sweep decides", swept.suspects),
    ):
        for one in orphans:
            session.render.say(f"{label}: {one.instance.instance_id} at {one.instance.provider} ({one.reason})")
    for run_id in swept.unbacked:
        session.render.say(f"run {run_id} has no instance in the list; the next pass looks into it")
    for trouble in swept.troubles:
        session.render.say(f"! {trouble}")
    if not quiet and not (swept.terminated or swept.unconfirmed or swept.suspects):
        session.render.say("no instance without an owner")
