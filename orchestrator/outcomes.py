"""Why an attempt ended, and what follows for the run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from orchestrator.handover import EXIT_SAVED
from orchestrator.types import ArtifactManifest, Attempt, ExitRecord, Instance, InstanceState, Outcome, Phase, Run

ALLOWED: Mapping[Outcome, int | None] = {
    # How many attempts of one allowance may end so before the run fails. None: only `max_attempts` counts.
    Outcome.PREEMPTED: None,
    Outcome.MOVED: None,
    Outcome.HOST_FAULT: None,
    Outcome.NOT_LAUNCHED: None,
    Outcome.UNREACHABLE: None,
    Outcome.CANCELLED: None,  # ends the run through `stop_requested_at`, not by itself
    Outcome.SUCCEEDED: None,
    Outcome.SETUP_FAILED: 2,  # once more on another host: the first one may be broken
    Outcome.OOM: 1,  # the agent has already tried half the micro-batch
    Outcome.HUNG: 1,  # the agent has already restarted the trainer once from the checkpoint
    Outcome.DIVERGED: 1,
    Outcome.USER_ERROR: 1,
    Outcome.BUDGET: 1,
    Outcome.LOST_UPLOAD: 1,
}
BLAMED_ON_HOST = frozenset({Outcome.HOST_FAULT, Outcome.SETUP_FAILED, Outcome.UNREACHABLE})
ON_REQUEST = frozenset({Outcome.CANCELLED, Outcome.BUDGET, Outcome.MOVED})

BACKOFF_FIRST_S = 30.0
BACKOFF_MAX_S = 600.0  # a market that had nothing ten minutes ago is worth another look
PRICE_TOLERANCE = Decimal("1.01")  # marketplaces round
REMEMBERED_REFUSALS = 20  # a thin market must not make run.json grow for ever


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a run with no instance left: a terminal phase, or PENDING for another attempt."""

    phase: Phase
    outcome: Outcome | None
    reason: str


def outcome_of(record: ExitRecord, run: Run) -> Outcome:
    """Why the attempt ended, in the words of its own record, except that only we know why it was asked to leave."""
    if record.code == 0:
        return Outcome.SUCCEEDED
    if record.code == EXIT_SAVED or record.outcome in ON_REQUEST:
        return run.request_outcome or Outcome.PREEMPTED  # nobody asked: the provider gave notice
    if record.outcome is Outcome.SUCCEEDED:
        return Outcome.USER_ERROR  # a non-zero code is the stronger word
    return record.outcome


def amended(run: Run, exits: Mapping[int, ExitRecord], artifact: ArtifactManifest | None) -> Run:
    """The run with what its attempts have left in the bucket folded in: exit records, and an artifact without one.

    An artifact whose exit record is missing means that the agent died between its last two writes: the work is
    complete, so its attempt has succeeded. Records of attempts before the last re-opening count only if they are
    good news; otherwise a failed run could never be opened again.
    """
    attempts = tuple(_amend(attempt, run, exits.get(attempt.number)) for attempt in run.attempts)
    if artifact is not None and not any(a.outcome is Outcome.SUCCEEDED for a in attempts) and attempts:
        numbers = [a.number for a in attempts]
        winner = numbers.index(artifact.attempt) if artifact.attempt in numbers else len(attempts) - 1
        done = replace(
            attempts[winner], outcome=Outcome.SUCCEEDED, reason="the artifact is complete", last_step=artifact.step
        )
        attempts = (*attempts[:winner], done, *attempts[winner + 1 :])
    return run if attempts == run.attempts else replace(run, attempts=attempts)


def _amend(attempt: Attempt, run: Run, record: ExitRecord | None) -> Attempt:
    if record is None or attempt.exit_code is not None:
        return attempt
    outcome = outcome_of(record, run)
    if outcome is not Outcome.SUCCEEDED and attempt.number <= run.attempts_at_resume:
        return replace(attempt, exit_code=record.code)
    return replace(
        attempt,
        exit_code=record.code,
        outcome=outcome,
        reason=record.reason,
        last_step=max(record.step, attempt.last_step),
    )


def has_succeeded(run: Run) -> bool:
    """Some attempt finished the recipe; it must never run again."""
    return any(a.outcome is Outcome.SUCCEEDED for a in run.attempts)


def counted(run: Run) -> tuple[Attempt, ...]:
    """The attempts of this allowance that count against `max_attempts`: all but plain refusals."""
    return tuple(a for a in run.attempts if a.number > run.attempts_at_resume and not a.refused)


def final_failure(run: Run) -> Attempt | None:
    """The attempt after which trying again is pointless, if there is one."""
    seen: dict[Outcome, int] = {}
    for attempt in counted(run):
        if attempt.outcome is None:
            continue
        seen[attempt.outcome] = seen.get(attempt.outcome, 0) + 1
        allowed = ALLOWED[attempt.outcome]
        if allowed is not None and seen[attempt.outcome] >= allowed:
            return attempt
    return None


