"""What to do next with one run: `decide(run, seen, now, policy)`. Pure: looks at nothing, does nothing.

The rules say "what do I see", the first that applies wins, and every pass starts from scratch: a pass that died
half-way is simply followed by the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from orchestrator.absence import Policy, instance_of, live_ids, noted
from orchestrator.outcomes import (
    amended,
    backoff,
    blame,
    broken_promise,
    final_failure,
    spent_up,
    verdict,
    without_old_refusals,
)
from orchestrator.types import (
    ArtifactManifest,
    Attempt,
    ExitRecord,
    Heartbeat,
    Instance,
    InstanceId,
    InstanceState,
    Outcome,
    Phase,
    Run,
)

SAVE_AND_EXIT = "save_and_exit"
REACHED_WITHIN = timedelta(minutes=10)  # an instance that runs and lets nobody in for so long never will
PROOF_LOOK_S = 4.0  # between two looks while an instance is missing
SECOND_LOOK_S = 1.0  # a state that leads nowhere is believed at the next look
SLOW_END_S = 600.0  # an instance that will not go for ten minutes is worth a person's look


class Action(StrEnum):
    """What to do once the record is saved, besides terminating instances."""

    NONE = "none"
    RENT = "rent"  # look for an offer, record the intent, create
    BOOTSTRAP = "bootstrap"  # put the agent on `instance`


class Probe(StrEnum):
    """What reaching into a silent instance has shown."""

    NOT_ASKED = "not_asked"
    ANSWERED = "answered"
    AGENT_DEAD = "agent_dead"  # the instance answers, and its own files say that no agent is at work
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look showed. Unknown is a third answer everywhere."""

    listed: tuple[Instance, ...] | None = None  # this run's, from a complete list; None: there was no complete list
    listed_at: datetime | None = None  # when that list was asked for, if earlier than this look
    answers: Mapping[InstanceId, Instance | None] = field(default_factory=dict)  # None: not found; no key: no answer
    heartbeat: Heartbeat | None = None  # of the current attempt
    heartbeat_at: datetime | None = None  # the store's time
    exits: Mapping[int, ExitRecord] = field(default_factory=dict)  # by attempt
    artifact: ArtifactManifest | None = None
    probe: Probe = Probe.NOT_ASKED
    spent_usd: Decimal = Decimal(0)  # of this allowance, all attempts together


@dataclass(frozen=True, slots=True)
class Step:
    """The record to save first, then what to do, then when to look again."""

    run: Run
    action: Action = Action.NONE
    kill: tuple[InstanceId, ...] = ()
    instance: Instance | None = None  # for BOOTSTRAP
    events: tuple[str, ...] = ()  # sentences for the user: something has happened
    troubles: tuple[str, ...] = ()  # sentences for the user: an instance that should be gone is not
    wait_s: float = 15.0


@dataclass(frozen=True, slots=True)
class _Case:
    """One run under judgement, with its current attempt's instance picked out."""

    run: Run
    seen: Seen
    now: datetime
    policy: Policy

    @property
    def current(self) -> Attempt | None:
        return self.run.attempt

    @property
    def instance(self) -> Instance | None:
        return instance_of(self.run.attempts[-1], self.seen.listed, self.seen.answers) if self.run.attempts else None

    @property
    def is_lost(self) -> bool:
        """The current instance is proved gone, or stopped: it computes nothing, and may still bill."""
        stopped = self.instance is not None and self.instance.state is InstanceState.STOPPED
        return stopped or (self.current is not None and self.current.ended_at is not None)

    @property
    def is_heard(self) -> bool:
        """The current attempt's agent has written to the bucket lately."""
        beat = self.seen.heartbeat_at
        return beat is not None and self.now - beat <= timedelta(seconds=self.policy.heartbeat_grace_s)


def decide(run: Run, seen: Seen, now: datetime, policy: Policy) -> Step:
    """The next step of a run. `now` is the store's clock."""
    run = noted(run, seen.listed, seen.answers, now, policy, listed_at=seen.listed_at)
    if run.phase.is_terminal:
        return Step(run, kill=tuple(i.instance_id for i in seen.listed or ()), wait_s=60)
    case = _Case(run, seen, now, policy)
    case = replace(case, run=amended(run, seen.exits, _trusted_artifact(case)))
    if run.phase is Phase.TERMINATING:
        return _no_longer_than(_terminating(case), policy)
    step = _exit_first(case) or _asked_to_leave(case) or _lost(case) or _overcharged(case) or _LIVE[run.phase](case)
    strays = () if step.run.phase is Phase.TERMINATING else _strays(case)
    return _no_longer_than(replace(step, kill=tuple(dict.fromkeys((*strays, *step.kill)))), policy)


