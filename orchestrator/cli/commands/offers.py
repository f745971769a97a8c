"""tune offers"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.commands._arguments import SetOption

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.cli.reach import Reached
    from orchestrator.cli.session import Session
    from orchestrator.offers import Ranked
    from orchestrator.survey import Answer
    from orchestrator.types import Offer, Requirements

EXAMPLES = (
    "tune offers                                   one GPU of any kind, every marketplace, cheapest first",
    "tune offers recipe.yaml                       what fits this recipe, and what nearly does",
    "tune offers --gpu RTX4090 --spot require --max-usd 0.40",
    "tune offers --provider vastai,runpod --json | jq '.offers[0]'",
)


def offers(
    recipe: Annotated[str, typer.Argument(help="A recipe that the offers must fit.", show_default=False)] = "",
    *,
    provider: Annotated[str, typer.Option(help="One marketplace, several with commas, or any.")] = "any",
    limit: Annotated[int, typer.Option(help="Show so many.", min=1)] = 20,
    gpu: Annotated[list[str] | None, typer.Option(help="Only this model; may be repeated.")] = None,
    gpus: Annotated[int | None, typer.Option(help="So many GPUs in one instance; 0 for none.", min=0)] = None,
    spot: Annotated[str, typer.Option(help="prefer, require or never interruptible instances.")] = "",
    max_usd: Annotated[str, typer.Option(help="Not above this price per hour.")] = "",
    set_: SetOption = None,
) -> None:
    """Show what could be rented now, at the full price by the hour, cheapest first. Nothing is rented."""
    from orchestrator import survey
    from orchestrator.cli.reach import reach
    from orchestrator.cli.session import Session

    session = Session()
    want = _want(recipe, set_ or (), gpu=gpu, gpus=gpus, spot=spot, max_usd=max_usd)
    reached = reach(session, provider)
    answers = survey.ask(reached.bounds, want, clock=session.clock)
    ranked = survey.ranked(answers, want)
    _refuse_if_all_failed(reached, answers)
    shown = ranked.fitting[:limit]
    session.render.result(_document(reached, answers, ranked, shown), lambda: _say(session, answers, ranked, shown))
    for line in _troubles(reached, answers):
        session.render.note(line)
    if not ranked.fitting:
        raise _nothing(answers, want)


def _want(
    recipe: str,
    overrides: Sequence[str],
    *,
    gpu: list[str] | None,
    gpus: int | None,
    spot: str,
    max_usd: str,
) -> Requirements:
    from orchestrator import recipe as recipes
    from orchestrator.errors import UsageError
    from orchestrator.launch import want as of
    from orchestrator.recipe.gpus import canonical
    from orchestrator.recipe.model import SPOT

    tune = recipes.load(recipe, overrides=overrides).tune if recipe else recipes.TuneBlock()
    wanted = of(tune, is_elsewhere=True)
    if spot:
        if spot not in SPOT:
            raise UsageError(f"--spot {spot}: not one of {', '.join(SPOT)}", hint="run `tune offers --help`")
        wanted = replace(wanted, spot=spot)
    if max_usd:
        try:
            cap = Decimal(max_usd.lstrip("$"))
        except InvalidOperation:
            cap = Decimal(0)
        if not cap.is_finite() or cap <= 0:
            raise UsageError(f"--max-usd {max_usd}: not an amount", hint="write it like --max-usd 0.60")
        wanted = replace(wanted, max_usd_per_hour=cap)
    if gpus is not None:
        wanted = replace(wanted, gpu_count=gpus)
    return replace(wanted, gpu_names=canonical(gpu)) if gpu else wanted


def _refuse_if_all_failed(reached: Reached, answers: Sequence[Answer]) -> None:
    """One marketplace that fails is a line; only when there is no answer at all is it an error."""
    from orchestrator.findings import Finding, refuse

    if any(answer.trouble is None for answer in answers):
        return
    failed = [Finding.of(a.name, a.trouble) for a in answers if a.trouble]
    failed += [Finding.of(name, error) for name, error in reached.missing.items()]
    refuse(failed, title="no marketplace answered")


def _troubles(reached: Reached, answers: Sequence[Answer]) -> list[str]:
    lines = [f"{name}: {error.message}" for name, error in reached.missing.items()]
    lines += [f"{answer.name}: {answer.trouble.message}" for answer in answers if answer.trouble]
    return lines


def _nothing(answers: Sequence[Answer], want: Requirements) -> Exception:
    from orchestrator.errors import NoOfferFits

    reasons = [answer.no_spot_reason for answer in answers if answer.no_spot_reason]
    if want.spot == "require" and reasons and len(reasons) == len([a for a in answers if not a.trouble]):
        return NoOfferFits("; ".join(reasons), hint="leave out --spot require, or add a marketplace that sells it")
    count = sum(len(answer.offers) for answer in answers)
    return NoOfferFits(
        f"none of {count} offers fits" if count else "nothing is to be rented at the moment",
        hint="ask for less, or raise the price" if count else "try again later",
    )


def _document(reached: Reached, answers: Sequence[Answer], ranked: Ranked, shown: Sequence[Offer]) -> Mapping[str, Any]:
    return {
        "offers": [_offer(offer) for offer in shown],
        "fitting": len(ranked.fitting),
        "nearest": [{"offer": _offer(miss.offer), "reasons": list(miss.reasons)} for miss in ranked.nearest],
        "providers": [
            {
                "name": answer.name,
                "offers": len(answer.offers),
                "took_s": round(answer.took_s, 3),
                "trouble": answer.trouble.message if answer.trouble else "",
                "no_spot_reason": answer.no_spot_reason,
            }
            for answer in answers
        ]
        + [
            {"name": name, "offers": 0, "took_s": 0.0, "trouble": error.message, "no_spot_reason": ""}
            for name, error in reached.missing.items()
        ],
    }


def _offer(offer: Offer) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(offer), "details": dict(offer.details)}


def _say(session: Session, answers: Sequence[Answer], ranked: Ranked, shown: Sequence[Offer]) -> None:
    if shown:
        session.render.table(HEADERS, [_row(offer) for offer in shown])
    more = len(ranked.fitting) - len(shown)
    if more > 0:
        session.render.say(f"and {more:,} more; --limit shows them")
    if ranked.nearest and not ranked.fitting:
        session.render.say("the nearest that do not fit:")
        for miss in ranked.nearest:
            session.render.say(f"  {miss.offer.provider}: {miss}")
    for answer in answers:
        if answer.no_spot_reason and not answer.trouble:
            session.render.say(f"{answer.name}: {answer.no_spot_reason}")


HEADERS = ("PROVIDER", "GPU", "VRAM", "$/H", "DISK $/H", "IN/OUT $/GB", "KIND", "RELIABLE", "REGION", "HOST")


def _row(offer: Offer) -> tuple[str, ...]:
    told = offer.details.get("disk_usd_per_hour", "")  # where a stopped instance's disk costs another price
    disk = Decimal(told) if told else offer.idle_usd_per_hour
    return (
        offer.provider,
        f"{offer.gpu_count}x {offer.gpu_name}" if offer.gpu_count else offer.gpu_name or "-",
        f"{offer.vram_gib:.0f} GiB" if offer.vram_gib else "-",
        f"{offer.usd_per_hour:.3f}",
        "-" if disk is None else f"{disk:.3f}",
        f"{offer.download_usd_per_gb:.3f}/{offer.upload_usd_per_gb:.3f}",
        "spot" if offer.spot else "on demand",
        "-" if offer.reliability is None else f"{100 * offer.reliability:.1f}%",
        offer.region or "-",
        offer.host_id or "-",
    )
