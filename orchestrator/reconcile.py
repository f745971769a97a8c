"""One pass over one run: look, decide, record the intent, act, record the result. Never sleeps, never waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator import upkeep
from orchestrator.absence import instance_of
from orchestrator.acts import Renting, amend, prune, terminate
from orchestrator.errors import RunConflict, TerminationUnconfirmed, TuneError
from orchestrator.observe import Context, Listing, Look
from orchestrator.outcomes import reopened, stopped
from orchestrator.placing import put_agent
from orchestrator.states import Action, Step, decide
from orchestrator.types import Phase, Run, RunId

__all__ = [
    "AllPasses",
    "Context",
    "Pass",
    "reconcile",
    "reconcile_all",
    "reopen",
    "reopened",
    "request_stop",
    "stopped",
]

AT_ONCE = 6  # so many passes in a row over a run that need not wait; each phase takes one


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass made of a run, and when the next one is worth while."""

    run: Run
    step: Step | None = None
    wait_s: float = 0.0
    events: tuple[str, ...] = ()  # something happened
    troubles: tuple[str, ...] = ()  # something could not be seen or done; the next pass tries again

    def check(self) -> None:
        """Raise TerminationUnconfirmed when an instance has not gone for long, and may still be billing."""
        if self.step and self.step.troubles:
            raise TerminationUnconfirmed(
                f"run {self.run.name} ({self.run.run_id}): {'; '.join(self.step.troubles)}",
                instances=[(a.provider, a.instance_id) for a in self.run.attempts if a.instance_id and not a.ended_at],
                hint=f"end it in the provider's console; tune stop {self.run.run_id}   keeps trying, and so does cron",
            )


@dataclass(slots=True)
class AllPasses:
    """A pass over every active run. One run's trouble is not another's."""

    passes: dict[RunId, Pass] = field(default_factory=dict)
    errors: dict[RunId, TuneError] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)  # of ended runs: their bills


def reconcile(context: Context, run_id: RunId, *, listing: Listing | None = None) -> Pass:
    """One pass. Raises what this pass could not mend; the run's record is sound whenever it does.

    Losing a race is no error: whoever moved the run meanwhile has done this pass's work.
    """
    loaded = context.runs.load(run_id)
    if loaded.run.phase.is_terminal:
        context.runs.settle(run_id)
        return Pass(loaded.run)
    try:
        return _pass(context, loaded.run, loaded.version, listing or Listing(context))
    except RunConflict:
        return Pass(context.runs.load(run_id).run, wait_s=1, events=("someone else moved the run",))


def _pass(context: Context, run: Run, version: str, listing: Listing) -> Pass:
    look = Look(context, run, listing)
    seen, now = look.take()
    step = decide(run, seen, now, context.policy(run.provider))
    if step.run != run:
        upkeep.note_open_bill(
            context, step.run, now
        )  # before the end: a note too many is harmless, a missing one is not
        version = context.runs.save(step.run, expect=version)
    elif step.kill and context.runs.load(run.run_id).version != version:
        # The list is younger than the record: what looks like a stray may be what somebody has rented since. A save
        # would have noticed.
        raise RunConflict(f"run {run.run_id} has moved on while it was looked at")
    events, troubles = list(step.events), [*look.troubles, *step.troubles]
    troubles += terminate(context, run.provider, step.kill)
    after = step.run
    if step.action is Action.RENT:
        renting = Renting(context, step.run, version, events)
        after = renting.rent()
    elif step.action is Action.BOOTSTRAP and step.instance is not None:
        after, told = put_agent(context, step.run, step.instance)
        events += told
    if run.phase is Phase.TERMINATING and after.phase is not Phase.TERMINATING:
        troubles += prune(context, after)
    troubles += upkeep.remember_hosts(context, run, after)
    instance = instance_of(after.attempts[-1], seen.listed, seen.answers) if after.attempts else None
    after, told = upkeep.renew_keys(context, after, instance, now)
    troubles += told
    if after.phase.is_terminal:  # a bill that is late is asked for by later passes, and nobody's trouble now
        after, _ = upkeep.settle_bills(context, after, now)
    return Pass(after, step, step.wait_s, tuple(events), tuple(troubles))


def reconcile_all(context: Context) -> AllPasses:
    """One pass over every run that is not terminal, with one list per provider; errors are kept per run."""
    listing, result = Listing(context), AllPasses()
    for run_id in context.runs.active():
        try:
            for _ in range(AT_ONCE):
                result.passes[run_id] = done = reconcile(context, run_id, listing=listing)
                if done.run.phase.is_terminal or done.wait_s > 0:
                    break
        except TuneError as e:
            result.errors[run_id] = e
    result.troubles += upkeep.settle_ended(context)
    return result


def request_stop(context: Context, run_id: RunId, *, at_once: bool = False) -> Run:
    """Put the user's wish to stop on record; passes do the rest. `at_once`: without time to save."""
    return amend(context, run_id, lambda run: stopped(run, context.runs.store.now(), at_once=at_once))


def reopen(context: Context, run_id: RunId) -> Run:
    """Let a failed or cancelled run go on, once, however many ask for it together; any other stays as it is."""
    return amend(context, run_id, lambda run: reopened(run, context.runs.store.now()))
