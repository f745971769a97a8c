"""Doing: rent, bootstrap, terminate, prune. Every intent is on record before its act, every result right after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from orchestrator import checkpoints, keys
from orchestrator.absence import INTENT_FRESH_S
from orchestrator.errors import (
    CredentialsMissing,
    InstanceNotFound,
    InsufficientCapacity,
    NoOfferFits,
    OutcomeUnknown,
    ProviderError,
    ProviderUnavailable,
    QuotaExceeded,
    RecordCorrupt,
    RunConflict,
    StorageError,
)
from orchestrator.observe import Context
from orchestrator.offers import Miss, rank
from orchestrator.providers.registry import Bound
from orchestrator.storage import hosts
from orchestrator.types import Attempt, Instance, InstanceId, Offer, Outcome, Phase, Run, RunId, token_for

MARKET_WAIT_S = 300.0  # until a market that had nothing is asked again
PERSON_WAIT_S = 3600.0  # until it is worth seeing whether a person has lifted a limit of the account
SAVE_TRIES = 20  # twenty terminals may be writing the same record


def amend(context: Context, run_id: RunId, edit: Callable[[Run], Run]) -> Run:
    """Change a record whatever others do to it meanwhile; `edit` sees the newest and may leave it as it is."""
    for _ in range(SAVE_TRIES):
        loaded = context.runs.load(run_id)
        wanted = edit(loaded.run)
        if wanted == loaded.run:
            return loaded.run
        try:
            context.runs.save(wanted, expect=loaded.version)
        except RunConflict:
            continue
        return wanted
    raise RunConflict(f"run {run_id} is being changed by others all the time", hint=f"run `tune status {run_id}`")


def with_attempt(run: Run, number: int, edit: Callable[[Attempt], Attempt]) -> Run:
    """The run with one attempt changed; unchanged when it has no such attempt."""
    return replace(run, attempts=tuple(edit(a) if a.number == number else a for a in run.attempts))


def terminate(context: Context, provider: str, ids: Iterable[InstanceId]) -> list[str]:
    """Ask for the end of each; returns what went wrong. Only a later "not found" means gone."""
    troubles = []
    for instance_id in ids:
        try:
            context.bound(provider).provider.terminate(instance_id)
        except InstanceNotFound:
            continue
        except ProviderError as e:
            troubles.append(f"{instance_id} may still be billing: {e.message}")
    return troubles


@dataclass(slots=True)
class Renting:
    """One try at renting an instance for one run, whose record was read at `version`."""

    context: Context
    run: Run
    version: str
    events: list[str] = field(default_factory=list)

    def rent(self) -> Run:
        """Choose an offer, record the intent, read it again, create. Raises what only a person or time can mend."""
        offer = self._choose()
        if offer is None:
            return self.run
        attempt = self._record_intent(offer)
        if attempt is None:
            return self.run
        return self._create(attempt)

    def _choose(self) -> Offer | None:
        bound = self.context.bound(self.run.provider)
        found = bound.provider.offers(self.run.want)
        ranked = rank(
            found,
            self.run.want,
            excluded_offers=_excluded(self.run.excluded_offers, found),
            excluded_hosts=(*self.run.excluded_hosts, *self._disappointing(bound, found)),
        )
        if ranked.fitting:
            return ranked.fitting[0]
        again_at = self.context.runs.store.now() + timedelta(seconds=MARKET_WAIT_S)
        if ranked.avoided:  # each was tried: after a pause all of them deserve another chance
            self._wait(replace(self.run, excluded_offers=(), excluded_hosts=()), again_at, "capacity")
            self.events.append(
                f"all {len(ranked.avoided)} fitting offers were tried; trying again at {again_at:%H:%M} UTC"
            )
            return None
        self._wait(self.run, again_at, "an offer that fits")
        raise _no_offer(len(found), ranked.nearest)

    def _disappointing(self, bound: Bound, found: Sequence[Offer]) -> set[str]:
        """Hosts among the offers that have let somebody down within a day. This very computer is never one of them."""
        if not bound.is_elsewhere or not any(offer.host_id for offer in found):
            return set()
        avoided = hosts.avoided(self.context.runs.store)
        return {offer.host_id for offer in found if (offer.provider, offer.host_id) in avoided}

    def _wait(self, run: Run, until: datetime, why: str) -> None:
        self.run = replace(run, not_before=until, waiting_for=why)
        self.version = self.context.runs.save(self.run, expect=self.version)

    def _record_intent(self, offer: Offer) -> Attempt | None:
        """The intent is saved, then read again: whoever was faster, or a nap in between, makes it void."""
        runs, run = self.context.runs, self.run
        now = runs.store.now()
        number = run.attempts[-1].number + 1 if run.attempts else 1
        attempt = Attempt(
            number=number,
            token=token_for(run.namespace, run.run_id, number),
            provider=run.provider,
            offer=offer,
            intended_at=now,
            quiet_after=now + timedelta(seconds=self.context.policy(run.provider).quiet_s),
        )
        self.run = replace(
            run,
            phase=Phase.PROVISIONING,
            phase_since=now,
            phase_deadline=now + timedelta(seconds=run.limits.launch_timeout_s),
            not_before=None,
            waiting_for="",
            attempts=(*run.attempts, attempt),
        )
        self.version = runs.save(self.run, expect=self.version)
        again = runs.load(run.run_id)
        if again.version != self.version:
            self.events.append("someone else moved the run; nothing was rented")
            self.run = again.run
            return None
        age_s = (runs.store.now() - now).total_seconds()
        if age_s > INTENT_FRESH_S:
            self._not_launched(attempt, f"{age_s:.0f} s passed before renting: too long to be sure", counts=False)
            return None
        return attempt

    def _create(self, attempt: Attempt) -> Run:
        offer, provider = attempt.offer, self.context.bound(self.run.provider).provider
        spec = self.context.spec(self.run, attempt, now=self.context.runs.store.now())
        try:
            created = provider.create(
                offer, spec, token=attempt.token, timeout_s=provider.capabilities.create_timeout_s
            )
        except InsufficientCapacity as e:
            self._not_launched(attempt, e.message, counts=False, avoid=offer.offer_id)
        except OutcomeUnknown as e:
            self.events.append(f"unclear whether an instance was rented ({e.message}); looking for it")
        except QuotaExceeded as e:
            if len(self.context.bound(self.run.provider).members) > 1:  # the others may still have money
                self._not_launched(attempt, f"{offer.provider}: {e.message}", counts=False, avoid=_all_of(offer))
                return self.run
            self._not_launched(attempt, e.message, counts=False, pause_s=PERSON_WAIT_S)
            raise
        except CredentialsMissing as e:  # says something of this computer, nothing of the run
            self._not_launched(attempt, e.message, counts=False, pause_s=MARKET_WAIT_S)
            raise
        except ProviderUnavailable as e:
            self._not_launched(attempt, e.message, counts=False)
        except ProviderError as e:
            self._not_launched(attempt, e.message, counts=True, avoid=offer.offer_id)
            raise
        else:
            self._record_instance(attempt, created)
        return self.run

    def _not_launched(
        self, attempt: Attempt, reason: str, *, counts: bool, avoid: str = "", pause_s: float = 0
    ) -> None:
        """Nothing was rented, for sure: the attempt is over at once, and the next pass may try elsewhere."""
        now = self.context.runs.store.now()

        def close(a: Attempt) -> Attempt:
            return replace(
                a, outcome=Outcome.NOT_LAUNCHED, reason=reason, refused=not counts, ended_at=now, quiet_after=now
            )

        def edit(run: Run) -> Run:
            if run.phase is not Phase.PROVISIONING or run.attempts[-1].number != attempt.number:
                return with_attempt(run, attempt.number, lambda a: a if a.first_seen_at else close(a))
            excluded = (*run.excluded_offers, avoid) if avoid else run.excluded_offers
            return replace(
                with_attempt(run, attempt.number, close),
                phase=Phase.TERMINATING,
                phase_since=now,
                phase_deadline=None,
                excluded_offers=excluded,
                not_before=now + timedelta(seconds=pause_s) if pause_s else None,
                waiting_for=reason if pause_s else "",
            )

        self.events.append(f"nothing was rented: {reason}")
        self.run = amend(self.context, self.run.run_id, edit)

    def _record_instance(self, attempt: Attempt, created: Instance) -> None:
        """The id goes on record whatever has happened to the run meanwhile; an unwanted instance goes at once."""
        now = self.context.runs.store.now()
        lag = timedelta(seconds=self.context.policy(self.run.provider).list_lag_s)

        def edit(run: Run) -> Run:
            if run.phase.is_terminal:
                return run
            known = with_attempt(
                run,
                attempt.number,
                lambda a: replace(
                    a,
                    instance_id=created.instance_id,
                    created_at=a.created_at or now,
                    usd_per_hour=created.usd_per_hour or a.usd_per_hour,
                    host_id=created.host_id or a.host_id,
                    quiet_after=min(a.quiet_after, now + lag),
                    missing_since=None,
                    ended_at=None,
                ),
            )
            return replace(known, excluded_offers=()) if run.phase is Phase.PROVISIONING else known

        price = created.usd_per_hour or attempt.offer.usd_per_hour
        kind = ", interruptible" if attempt.offer.spot and self.context.bound(self.run.provider).is_elsewhere else ""
        self.events.append(f"rented {created.instance_id} at ${price}/h{kind}")
        self.run = amend(self.context, self.run.run_id, edit)
        current = self.run.attempt
        is_wanted = current is not None and current.number == attempt.number
        if not is_wanted or self.run.phase.is_terminal or self.run.phase is Phase.TERMINATING:
            self.events.append(f"the run has moved on meanwhile; {created.instance_id} is terminated")
            self.events += terminate(self.context, attempt.provider, [created.instance_id])


def _all_of(offer: Offer) -> str:
    """Stands for everything that the offer's marketplace has, among the offers that are passed over for now."""
    return f"{offer.provider}/*"


