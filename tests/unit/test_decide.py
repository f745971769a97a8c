"""decide() as a table: what is on record, what is seen, what follows. One row per rule, the first that applies wins."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest

from orchestrator.absence import Policy
from orchestrator.handover import EXIT_SAVED
from orchestrator.outcomes import reopened, stopped
from orchestrator.states import SAVE_AND_EXIT, Action, Probe, Seen, Step, decide
from orchestrator.types import Attempt, InstanceState, Limits, Outcome, Phase, Run
from tests.unit.cases import NOW, ago, ahead, artifact, attempt, beat, ended, exit_record, instance, run, seen

POLICY = Policy()
UP, STARTING, STOPPED, ODD = (
    instance(),
    instance(state=InstanceState.STARTING),
    instance(state=InstanceState.STOPPED),
    instance(state=InstanceState.UNKNOWN),
)
GONE: dict[str, Any] = {"answers": {"i-1": None}}
FRESH = attempt(
    instance_id=None, first_seen_at=None, created_at=None, intended_at=ago(20), quiet_after=ahead(100)
)  # the intent is on record, nothing more
QUIET = replace(FRESH, intended_at=ago(300), quiet_after=ago(180))
PATIENT = {"phase_deadline": ahead(600)}
STOP = {"stop_requested_at": ago(5)}
ASKED = {**STOP, "request": SAVE_AND_EXIT, "request_outcome": Outcome.CANCELLED}


@dataclass(frozen=True)
class Row:
    """One case. What is not named is not looked at."""

    says: str
    run: Run
    seen: Seen
    phase: Phase
    action: Action = Action.NONE
    kill: tuple[str, ...] = ()
    outcome: Outcome | None = None  # of the current attempt
    also: dict[str, Any] = field(default_factory=dict)  # fields of the run


P, B, R, T = Phase.PROVISIONING, Phase.BOOTSTRAPPING, Phase.RUNNING, Phase.TERMINATING

ROWS = (
    # PENDING
    Row("a new run is rented for", run(Phase.PENDING), seen(), Phase.PENDING, Action.RENT),
    Row("nothing is rented before its time", run(Phase.PENDING, not_before=ahead(1)), seen(), Phase.PENDING),
    Row("the time to wait ends", run(Phase.PENDING, not_before=ago(1)), seen(), Phase.PENDING, Action.RENT),
    Row("nothing is rented without a complete list", run(Phase.PENDING), Seen(), Phase.PENDING),
    Row(
        "an old instance that is back goes first", run(Phase.PENDING, ended(1)), seen(UP), Phase.PENDING, kill=("i-1",)
    ),
    Row(
        "an old instance that is not proved gone again keeps the next from being rented",
        run(Phase.PENDING, replace(ended(1), ended_at=None)),
        seen(),
        Phase.PENDING,
        kill=("i-1",),
    ),
    Row("a stop ends a waiting run", run(Phase.PENDING, **STOP), seen(), T),
    Row(
        "a done run is not rented for",
        run(Phase.PENDING, ended(1)),
        seen(exits={1: exit_record(1, 0, Outcome.SUCCEEDED)}),
        T,
    ),
    Row(
        "nor one whose artifact is there",
        run(Phase.PENDING, ended(1)),
        seen(artifact=artifact(1)),
        T,
        outcome=Outcome.SUCCEEDED,
    ),
    Row(
        "a late record of a user's error ends a waiting run",
        run(Phase.PENDING, ended(1)),
        seen(exits={1: exit_record(1, 1, Outcome.USER_ERROR)}),
        T,
        outcome=Outcome.USER_ERROR,
    ),
    Row(
        "the failures before a resume are forgiven",
        run(Phase.PENDING, ended(1), attempts_at_resume=1, resumes=1),
        seen(exits={1: exit_record(1, 1, Outcome.USER_ERROR)}),
        Phase.PENDING,
        Action.RENT,
    ),
    Row(
        "a success before a resume still counts",
        run(Phase.PENDING, ended(1), attempts_at_resume=1, resumes=1),
        seen(exits={1: exit_record(1, 0, Outcome.SUCCEEDED)}),
        T,
    ),
    # PROVISIONING
    Row("an instance that is not listed yet is waited for", run(P, FRESH, **PATIENT), seen(), P),
    Row("one absence is not enough", run(P, QUIET, **PATIENT), seen(), P),
    Row("nor are two close together", run(P, replace(QUIET, missing_since=ago(29)), **PATIENT), seen(), P),
    Row(
        "two are, when it is quiet",
        run(P, replace(QUIET, missing_since=ago(30)), **PATIENT),
        seen(),
        T,
        outcome=Outcome.NOT_LAUNCHED,
    ),
    Row(
        "a list from before the quiet proves nothing",
        run(P, replace(QUIET, missing_since=ago(300)), **PATIENT),
        seen(listed_at=ago(200)),
        P,
    ),
    Row("no list is no absence", run(P, replace(QUIET, missing_since=ago(300)), **PATIENT), Seen(), P),
    Row("an instance in its start is waited for", run(P, FRESH, **PATIENT), seen(STARTING), P),
    Row("a ready one is bootstrapped", run(P, FRESH, **PATIENT), seen(UP), B, Action.BOOTSTRAP),
    Row("even when the time was up", run(P, FRESH, phase_deadline=ago(900)), seen(UP), B, Action.BOOTSTRAP),
    Row(
        "a start that takes too long is ended",
        run(P, FRESH, phase_deadline=NOW),
        seen(STARTING),
        T,
        kill=("i-1",),
        outcome=Outcome.UNREACHABLE,
    ),
    Row(
        "an instance stopped in its start is ended",
        run(P, FRESH, **PATIENT),
        seen(STOPPED),
        T,
        kill=("i-1",),
        outcome=Outcome.PREEMPTED,
    ),
    Row("an unknown state is looked at twice", run(P, FRESH, **PATIENT), seen(ODD), P),
    Row(
        "and then given up",
        run(P, replace(attempt(), silent_since=ago(30)), **PATIENT),
        seen(ODD),
        T,
        kill=("i-1",),
        outcome=Outcome.UNREACHABLE,
    ),
    Row(
        "a stop ends it at once",
        run(P, FRESH, **PATIENT, **STOP),
        seen(STARTING),
        T,
        kill=("i-1",),
        outcome=Outcome.CANCELLED,
    ),
    Row(
        "a double is ended, the older one stays",
        run(P, FRESH, **PATIENT),
        seen(replace(STARTING, created_at=ago(9)), replace(STARTING, instance_id="i-9", created_at=ago(8))),  # type: ignore[arg-type]
        P,
        kill=("i-9",),
    ),
    # BOOTSTRAPPING
    Row("an agent that writes is running", run(B, attempt(), **PATIENT), seen(UP, **beat()), R),
    Row("a claimed one is left to its claimant", run(B, attempt(), **PATIENT, claim_until=ahead(1)), seen(UP), B),
    Row("a claim runs out", run(B, attempt(), **PATIENT, claim_until=NOW), seen(UP), B, Action.BOOTSTRAP),
    Row("an instance that restarts is waited for", run(B, attempt(), **PATIENT), seen(STARTING), B),
    Row("a marketplace that is silent is waited for", run(B, attempt(), **PATIENT), Seen(), B),
    Row(
        "never reached is unreachable",
        run(B, attempt(), phase_deadline=NOW),
        seen(UP),
        T,
        kill=("i-1",),
        outcome=Outcome.UNREACHABLE,
    ),
    Row(
        "reached, and never heard of, is a failed setup",
        run(B, attempt(bootstrapped_at=ago(900)), phase_deadline=NOW),
        seen(UP),
        T,
        kill=("i-1",),
        outcome=Outcome.SETUP_FAILED,
    ),
    Row(
        "gone while bootstrapping is preempted",
        run(B, attempt(missing_since=ago(31)), **PATIENT),
        seen(**GONE),
        T,
        outcome=Outcome.PREEMPTED,
    ),
    Row(
        "a quick recipe may be done by now",
        run(B, attempt(), **PATIENT),
        seen(UP, exits={1: exit_record(1, 0, Outcome.SUCCEEDED)}),
        T,
        kill=("i-1",),
        outcome=Outcome.SUCCEEDED,
    ),
    # RUNNING
    Row("all is well", run(R, attempt()), seen(UP, **beat()), R),
    Row(
        "a list without it, and an answer by id: all is well", run(R, attempt()), seen(answers={"i-1": UP}, **beat()), R
    ),
    Row("an empty list proves nothing", run(R, attempt(missing_since=ago(3000))), seen(**beat()), R),
    Row("not found once proves nothing", run(R, attempt()), seen(**GONE, **beat()), R),
    Row(
        "not found twice is gone",
        run(R, attempt(missing_since=ago(30))),
        seen(**GONE, **beat()),
        T,
        outcome=Outcome.PREEMPTED,
    ),
    Row("outbid", run(R, attempt()), seen(STOPPED, **beat()), T, kill=("i-1",), outcome=Outcome.PREEMPTED),
    Row("silence is not death", run(R, attempt()), seen(UP, **beat(4000)), R),
    Row("silence and no way to ask is not death", run(R, attempt(silent_since=ago(4000))), Seen(**beat(4000)), R),
    Row(
        "silent, but it answers",
        run(R, attempt(silent_since=ago(4000))),
        seen(UP, probe=Probe.ANSWERED, **beat(4000)),
        R,
    ),
    Row(
        "silent on both lines, for now",
        run(R, attempt(silent_since=ago(1799))),
        seen(UP, probe=Probe.FAILED, **beat(2000)),
        R,
    ),
    Row(
        "silent on both lines for too long",
        run(R, attempt(silent_since=ago(1800))),
        seen(UP, probe=Probe.FAILED, **beat(2000)),
        T,
        kill=("i-1",),
        outcome=Outcome.UNREACHABLE,
    ),
    Row(
        "an agent that is dead, for now",
        run(R, attempt(silent_since=ago(1799))),
        seen(UP, probe=Probe.AGENT_DEAD, **beat(2000)),
        R,
    ),
    Row(
        "an agent that is dead for too long bills for nothing",
        run(R, attempt(silent_since=ago(1800))),
        seen(UP, probe=Probe.AGENT_DEAD, **beat(2000)),
        T,
        kill=("i-1",),
        outcome=Outcome.UNREACHABLE,
    ),
    Row("heard in between", run(R, attempt(silent_since=ago(2000))), seen(UP, probe=Probe.FAILED, **beat(1500)), R),
    Row(
        "answering, and storing nothing for a day and more",
        run(R, attempt()),
        seen(UP, probe=Probe.ANSWERED, **beat(90_000)),
        T,
        kill=("i-1",),
        outcome=Outcome.LOST_UPLOAD,
    ),
    Row(
        "the exit record is stronger than the loss",
        run(R, attempt(missing_since=ago(31))),
        seen(**GONE, **beat(), exits={1: exit_record(1, 0, Outcome.SUCCEEDED)}),
        T,
        outcome=Outcome.SUCCEEDED,
    ),
    Row(
        "the exit record is stronger than the stop",
        run(R, attempt(), **STOP),
        seen(UP, **beat(), exits={1: exit_record(1, 1, Outcome.DIVERGED)}),
        T,
        kill=("i-1",),
        outcome=Outcome.DIVERGED,
    ),
    Row("a living agent writes its own record", run(R, attempt()), seen(UP, **beat(), artifact=artifact(1)), R),
    Row(
        "a dead one's artifact speaks for it",
        run(R, attempt()),
        seen(UP, **beat(200), artifact=artifact(1)),
        T,
        kill=("i-1",),
        outcome=Outcome.SUCCEEDED,
    ),
    Row(
        "and a stopped one's",
        run(R, attempt()),
        seen(STOPPED, **beat(), artifact=artifact(1)),
        T,
        kill=("i-1",),
        outcome=Outcome.SUCCEEDED,
    ),
    Row(
        "an earlier attempt that finished after all ends the later one",
        run(R, ended(1), attempt(2)),
        seen(instance(2), **beat(), exits={1: exit_record(1, 0, Outcome.SUCCEEDED)}),
        T,
        kill=("i-2",),
        outcome=Outcome.CANCELLED,
    ),
    Row(
        "an earlier attempt's user error ends the later one",
        run(R, ended(1), attempt(2)),
        seen(instance(2), **beat(), exits={1: exit_record(1, 1, Outcome.USER_ERROR)}),
        T,
        kill=("i-2",),
        outcome=Outcome.CANCELLED,
    ),
    Row(
        "an earlier attempt's instance is ended",
        run(R, ended(1), attempt(2)),
        seen(UP, instance(2), **beat()),
        R,
        kill=("i-1",),
    ),
    Row(
        "an instance of an attempt not on record is ended",
        run(R, attempt()),
        seen(UP, instance(7), **beat()),
        R,
        kill=("i-7",),
    ),
    Row(
        "a stop asks the agent to save",
        run(R, attempt(), **STOP),
        seen(UP, **beat()),
        R,
        also={"request": SAVE_AND_EXIT, "request_until": ahead(90)},
    ),
    Row("and waits for it", run(R, attempt(), **ASKED, request_until=ahead(1)), seen(UP, **beat()), R),
    Row(
        "but not for long",
        run(R, attempt(), **ASKED, request_until=NOW),
        seen(UP, **beat()),
        T,
        kill=("i-1",),
        outcome=Outcome.CANCELLED,
    ),
    Row(
        "a hurried stop asks nobody",
        run(R, attempt(), **STOP, stop_now=True),
        seen(UP, **beat()),
        T,
        kill=("i-1",),
        outcome=Outcome.CANCELLED,
    ),
    Row(
        "what the agent saved on request ends as it was asked",
        run(R, attempt(), **ASKED, request_until=ahead(9)),
        seen(UP, exits={1: exit_record(1, EXIT_SAVED, Outcome.MOVED)}),
        T,
        kill=("i-1",),
        outcome=Outcome.CANCELLED,
    ),
    Row(
        "saved without having been asked is a preemption with notice",
        run(R, attempt()),
        seen(UP, exits={1: exit_record(1, EXIT_SAVED, Outcome.CANCELLED)}),
        T,
        kill=("i-1",),
        outcome=Outcome.PREEMPTED,
    ),
    Row(
        "a spent budget asks the agent to save",
        run(R, attempt(), limits=Limits(budget_usd=Decimal(1))),
        seen(UP, **beat(), spent_usd=Decimal("1.00")),
        R,
        also={"request": SAVE_AND_EXIT, "request_outcome": Outcome.BUDGET},
    ),
    Row(
        "a budget not yet spent does not",
        run(R, attempt(), limits=Limits(budget_usd=Decimal(1))),
        seen(UP, **beat(), spent_usd=Decimal("0.99")),
        R,
        also={"request": ""},
    ),
    Row(
        "a deadline asks too",
        run(R, attempt(), limits=Limits(deadline_s=4000)),
        seen(UP, **beat()),
        R,
        also={"request_outcome": Outcome.BUDGET},
    ),
    Row(
        "a deadline counts from the resume",
        run(R, attempt(), limits=Limits(deadline_s=4000), resumed_at=ago(60)),
        seen(UP, **beat()),
        R,
        also={"request": ""},
    ),
    Row(
        "a move asks the agent to save",
        run(R, attempt(), request_outcome=Outcome.MOVED),
        seen(UP, **beat()),
        R,
        also={"request": SAVE_AND_EXIT},
    ),
    # TERMINATING
    Row("accepted is not gone", run(T, ended(1, ended_at=None)), seen(UP), T, kill=("i-1",)),
    Row("not listed is not gone", run(T, ended(1, ended_at=None)), seen(), T, kill=("i-1",)),
    Row("gone, but without a complete list", run(T, ended(1)), Seen(), T),
    Row("gone, but listed again", run(T, ended(1)), seen(UP), T, kill=("i-1",)),
    Row("gone, but not yet quiet", run(T, ended(1, quiet_after=ahead(1))), seen(), T),
    Row("an unknown instance may still appear", run(T, ended(1, instance_id=None, ended_at=None)), seen(), T),
    Row("every attempt counts", run(T, ended(1, ended_at=None), ended(2)), seen(), T, kill=("i-1",)),
    Row("a preempted run goes on", run(T, ended(1)), seen(), Phase.PENDING),
    Row("a stopped one does not", run(T, ended(1), **STOP), seen(), Phase.CANCELLED),
    Row("a finished one is done", run(T, ended(1, Outcome.SUCCEEDED)), seen(), Phase.SUCCEEDED),
    Row("a finished one is done, stop or not", run(T, ended(1, Outcome.SUCCEEDED), **STOP), seen(), Phase.SUCCEEDED),
    Row(
        "a late record counts", run(T, ended(1)), seen(exits={1: exit_record(1, 0, Outcome.SUCCEEDED)}), Phase.SUCCEEDED
    ),
    Row(
        "a late bad record counts too", run(T, ended(1)), seen(exits={1: exit_record(1, 1, Outcome.OOM)}), Phase.FAILED
    ),
    Row("an artifact without a record counts", run(T, ended(1)), seen(artifact=artifact(1)), Phase.SUCCEEDED),
    Row("the last attempt allowed", run(T, ended(1), limits=Limits(max_attempts=1)), seen(), Phase.FAILED),
    Row(
        "refusals do not count",
        run(T, ended(1, Outcome.NOT_LAUNCHED, refused=True), limits=Limits(max_attempts=1)),
        seen(),
        Phase.PENDING,
    ),
    Row(
        "attempts before a resume do not count",
        run(T, ended(1), ended(2), limits=Limits(max_attempts=2), attempts_at_resume=1),
        seen(),
        Phase.PENDING,
    ),
    Row("a stopped run without attempts", run(T, **STOP), seen(), Phase.CANCELLED),
    Row(
        "a spent budget ends it",
        run(T, ended(1), limits=Limits(budget_usd=Decimal(1))),
        seen(spent_usd=Decimal(2)),
        Phase.FAILED,
        also={"outcome": Outcome.BUDGET},
    ),
    # ended
    Row(
        "an ended run stays ended",
        run(Phase.FAILED, ended(1)),
        seen(exits={1: exit_record(1, 0, Outcome.SUCCEEDED)}),
        Phase.FAILED,
    ),
    Row(
        "what shows up after the end is ended", run(Phase.SUCCEEDED, ended(1)), seen(UP), Phase.SUCCEEDED, kill=("i-1",)
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.run.phase}: {row.says}")
def test_what_follows(row: Row) -> None:
    step = decide(row.run, row.seen, NOW, POLICY)
    assert step.run.phase is row.phase, step.events
    assert step.action is row.action
    assert step.kill == row.kill
    if row.outcome:
        assert step.run.attempts[-1].outcome is row.outcome
    for name, value in row.also.items():
        assert getattr(step.run, name) == value


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.run.phase}: {row.says}")
def test_no_step_forgets_an_attempt_or_an_id(row: Row) -> None:
    before, after = row.run.attempts, decide(row.run, row.seen, NOW, POLICY).run.attempts
    assert [a.number for a in after] == [a.number for a in before]
    for old, new in zip(before, after, strict=True):
        assert new.token == old.token
        assert old.instance_id in (None, new.instance_id)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.run.phase}: {row.says}")
def test_looking_twice_in_the_same_moment_changes_nothing_more(row: Row) -> None:
    first = decide(row.run, row.seen, NOW, POLICY)
    if first.run.phase is row.run.phase:
        again = decide(first.run, row.seen, NOW, POLICY)
        assert again.run.attempts == first.run.attempts


def test_a_quiet_run_is_not_written_at_all() -> None:
    """A pass over a run that is well must not cost a write."""
    first = decide(run(R, attempt()), seen(UP, **beat()), NOW, POLICY).run
    assert decide(first, seen(UP, **beat()), ahead(15), POLICY).run == first


class TestStopAndResume:
    def test_a_stop_is_recorded_once_and_may_become_hurried(self) -> None:
        asked = stopped(run(R, attempt()), ago(50))
        assert stopped(asked, NOW).stop_requested_at == ago(50)
        assert stopped(asked, NOW, at_once=True).stop_now
        assert stopped(stopped(asked, NOW, at_once=True), NOW).stop_now

    def test_an_ended_run_cannot_be_stopped(self) -> None:
        done = run(Phase.SUCCEEDED, ended(1, Outcome.SUCCEEDED))
        assert stopped(done, NOW) == done

    @pytest.mark.parametrize("phase", [Phase.FAILED, Phase.CANCELLED])
    def test_a_failed_or_cancelled_run_opens_with_a_fresh_allowance(self, phase: Phase) -> None:
        old = run(phase, ended(1), ended(2), **ASKED, stop_now=True, excluded_hosts=("h",), outcome=Outcome.CANCELLED)
        new = reopened(old, NOW)
        assert new.phase is Phase.PENDING
        assert (new.stop_requested_at, new.stop_now, new.request, new.request_outcome) == (None, False, "", None)
        assert (new.resumes, new.attempts_at_resume, new.resumed_at) == (1, 2, NOW)
        assert (new.outcome, new.excluded_hosts) == (None, ())
        assert new.attempts == old.attempts, "what was is not forgotten"

    @pytest.mark.parametrize("phase", [p for p in Phase if p not in (Phase.FAILED, Phase.CANCELLED)])
    def test_any_other_stays_as_it_is(self, phase: Phase) -> None:
        same = run(phase, ended(1))
        assert reopened(same, NOW) == same


class TestWhatIsToldToTheUser:
    def test_a_slow_end_names_the_instance_and_where_to_look(self) -> None:
        slow = run(T, ended(1, ended_at=None, terminate_asked_at=ago(601)))
        told = decide(slow, seen(replace(UP, console_url="https://c/i-1")), NOW, POLICY).troubles
        assert len(told) == 1
        assert "i-1 may still be billing" in told[0]
        assert "https://c/i-1" in told[0]

    def test_a_fresh_end_does_not_worry_anybody(self) -> None:
        assert self._step(run(T, ended(1, ended_at=None, terminate_asked_at=ago(60)))).troubles == ()

    def test_the_outcome_and_the_host_to_blame_are_on_record(self) -> None:
        step = decide(
            run(R, attempt(silent_since=ago(1800))),
            seen(replace(UP, host_id="h7"), probe=Probe.FAILED, **beat(2000)),
            NOW,
            POLICY,
        )
        assert step.run.excluded_hosts == ("h7",)
        assert step.run.attempts[-1].last_step == 40
        assert step.run.attempts[-1].terminate_asked_at == NOW

    def _step(self, given: Run) -> Step:
        return decide(given, seen(UP), NOW, POLICY)


def test_waits_are_longer_with_every_attempt_that_could_not_be_launched() -> None:
    def pause(count: int) -> float:
        lost: list[Attempt] = [ended(n + 1, Outcome.NOT_LAUNCHED, instance_id=None) for n in range(count)]
        after = decide(run(T, *lost, limits=Limits(max_attempts=99)), seen(), NOW, POLICY).run
        return (after.not_before - NOW).total_seconds() if after.not_before else 0

    assert [pause(n) for n in (1, 2, 3, 9)] == [30, 60, 120, 600]


SPOT = replace(attempt().offer, spot=True, offer_id="o-7")


@pytest.mark.parametrize("phase", [Phase.PROVISIONING, Phase.BOOTSTRAPPING])
@pytest.mark.parametrize(
    ("now_is", "said"),
    [
        ({"spot": False}, "on demand"),
        ({"spot": True, "usd_per_hour": Decimal("0.72")}, "was promised"),
    ],
)
def test_another_bargain_than_was_promised_is_given_back_before_it_trains(
    phase: Phase, now_is: dict[str, Any], said: str
) -> None:
    rented = attempt(offer=SPOT)
    step = decide(run(phase, rented, **PATIENT), seen(instance(**now_is)), NOW, POLICY)
    assert step.run.phase is Phase.TERMINATING
    assert step.kill == ("i-1",)
    assert said in step.run.attempts[-1].reason
    assert "o-7" in step.run.excluded_offers


def test_a_price_that_is_rounded_or_not_told_is_as_promised() -> None:
    for price in (Decimal(0), Decimal("0.3601"), Decimal("0.10")):
        step = decide(
            run(Phase.PROVISIONING, attempt(offer=SPOT), **PATIENT), seen(instance(usd_per_hour=price)), NOW, POLICY
        )
        assert step.action is Action.BOOTSTRAP, price


def test_an_instance_that_lets_nobody_in_for_ten_minutes_is_given_up_however_long_a_set_up_may_take() -> None:
    def after(seconds: float, **changes: Any) -> Step:
        wanted = run(Phase.BOOTSTRAPPING, attempt(**changes), phase_since=ago(seconds), phase_deadline=ahead(1200))
        return decide(wanted, seen(UP), NOW, POLICY)

    assert after(590).action is Action.BOOTSTRAP
    assert after(610).run.attempts[-1].outcome is Outcome.UNREACHABLE
    assert after(610, bootstrapped_at=ago(300)).run.phase is Phase.BOOTSTRAPPING, "the agent is there and sets up"
