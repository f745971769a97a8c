"""What a pass does beside moving a run: fresh keys for an instance, the marketplace's bill, a note about a bad host.

None of it stands in the way of anything: what goes wrong is told, and the next pass tries again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from orchestrator import keys
from orchestrator.acts import amend, with_attempt
from orchestrator.bootstrap import put_keys
from orchestrator.errors import AlreadyExists, ProviderError, RemoteError, RunConflict, RunNotFound, TuneError
from orchestrator.observe import Context
from orchestrator.storage import hosts
from orchestrator.types import Attempt, Instance, InstanceState, Outcome, Phase, Run, RunId

BLAMED = frozenset({Outcome.HOST_FAULT, Outcome.UNREACHABLE})  # a failed set-up may be the recipe's own fault
RENEW_SHARE = 20  # keys are renewed once a twentieth of their life is over, so that they outlast us for long
RENEW_AT_LEAST_S = 60.0
BILL_AGAIN_S = 24 * 3600.0  # a bill that is not final a day later will not become so


def remember_hosts(context: Context, before: Run, after: Run) -> list[str]:
    """Tell everybody who shares the bucket of a machine that has let this run down."""
    if not context.bound(after.provider).is_elsewhere:
        return []
    known = {a.number: a.outcome for a in before.attempts}
    troubles = []
    for attempt in after.attempts:
        host = attempt.host_id or attempt.offer.host_id
        if attempt.outcome not in BLAMED or known.get(attempt.number) is attempt.outcome or not host:
            continue
        try:
            hosts.remember(context.runs.store, attempt.offer.provider, host, attempt.reason)
        except TuneError as e:
            troubles.append(f"host {host} could not be noted down as a bad one: {e.message}")
    return troubles


def keys_are_due(attempt: Attempt, now: datetime) -> bool:
    """Whether the bucket's keys on the instance should be replaced by fresh ones."""
    if attempt.keys_at is None or attempt.keys_until is None:
        return False
    life = (attempt.keys_until - attempt.keys_at) / RENEW_SHARE
    return now - attempt.keys_at >= max(life, timedelta(seconds=RENEW_AT_LEAST_S))


def renew_keys(context: Context, run: Run, instance: Instance | None, now: datetime) -> tuple[Run, list[str]]:
    """Put fresh keys to the bucket on a running instance, and note until when it is safe without us."""
    current = run.attempt
    if run.phase is not Phase.RUNNING or current is None or instance is None:
        return run, []
    if instance.state is not InstanceState.RUNNING or not keys_are_due(current, now):
        return run, []
    try:
        grant = context.grant(run)
        remote = context.bound(run.provider).connect(instance)
        try:
            put_keys(remote, context.secrets_for(run), grant)
        finally:
            remote.close()
    except (TuneError, RemoteError) as e:
        return run, [f"the keys on {instance.instance_id} could not be renewed: {e.message}"]
    until = grant.expires_at if grant else None
    number = current.number
    return _noted(context, run, number, lambda a: replace(a, keys_at=now, keys_until=until)), []


def settle_bills(context: Context, run: Run, now: datetime) -> tuple[Run, list[str]]:
    """What the marketplace says that ended attempts have cost, as long as it has not said its last word."""
    account = context.bound(run.provider).account
    if account is None:
        return run, []
    troubles = []
    for attempt in run.attempts:
        is_open = attempt.ended_at is None or attempt.instance_id is None
        is_final = attempt.bill is not None and attempt.bill.is_final
        if is_open or is_final or now - (attempt.ended_at or now) > timedelta(seconds=BILL_AGAIN_S):
            continue
        assert attempt.instance_id is not None
        until = attempt.missing_since or attempt.ended_at or now
        try:
            bill = account.billed(attempt.instance_id, since=attempt.intended_at, until=until)
        except ProviderError as e:
            troubles.append(f"no bill for {attempt.instance_id} yet: {e.message}")
            continue
        if bill is not None and bill != attempt.bill:
            run = _noted(context, run, attempt.number, lambda a, bill=bill: replace(a, bill=bill))  # type: ignore[misc]
    return run, troubles


def is_billed(run: Run, now: datetime) -> bool:
    """Whether the marketplace has said, or will never say, what every attempt has cost."""
    patience = timedelta(seconds=BILL_AGAIN_S)
    return all(
        (a.bill is not None and a.bill.is_final) or a.instance_id is None or now - (a.ended_at or now) > patience
        for a in run.attempts
    )


def note_open_bill(context: Context, run: Run, now: datetime) -> None:
    """Let later passes ask for the bill of a run that has just ended: marketplaces charge some minutes late."""
    if run.phase.is_terminal and context.bound(run.provider).account is not None and not is_billed(run, now):
        with suppress(AlreadyExists):
            context.runs.store.put_new(keys.unbilled(run.run_id), b"")


def settle_ended(context: Context) -> list[str]:
    """Ask for the open bills of ended runs; called by whoever reconciles all runs."""
    troubles = []
    store = context.runs.store
    for run_id in list(store.children(keys.UNBILLED)):
        try:
            run = context.runs.load(RunId(run_id)).run
            now = store.now()
            run, told = settle_bills(context, run, now)
            troubles += told
            if is_billed(run, now):
                store.delete(keys.unbilled(run_id))
        except RunNotFound:
            store.delete(keys.unbilled(run_id))
        except TuneError as e:
            troubles.append(f"run {run_id}: {e.message}")
    return troubles


def _noted(context: Context, run: Run, number: int, edit: Callable[[Attempt], Attempt]) -> Run:
    try:
        return amend(context, run.run_id, lambda fresh: with_attempt(fresh, number, edit))
    except RunConflict:
        return run