def _no_longer_than(step: Step, policy: Policy) -> Step:
    """Who is not found is asked for again soon: each second until the proof is a second without training."""
    missing = any(a.missing_since is not None and a.ended_at is None for a in step.run.attempts)
    return replace(step, wait_s=min(step.wait_s, policy.look_every_s, PROOF_LOOK_S if missing else step.wait_s))


def _trusted_artifact(case: _Case) -> ArtifactManifest | None:
    """An artifact speaks for its attempt unless that agent is alive: then it writes its own exit record."""
    found, current = case.seen.artifact, case.current
    if found is None or current is None:
        return None
    is_at_it = case.run.phase in (Phase.BOOTSTRAPPING, Phase.RUNNING) and found.attempt == current.number
    return None if is_at_it and case.is_heard and not case.is_lost else found


def _exit_first(case: _Case) -> Step | None:
    """An exit record comes before everything else, whichever attempt wrote it."""
    winner = next((a for a in case.run.attempts if a.outcome is Outcome.SUCCEEDED), None)
    if winner:
        return _end(case, Outcome.CANCELLED, f"attempt {winner.number} had finished already")
    if case.run.phase is not Phase.PENDING and case.current and case.current.outcome is not None:
        return _end(case, case.current.outcome, case.current.reason)
    failed = final_failure(case.run)
    if failed:
        return _end(case, Outcome.CANCELLED, f"attempt {failed.number} had failed for good: {failed.reason}")
    return None


def _asked_to_leave(case: _Case) -> Step | None:
    """Stop, budget or move: the agent gets time to save, unless there is no agent or the user is in a hurry."""
    run, now = case.run, case.now
    why = _why_leave(case)
    if why is None:
        return None
    outcome, reason = why
    hurry = run.stop_requested_at is not None and run.stop_now
    if run.phase is not Phase.RUNNING or hurry or case.is_lost:
        return _end(case, outcome, reason)
    if not run.request:
        until = now + timedelta(seconds=case.policy.save_and_exit_s)
        asked = replace(run, request=SAVE_AND_EXIT, request_until=until, request_outcome=outcome)
        return Step(asked, events=(f"{reason}: the agent is asked to save and leave",), wait_s=5)
    if run.request_until is None or now >= run.request_until:
        return _end(case, run.request_outcome or outcome, reason)
    return Step(run, wait_s=5)


def _why_leave(case: _Case) -> tuple[Outcome, str] | None:
    if case.run.stop_requested_at:
        return Outcome.CANCELLED, "stopped by its user"
    limit = spent_up(case.run, spent_usd=case.seen.spent_usd, now=case.now)
    if limit:
        return Outcome.BUDGET, limit
    return (Outcome.MOVED, "a better place was found") if case.run.request_outcome is Outcome.MOVED else None


def _lost(case: _Case) -> Step | None:
    """The provider took the instance, or never had it."""
    current = case.current
    if case.run.phase is Phase.PENDING or current is None or not case.is_lost:
        return None
    if case.instance and current.running_at is None:
        return _end(case, Outcome.PREEMPTED, _in_their_words(case.instance, "stopped before it ever ran"))
    if case.instance:
        return _end(case, Outcome.PREEMPTED, _in_their_words(case.instance, "the provider stopped the instance"))
    if current.first_seen_at is None:
        return _end(case, Outcome.NOT_LAUNCHED, "the instance never appeared")
    return _end(case, Outcome.PREEMPTED, "the instance is gone")


def _overcharged(case: _Case) -> Step | None:
    """Another bargain than was promised is given back before anything is trained on it; the next offer is taken."""
    current = case.current
    if case.run.phase not in (Phase.PROVISIONING, Phase.BOOTSTRAPPING) or current is None or case.instance is None:
        return None
    wrong = broken_promise(current, case.instance)
    if not wrong:
        return None
    avoided = replace(case.run, excluded_offers=(*case.run.excluded_offers, current.offer.offer_id))
    return _end(replace(case, run=avoided), Outcome.MOVED, wrong)


