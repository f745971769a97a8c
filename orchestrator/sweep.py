"""Instances nobody owns, and records nobody backs. Nothing goes on one look, only on two that are far enough apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from orchestrator import keys
from orchestrator.clock import Clock
from orchestrator.errors import (
    AlreadyExists,
    InstanceNotFound,
    ProviderError,
    RunNotFound,
    StorageError,
    TerminationUnconfirmed,
    TuneError,
    UsageError,
)
from orchestrator.observe import Context
from orchestrator.providers.base import Provider
from orchestrator.providers.market import split
from orchestrator.types import Instance, InstanceId, Namespace, RunId, TokenParts, parse_token

CONFIRM_S = 120.0  # marketplaces have taken a minute to let go
LOOK_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Orphan:
    """One of our instances that nobody owns, and why."""

    instance: Instance
    reason: str
    since: datetime | None = None  # when a sweep saw it first


@dataclass(slots=True)
class SweepReport:
    """What a sweep found and did."""

    suspects: list[Orphan] = field(default_factory=list)  # seen once, or not long enough ago: the next sweep decides
    terminated: list[Orphan] = field(default_factory=list)  # and confirmed gone
    unconfirmed: list[Orphan] = field(default_factory=list)
    unbacked: list[RunId] = field(default_factory=list)  # active runs whose instance is not listed
    troubles: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Raise TerminationUnconfirmed when something may still be billing."""
        if self.unconfirmed:
            listed = ", ".join(f"{o.instance.instance_id} at {o.instance.provider}" for o in self.unconfirmed)
            urls = " ".join(o.instance.console_url for o in self.unconfirmed if o.instance.console_url)
            raise TerminationUnconfirmed(
                f"asked to end, not confirmed gone, may still be billing: {listed}",
                instances=[(o.instance.provider, o.instance.instance_id) for o in self.unconfirmed],
                hint=f"look at {urls or 'the console of the provider'}, and run `tune sweep` again",
            )


def sweep(
    context: Context,
    providers: Sequence[str],
    *,
    clock: Clock,
    confirm_s: float = CONFIRM_S,
    dry_run: bool = False,
) -> SweepReport:
    """Look at every provider for what nobody owns; end what was seen before and still has no owner.

    The lists come first and the records are read after: an instance in a list had its intent on record before that.
    """
    report = SweepReport()
    lists = _lists(context, providers, report)
    condemned: list[Orphan] = []
    for name, instances in lists.items():
        patience = timedelta(seconds=context.policy(name).quiet_s)
        for instance in instances:
            reason = _orphaned(context, instance, report)
            if not reason:
                continue
            since, now = _first_seen(context, instance), context.runs.store.now()
            orphan = Orphan(instance, reason, since)
            (condemned if now - since >= patience else report.suspects).append(orphan)
    _forget_the_others(context, lists, (*report.suspects, *condemned))
    _note_unbacked(context, lists, report)
    if dry_run:
        report.suspects += condemned
        return report
    _end(condemned, {name: context.bound(name).provider for name in lists}, clock, confirm_s, report)
    for orphan in report.terminated:
        context.runs.store.delete(keys.suspect(orphan.instance.provider, orphan.instance.instance_id))
    return report


def sweep_without_storage(
    providers: Sequence[Provider], namespace: Namespace, *, clock: Clock, consent: bool, confirm_s: float = CONFIRM_S
) -> SweepReport:
    """End every instance of a namespace, when the bucket with the records is gone for good. Owners cannot be asked."""
    if not consent:
        raise UsageError(
            f"without the records every instance labelled tune-{namespace}-… would be ended, whatever it does",
            hint="say --yes if that is what you want",
        )
    report, condemned = SweepReport(), []
    for provider in providers:
        try:
            found = provider.find(namespace=namespace)
        except TuneError as e:
            report.troubles.append(f"{provider.name} does not list its instances: {e.message}")
            continue
        condemned += [Orphan(i, "storage is gone") for i in found if _ours(i, namespace)]
    _end(condemned, {p.name: p for p in providers}, clock, confirm_s, report)
    return report