def verdict(run: Run, *, spent_usd: Decimal, now: datetime) -> Verdict:
    """What becomes of a run whose instances are all gone. The first rule that applies wins."""
    winner = next((a for a in run.attempts if a.outcome is Outcome.SUCCEEDED), None)
    if winner:
        return Verdict(Phase.SUCCEEDED, Outcome.SUCCEEDED, winner.reason or f"attempt {winner.number} finished")
    limit = spent_up(run, spent_usd=spent_usd, now=now)
    failed = final_failure(run)
    if failed:
        reason = limit if failed.outcome is Outcome.BUDGET else ""  # the agent only knows that it was asked to leave
        return Verdict(Phase.FAILED, failed.outcome, reason or failed.reason)
    if run.stop_requested_at:
        return Verdict(Phase.CANCELLED, Outcome.CANCELLED, "stopped by its user")
    if limit:
        return Verdict(Phase.FAILED, Outcome.BUDGET, limit)
    tries = counted(run)
    if len(tries) >= run.limits.max_attempts:
        last = tries[-1]
        return Verdict(Phase.FAILED, last.outcome, f"{len(tries)} attempts were made; the last one: {last.reason}")
    last_reason = run.attempts[-1].reason if run.attempts else ""
    return Verdict(Phase.PENDING, None, last_reason)


def spent_up(run: Run, *, spent_usd: Decimal, now: datetime) -> str:
    """Why no more money or time may be used; empty while both are left."""
    budget = run.limits.budget_usd
    if budget is not None and spent_usd >= budget:
        return f"the budget of ${budget} is used up (${spent_usd:.2f} spent)"
    since = run.resumed_at or run.created_at
    if run.limits.deadline_s is not None and (now - since).total_seconds() >= run.limits.deadline_s:
        return f"the deadline of {run.limits.deadline_s / 3600:g} h has passed"
    return ""


def broken_promise(attempt: Attempt, instance: Instance) -> str:
    """How the instance is another bargain than the offer was; empty when it is as promised, or does not tell."""
    offer = attempt.offer
    if offer.spot and instance.spot is False:
        return "an interruptible instance was asked for, and it is billed as on demand"
    if instance.state is not InstanceState.RUNNING:
        return ""  # what starts, or is stopped, may bill less for now
    at_most = Decimal(offer.details.get("at_most") or offer.usd_per_hour * PRICE_TOLERANCE)
    if offer.usd_per_hour and instance.usd_per_hour > at_most:
        return f"it costs ${instance.usd_per_hour}/h, and ${offer.usd_per_hour}/h was promised"
    return ""


def backoff(run: Run) -> timedelta:
    """How long to wait before the next attempt: nothing, unless the last ones could not even be rented.

    A refusal for want of capacity waits nothing here: the next offer may fit, and when none is left the search for
    offers waits instead.
    """
    in_a_row = 0
    for attempt in reversed(run.attempts):
        if attempt.outcome is not Outcome.NOT_LAUNCHED or attempt.number <= run.attempts_at_resume:
            break
        in_a_row += 1
    if not in_a_row or run.attempts[-1].offer.offer_id in run.excluded_offers:
        return timedelta(0)
    return timedelta(seconds=min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(in_a_row - 1, 10)))


def blame(run: Run, attempt: Attempt, host_id: str) -> Run:
    """Remember a host that an attempt failed on, so that the next one goes elsewhere."""
    host = host_id or attempt.offer.host_id
    never_ran = attempt.outcome is Outcome.PREEMPTED and attempt.running_at is None and attempt.stopped_at is not None
    if not (attempt.outcome in BLAMED_ON_HOST or never_ran) or not host or host in run.excluded_hosts:
        return run
    return replace(run, excluded_hosts=(*run.excluded_hosts, host))


def without_old_refusals(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """The attempts, less the oldest refusals: nothing was rented, so nothing can come back from them."""
    refused = [a.number for a in attempts if a.refused]
    forgotten = set(refused[:-REMEMBERED_REFUSALS])
    return tuple(a for a in attempts if a.number not in forgotten)


def stopped(run: Run, now: datetime, *, at_once: bool = False) -> Run:
    """The run with its user's wish to stop on record; an ended run stays as it is."""
    if run.phase.is_terminal:
        return run
    return replace(run, stop_requested_at=run.stop_requested_at or now, stop_now=run.stop_now or at_once)


def reopened(run: Run, now: datetime) -> Run:
    """A failed or cancelled run made ready to go on, with fresh attempts and budget; any other stays as it is."""
    if run.phase not in (Phase.FAILED, Phase.CANCELLED):
        return run
    return replace(
        run,
        phase=Phase.PENDING,
        phase_since=now,
        phase_deadline=None,
        claim_until=None,
        not_before=None,
        waiting_for="",
        stop_requested_at=None,
        stop_now=False,
        request="",
        request_until=None,
        request_outcome=None,
        resumes=run.resumes + 1,
        resumed_at=now,
        attempts_at_resume=run.attempts[-1].number if run.attempts else 0,
        outcome=None,
        reason="",
        excluded_hosts=(),
        excluded_offers=(),
    )