def _in_their_words(instance: Instance | None, what: str) -> str:
    return f"{what} ({instance.says})" if instance and instance.says else what


def _end(case: _Case, outcome: Outcome, reason: str) -> Step:
    """Into TERMINATING: the outcome is recorded first, then everything that may live is terminated."""
    run, current, events = case.run, case.current, (reason,)
    if current is not None:
        if current.outcome is None:
            step = max(current.last_step, case.seen.heartbeat.step if case.seen.heartbeat else 0)
            current = replace(current, outcome=outcome, reason=reason, last_step=step)
        run = replace(run, attempts=(*run.attempts[:-1], current))
        run = blame(run, current, case.instance.host_id if case.instance else "")
        events = (f"attempt {current.number} ended ({current.outcome}): {current.reason}",)
    run = replace(
        run,
        phase=Phase.TERMINATING,
        phase_since=case.now,
        phase_deadline=None,
        claim_until=None,
        not_before=None,
        waiting_for="",
    )
    return replace(_kill(replace(case, run=run)), events=events)


def _kill(case: _Case) -> Step:
    ids = live_ids(case.run, case.seen.listed)
    attempts = tuple(
        replace(a, terminate_asked_at=case.now) if a.instance_id in ids and a.terminate_asked_at is None else a
        for a in case.run.attempts
    )
    return Step(replace(case.run, attempts=attempts), kill=ids, wait_s=5 if ids or case.seen.listed is None else 1)


def _terminating(case: _Case) -> Step:
    """Nobody leaves before no instance can exist: a complete list shows none, each is proved gone, all is quiet."""
    run, now = case.run, case.now
    quiet = max((a.quiet_after for a in run.attempts), default=now)
    in_doubt = any(a.ended_at is None for a in run.attempts)
    if case.seen.listed is None or case.seen.listed or in_doubt or now < quiet:
        return replace(_kill(case), troubles=_slow_end(case))
    end = verdict(run, spent_usd=case.seen.spent_usd, now=now)
    attempts = without_old_refusals(run.attempts)
    run = replace(run, phase=end.phase, phase_since=now, attempts=attempts, request="", request_until=None)
    run = replace(run, request_outcome=None)
    if end.phase.is_terminal:
        run = replace(run, outcome=end.outcome, reason=end.reason)
        return Step(run, events=(f"{end.phase}: {end.reason}",), wait_s=0)
    pause = backoff(run)
    later = max(filter(None, (run.not_before, now + pause if pause else None)), default=None)
    run = replace(run, not_before=later, waiting_for=run.waiting_for or ("the next try" if pause else ""))
    return Step(
        run, events=("nothing is billing; going on with another attempt",), wait_s=min(30, pause.total_seconds())
    )


def _slow_end(case: _Case) -> tuple[str, ...]:
    patience = timedelta(seconds=SLOW_END_S)
    listed = {i.instance_id: i.console_url for i in case.seen.listed or ()}
    slow = [
        f"instance {a.instance_id} may still be billing: terminating it since {a.terminate_asked_at:%H:%M} UTC"
        + (f"; look at {listed[a.instance_id]}" if listed.get(a.instance_id) else "")
        for a in case.run.attempts
        if a.instance_id and not a.ended_at and a.terminate_asked_at and case.now - a.terminate_asked_at > patience
    ]
    return tuple(slow)


def _strays(case: _Case) -> tuple[InstanceId, ...]:
    """Instances of other attempts, and doubles of the current one: terminated in any phase."""
    own = case.instance.instance_id if case.instance else case.current.instance_id if case.current else None
    if case.run.phase is Phase.PENDING:
        own = None
    return tuple(i for i in live_ids(case.run, case.seen.listed) if i != own)


def _pending(case: _Case) -> Step:
    run = case.run
    if case.seen.listed is None or case.seen.listed or any(a.ended_at is None for a in run.attempts):
        return Step(run, wait_s=10)  # an old instance has come back: it goes before another one is rented
    if run.not_before and case.now < run.not_before:
        return Step(run, wait_s=min(60.0, (run.not_before - case.now).total_seconds()))
    return Step(run, Action.RENT, wait_s=2)