def _lists(context: Context, providers: Sequence[str], report: SweepReport) -> dict[str, Sequence[Instance]]:
    namespace = context.runs.namespace()
    lists: dict[str, Sequence[Instance]] = {}
    for name in providers:
        try:
            found = context.bound(name).provider.find(namespace=namespace)
        except TuneError as e:
            report.troubles.append(f"{name} does not list its instances: {e.message}")
            continue
        lists[name] = [i for i in found if _ours(i, namespace)]
    return lists


def _ours(instance: Instance, namespace: Namespace) -> TokenParts | None:
    """Parsed, never compared by its beginning: a colleague's token may start like ours."""
    parts = parse_token(instance.token)
    return parts if parts and parts.namespace == namespace else None


def _orphaned(context: Context, instance: Instance, report: SweepReport) -> str:
    """Why nobody owns it; empty when somebody does, or when that cannot be told."""
    parts = parse_token(instance.token)
    if parts is None:
        return ""
    try:
        run = context.runs.load(parts.run_id).run
    except RunNotFound:
        return f"there is no record of run {parts.run_id}"
    except StorageError as e:  # an unreadable record proves nothing
        report.troubles.append(f"{instance.instance_id} is left alone: {e.message}")
        return ""
    if run.phase.is_terminal:
        return f"run {parts.run_id} has ended"
    current = run.attempt.number if run.attempt else 0
    if parts.attempt != current:
        return f"run {parts.run_id} is at attempt {current}, not {parts.attempt}"
    return ""


def _first_seen(context: Context, instance: Instance) -> datetime:
    """When a sweep, of whichever computer, saw it first."""
    store, key = context.runs.store, keys.suspect(instance.provider, instance.instance_id)
    try:
        return store.put_new(key, b"").modified_at
    except AlreadyExists:
        return store.head(key).modified_at


def _forget_the_others(context: Context, lists: Mapping[str, Sequence[Instance]], orphans: Sequence[Orphan]) -> None:
    """Notes about what is gone, or has an owner again: should it ever lose it, the count starts anew."""
    kept = {(o.instance.provider, o.instance.instance_id) for o in orphans}
    for info in list(context.runs.store.scan(keys.SWEEP)):
        noted = keys.parse_suspect(info.key)
        if noted and noted[0] in lists and noted not in kept:
            context.runs.store.delete(info.key)


def _note_unbacked(context: Context, lists: Mapping[str, Sequence[Instance]], report: SweepReport) -> None:
    for run_id in context.runs.active():
        try:
            run = context.runs.load(run_id).run
        except (RunNotFound, StorageError) as e:
            report.troubles.append(e.message)
            continue
        current = run.attempt
        if current is None or current.instance_id is None or current.ended_at:
            continue
        provider = current.offer.provider if current.offer.provider in split(run.provider) else run.provider
        known = {current.instance_id, InstanceId(current.instance_id.removeprefix(f"{provider}/"))}
        if provider in lists and all(i.instance_id not in known for i in lists[provider]):
            report.unbacked.append(run_id)


def _end(
    condemned: Sequence[Orphan], providers: dict[str, Provider], clock: Clock, confirm_s: float, report: SweepReport
) -> None:
    """Ask, and ask again, until each is not found or the time is up."""
    left, until = list(condemned), clock.monotonic() + confirm_s
    while left:
        left = [o for o in left if not _is_gone(providers[o.instance.provider], o, report)]
        if clock.monotonic() >= until:
            break
        if left:
            clock.sleep(LOOK_AGAIN_S)
    report.unconfirmed += left


def _is_gone(provider: Provider, orphan: Orphan, report: SweepReport) -> bool:
    try:
        provider.terminate(orphan.instance.instance_id)
        provider.get(orphan.instance.instance_id)
    except InstanceNotFound:
        report.terminated.append(orphan)
        return True
    except ProviderError as e:
        trouble = f"{orphan.instance.instance_id}: {e.message}"
        if trouble not in report.troubles:
            report.troubles.append(trouble)
    return False
