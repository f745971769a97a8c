"""Everything that would cost money to find out later, asked before anything is stored or rented.

Each check is independent, so that one call tells every problem. What cannot be asked now (a hub that does not answer, a
marketplace that does not tell a balance) is a warning: only a clear no is a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from orchestrator import keys, survey
from orchestrator.clock import Clock, SystemClock
from orchestrator.errors import (
    CredentialsMissing,
    NoOfferFits,
    OutOfFunds,
    TuneError,
)
from orchestrator.findings import FAIL, NOTE, OK, WARN, Finding, refuse
from orchestrator.preflight_hub import Hub, hub_token, is_offline
from orchestrator.providers.registry import Bound
from orchestrator.recipe import Recipe
from orchestrator.recipe.needs import HUB_TOKEN, hub_repos, trackers
from orchestrator.storage import canary, grants
from orchestrator.storage.base import Store
from orchestrator.storage.canary import Right
from orchestrator.storage.uri import parse
from orchestrator.survey import Answer
from orchestrator.types import Offer, Requirements

_TRIAL = f"{keys.RUNS}trial/"  # in the place of a run, for keys that are made only to see that they can be
HOURS_PAID_FOR = 1  # a balance that is shorter is spent before the first checkpoint has paid off


@dataclass(frozen=True, slots=True)
class Wish:
    """A launch that is about to happen."""

    recipe: Recipe
    want: Requirements
    bounds: Mapping[str, Bound]  # the marketplaces that may be rented from
    missing: Mapping[str, TuneError]  # those that cannot be used, and why
    store: Store
    storage_options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    is_offline: bool = False  # the hub is not asked
    clock: Clock = field(default_factory=SystemClock)


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, and what the launch would most likely rent."""

    findings: tuple[Finding, ...]
    cheapest: Offer | None = None
    answers: tuple[Answer, ...] = ()

    def refuse(self) -> None:
        """Raise every failure as one error."""
        refuse(self.findings, title="nothing was stored or rented")


def check(wish: Wish) -> Report:
    """Ask everybody at the same time."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        market = pool.submit(_market, wish)
        others = [pool.submit(_guarded, what, check, wish) for what, check in _CHECKS]
        findings, cheapest, answers = market.result()
        for other in others:
            findings += other.result()
    return Report(tuple(findings), cheapest, answers)


def _guarded(what: str, check: Callable[[Wish], Iterator[Finding]], wish: Wish) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(check(wish))
    except TuneError as e:
        found.append(Finding.of(what, e))
    return found


def _market(wish: Wish) -> tuple[list[Finding], Offer | None, tuple[Answer, ...]]:
    """Keys, offers and balances of every marketplace that is named."""
    found = []
    only = not wish.bounds
    for name, error in wish.missing.items():
        status = FAIL if only or not isinstance(error, CredentialsMissing) else NOTE
        found.append(Finding(status, name, error.message, error.hint, type(error)))
    answers = survey.ask(wish.bounds, wish.want, clock=wish.clock, with_balance=True)
    for answer in answers:
        found += _answered(answer, wish, is_alone=all(a.trouble for a in answers))
    if not answers or all(answer.trouble for answer in answers):
        return found, None, answers
    cheapest, said = _price(answers, wish.want)
    return [*found, *said], cheapest, answers


def _answered(answer: Answer, wish: Wish, *, is_alone: bool) -> Iterator[Finding]:
    trouble = answer.trouble
    if trouble is not None:
        status = FAIL if is_alone else WARN
        yield Finding(status, answer.name, trouble.message, trouble.hint, type(trouble))
        return
    if isinstance(answer.balance_trouble, CredentialsMissing):
        yield Finding.of(answer.name, answer.balance_trouble)
    elif answer.balance_trouble is not None:
        yield Finding(NOTE, answer.name, f"its balance is not known: {answer.balance_trouble.message}")
    elif answer.balance_usd is None:
        yield Finding(NOTE, answer.name, "it does not tell its balance; see that there is money for an hour at least")
    else:
        yield Finding(OK, answer.name, f"the key works; ${answer.balance_usd:.2f} left")
    if answer.no_spot_reason and wish.want.spot == "require":
        yield Finding(NOTE, answer.name, answer.no_spot_reason)


def _price(answers: tuple[Answer, ...], want: Requirements) -> tuple[Offer | None, list[Finding]]:
    """Whether anything fits, at what price, and whether there is money for it."""
    ranked = survey.ranked(answers, want)
    if not ranked.fitting:
        return None, [_nothing_fits(answers, want, ranked.nearest)]
    cheapest = survey.affordable(answers, ranked.fitting, hours=HOURS_PAID_FOR)
    if cheapest is None:
        first = ranked.fitting[0]
        left = "; ".join(f"{a.name} ${a.balance_usd:.2f}" for a in answers if a.balance_usd is not None)
        error = OutOfFunds(
            f"the cheapest fitting offer costs ${first.usd_per_hour:.3f} an hour, and what is left is less: {left}",
            hint="add credit at the marketplace",
        )
        return None, [Finding.of("balance", error)]
    return cheapest, [Finding(OK, "offer", describe(cheapest))]


def _nothing_fits(answers: tuple[Answer, ...], want: Requirements, nearest: tuple[object, ...]) -> Finding:
    reasons = [a.no_spot_reason for a in answers if a.no_spot_reason]
    if want.spot == "require" and len(reasons) == len(answers):
        hint = "write `spot: prefer` in the recipe, or add a marketplace that sells it"
        return Finding.of("offer", NoOfferFits("; ".join(reasons), hint=hint))
    count = sum(len(answer.offers) for answer in answers)
    if not count:
        return Finding(WARN, "offer", "nothing is to be rented at the moment; the run would wait for an offer")
    lines = "".join(f"\n    {miss}" for miss in nearest)
    error = NoOfferFits(
        f"none of {count} offers fits; the nearest:{lines}",
        hint="raise max_usd_per_hour, or ask for less: `tune offers`",
    )
    return Finding.of("offer", error)


def describe(offer: Offer) -> str:
    """An offer in a few words."""
    gpus = f"{offer.gpu_count}x {offer.gpu_name}" if offer.gpu_count else "no GPU"
    kind = "interruptible" if offer.spot else "on demand"
    return f"{gpus} at {offer.provider} for ${offer.usd_per_hour:.3f} an hour, {kind}"


def _bucket(wish: Wish) -> Iterator[Finding]:
    """The bucket with this computer's keys, then with those that an instance would get."""
    found = list(storage_findings(wish.store, wish.storage_options))
    yield from found
    is_usable = not any(finding.status == FAIL for finding in found)
    yield from grant_findings(wish.store, wish.storage_options, wish.environment, are_tried=is_usable)