def _provisioning(case: _Case) -> Step:
    run, now, instance = case.run, case.now, case.instance
    if instance and instance.state is InstanceState.RUNNING:
        deadline = now + timedelta(seconds=run.limits.bootstrap_timeout_s)
        run = replace(run, phase=Phase.BOOTSTRAPPING, phase_since=now, phase_deadline=deadline)
        return _bootstrap(replace(case, run=run), instance, ("the instance is ready; putting the agent on it",))
    if run.phase_deadline and now >= run.phase_deadline:
        waited = f"not ready within {run.limits.launch_timeout_s:g} s"
        return _end(case, Outcome.UNREACHABLE, waited)
    odd = instance is not None and instance.state is InstanceState.UNKNOWN
    return _unless_too_long(
        case, odd, SECOND_LOOK_S, _in_their_words(case.instance, "the instance does not come up"), 5
    )


def _bootstrapping(case: _Case) -> Step:
    run, now, instance = case.run, case.now, case.instance
    if case.seen.heartbeat:
        run = replace(run, phase=Phase.RUNNING, phase_since=now, phase_deadline=None, claim_until=None)
        return Step(run, events=("the agent is running",), wait_s=5)
    is_placed = case.current is not None and case.current.bootstrapped_at is not None
    if run.phase_deadline and now >= run.phase_deadline and is_placed:
        return _end(case, Outcome.SETUP_FAILED, "the agent was put in place and never reported")
    reach_until = min(filter(None, (run.phase_deadline, (run.phase_since or now) + REACHED_WITHIN)))
    if now >= reach_until and not is_placed:
        return _end(case, Outcome.UNREACHABLE, "the instance could not be reached to put the agent on it")
    if instance and instance.state is InstanceState.RUNNING and (run.claim_until is None or now >= run.claim_until):
        return _bootstrap(case, instance, ())
    return Step(run, wait_s=5)


def _bootstrap(case: _Case, instance: Instance, events: tuple[str, ...]) -> Step:
    claimed = replace(case.run, claim_until=case.now + timedelta(seconds=case.policy.claim_s))
    return Step(claimed, Action.BOOTSTRAP, instance=instance, events=events, wait_s=5)


def _running(case: _Case) -> Step:
    """Silence is not death: only an instance that neither writes nor answers, for long enough, is given up."""
    beat, patience = case.seen.heartbeat_at, case.run.limits
    if case.is_heard or case.seen.probe in (Probe.NOT_ASKED, Probe.ANSWERED):
        too_long = timedelta(seconds=patience.upload_grace_s + patience.unreachable_grace_s)
        if not case.is_heard and case.seen.probe is Probe.ANSWERED and beat and case.now - beat > too_long:
            return _end(case, Outcome.LOST_UPLOAD, "the instance answers, but has stored nothing for too long")
        if not case.is_heard and case.seen.probe is Probe.NOT_ASKED:
            return Step(case.run, wait_s=15)
        return _unless_too_long(case, False, 0, "", 15)
    since = case.current.silent_since if case.current else None
    if since and beat and beat > since:  # it was heard in between: the next silence gets the full grace again
        case = replace(case, run=_with_silence(case.run, None))
    is_dead = case.seen.probe is Probe.AGENT_DEAD
    why = "the instance answers, but its agent is dead" if is_dead else "neither heartbeat nor answer"
    return _unless_too_long(case, True, patience.unreachable_grace_s, why, 15)


def _unless_too_long(case: _Case, silent: bool, grace_s: float, reason: str, wait_s: float) -> Step:
    """Count a silence: start it, end it, or give the attempt up as UNREACHABLE once it has lasted `grace_s`."""
    current = case.current
    if not silent or current is None:
        return Step(_with_silence(case.run, None), wait_s=wait_s)
    if current.silent_since is None:
        return Step(_with_silence(case.run, case.now), events=(f"silent: {reason}",), wait_s=wait_s)
    if case.now - current.silent_since < timedelta(seconds=grace_s):
        return Step(case.run, wait_s=wait_s)
    return _end(case, Outcome.UNREACHABLE, f"{reason} since {current.silent_since:%H:%M} UTC")


def _with_silence(run: Run, since: datetime | None) -> Run:
    if not run.attempts or run.attempts[-1].silent_since == since:
        return run
    return replace(run, attempts=(*run.attempts[:-1], replace(run.attempts[-1], silent_since=since)))


_LIVE = {
    Phase.PENDING: _pending,
    Phase.PROVISIONING: _provisioning,
    Phase.BOOTSTRAPPING: _bootstrapping,
    Phase.RUNNING: _running,
}