def _excluded(passed_over: Sequence[str], found: Sequence[Offer]) -> set[str]:
    return {*passed_over, *(offer.offer_id for offer in found if _all_of(offer) in passed_over)}


def _no_offer(count: int, nearest: Sequence[Miss]) -> NoOfferFits:
    if not count:
        return NoOfferFits("the provider has nothing to rent now", hint="try again later; cron will")
    lines = "".join(f"\n  {miss}" for miss in nearest)
    return NoOfferFits(
        f"none of {count} offers fits; the nearest:{lines}", hint="raise max_usd_per_hour, or ask for less"
    )


def prune(context: Context, run: Run) -> list[str]:
    """Delete what ended attempts left and no kept checkpoint needs. Never in the way of anything: trouble is told."""
    owned = [a.number for a in run.attempts if a.ended_at and not a.refused]
    if not owned:
        return []
    try:
        _prune(context, run, owned)
    except StorageError as e:
        return [f"old checkpoints are still stored: {e.message}"]
    return []


def _prune(context: Context, run: Run, owned: Sequence[int]) -> None:
    runs, store = context.runs, context.runs.store
    choice = checkpoints.candidates(runs.checkpoints(run.run_id), intents=checkpoints.intents(run))
    sizes = {i.key: i.size for n in {*owned} for i in store.scan(keys.blobs(run.run_id, n))}
    manifests = {}
    for checkpoint in (*choice.order, *(i.checkpoint for i in choice.ignored)):
        try:
            manifests[checkpoint.key] = runs.manifest(checkpoint.key)
        except RecordCorrupt:
            continue  # it protects the blobs of its attempt by being unreadable
    verified = [k for k, m in manifests.items() if all(sizes.get(f.key) == f.size for f in m.files)]
    artifact = runs.artifact(run.run_id)
    plan = checkpoints.prune_plan(
        choice,
        manifests=manifests,
        verified=verified,
        blobs=sizes,
        keep=run.limits.keep_checkpoints,
        also_named={f.key for f in artifact.files} if artifact else (),
        owned_attempts=owned,
    )
    for key in (*plan.manifests, *plan.blobs):
        store.delete(key)