def storage_findings(store: Store, options: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the store can keep runs: every right is tried, and every promise that two computers depend on."""
    rights = canary.check(store)
    yield from _rights(store.url, rights)
    if not any(right.stands_in_the_way for right in rights):
        alone = options.get("single_writer", "").strip().lower() in ("1", "true", "yes")
        yield Finding(OK, "storage", f"{store.url}: writes, reads, lists, and refuses stale writes")
        if alone:
            yield Finding(NOTE, "storage", "single_writer is set: no other computer may work with these runs")


def _rights(where: str, rights: Iterable[Right]) -> Iterator[Finding]:
    for right in rights:
        if right.status != canary.OK:
            status = FAIL if right.stands_in_the_way else WARN
            yield Finding(status, "storage", f"{where}: {right.what}: {right.text}", right.hint, right.kind)


def grant_findings(
    store: Store, options: Mapping[str, str], environment: Mapping[str, str], *, are_tried: bool = True
) -> Iterator[Finding]:
    """How a rented instance gets keys to the bucket: made, and tried unless the bucket itself is at fault.

    Keys that last are a risk, and that is said.
    """
    if not store.url.startswith("s3:"):
        return
    try:
        if are_tried:
            found = canary.check_keys(store.url, options, environment=environment)
            grant, rights = found.grant, found.rights
        else:
            grant, rights = grants.mint(parse(store.url), options, run_prefix=_TRIAL, environment=environment), ()
    except TuneError as e:
        yield Finding.of("bucket keys", e)
        return
    yield from _rights(store.url, rights)
    if grant.risk:
        hint = "keys of a role or of GetFederationToken expire by themselves and reach one run only"
        yield Finding(WARN, "bucket keys", grant.risk, hint)
    elif not any(right.stands_in_the_way for right in rights):
        yield Finding(OK, "bucket keys", f"{grant.how}, for one run and some hours; each pass renews them")


def _hub(wish: Wish) -> Iterator[Finding]:
    """What the recipe names on the hub, and where it publishes."""
    repos = hub_repos(wish.recipe)
    target = wish.recipe.tune.publish.get("hub", "")
    if not repos and not target:
        return
    if wish.is_offline or is_offline(wish.environment):
        names = ", ".join([*(repo.name for repo in repos), *([target] if target else [])])
        why = "--offline-check" if wish.is_offline else "HF_HUB_OFFLINE is set"
        yield Finding(WARN, "hub", f"not asked ({why}): whether {names} can be used will show on the instance")
        return
    hub = Hub(wish.environment)
    for repo in repos:
        yield hub.repo(repo)
    if target:
        yield hub.publish_target(target)


def _trackers(wish: Wish) -> Iterator[Finding]:
    """A service that asks for a key nobody can type would hang the training, or end it."""
    for tracker in trackers(wish.recipe.training):
        if wish.environment.get(tracker.variable, "").strip() or (
            tracker.variable == HUB_TOKEN and hub_token(wish.environment)
        ):
            yield Finding(OK, "tracker", f"{tracker.name}: {tracker.variable} is set and goes to the instance")
            continue
        instead = f", or write `{tracker.offline}` in the recipe" if tracker.offline else ""
        error = CredentialsMissing(
            f"{tracker.key}: the recipe reports to {tracker.name}, and {tracker.variable} is not set",
            hint=f"export {tracker.variable}=…{instead}",
        )
        yield Finding.of("tracker", error)


def _disk(wish: Wish) -> Iterator[Finding]:
    """A model that is sent along must fit on the disk that is rented, twice and with room for checkpoints."""
    needed_gb, disk_gb = wish.want.download_gb * 2, wish.want.disk_gb
    if disk_gb and disk_gb < needed_gb:
        text = f"{disk_gb:.0f} GB are rented; what is fetched alone is {wish.want.download_gb:.0f} GB"
        yield Finding(WARN, "disk", text, f"write `disk: {needed_gb:.0f}GB` or more")


_CHECKS: tuple[tuple[str, Callable[[Wish], Iterator[Finding]]], ...] = (
    ("storage", _bucket),
    ("hub", _hub),
    ("tracker", _trackers),
    ("disk", _disk),
)
