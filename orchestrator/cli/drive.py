"""The foreground loop: one pass, look, wait, again. Ctrl-C ends the watching, never the run."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.cli import invocation
from orchestrator.cli.live import Watch
from orchestrator.cli.view import observe
from orchestrator.errors import (
    BudgetSpent,
    CheckpointCorrupt,
    CredentialsMissing,
    NoOfferFits,
    QuotaExceeded,
    RecordCorrupt,
    RunCancelled,
    RunConflict,
    RunFailed,
    RunNotFound,
    StorageDenied,
    TerminationUnconfirmed,
    TuneError,
)
from orchestrator.types import Outcome, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrator.cli.session import Session
    from orchestrator.cli.view import View
    from orchestrator.types import Attempt, Run, RunId

LOOK_EVERY_S = 1.0  # a folder is cheap to look at
LOOK_EVERY_REMOTE_S = 5.0  # a bucket costs a request per look
EMBEDDED_WAIT_S = 3.0
TROUBLE_WAIT_S = 5.0  # after a failed pass; doubles up to the next one
TROUBLE_WAIT_MAX_S = 60.0
MARKET_WAIT_S = 60.0
UNCONFIRMED_AFTER_S = 900.0  # a stop that has not been confirmed by then deserves a person's eye
NEEDS_A_PERSON = (RunNotFound, RecordCorrupt, CredentialsMissing, QuotaExceeded, StorageDenied)
ENDING = ("finishing", "ended", "upload_blocked")  # stages of an agent that an exit record may follow
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Detached(KeyboardInterrupt):
    """The user turned away; the run goes on."""


@dataclass(slots=True)
class Goal:
    """When a drive is over: by default at the run's end."""

    reached: Callable[[Run], bool] = field(default=lambda run: run.phase.is_terminal)
    gives_up_after_s: float | None = None
    on_look: Callable[[View, Callable[[str], None]], None] | None = None  # sees what the watcher sees, and may speak


def drive(session: Session, run_id: RunId, goal: Goal | None = None) -> Run:
    """Carry a run on until the goal is reached. Raises Detached after Ctrl-C.

    What may pass by itself (a store or a marketplace that does not answer) is shown and tried again for as long as it
    takes. What only a person can mend ends the loop with its error.
    """
    turned_away = threading.Event()
    with _signals(turned_away), Watch(session.render, storage=session.settings.storage) as watch:
        return _Loop(session, run_id, goal or Goal(), watch, turned_away).run()


@dataclass(slots=True)
class _Loop:
    session: Session
    run_id: RunId
    goal: Goal
    watch: Watch
    turned_away: threading.Event
    trouble_s: float = TROUBLE_WAIT_S
    phase: Phase | None = None  # after the last pass

    def run(self) -> Run:
        started = self.session.clock.monotonic()
        while True:
            run, wait_s = self._try()
            if run is not None and (run.phase.is_terminal or self.goal.reached(run)):
                return run
            waited = self.session.clock.monotonic() - started
            if self.goal.gives_up_after_s is not None and waited > self.goal.gives_up_after_s:
                raise _unconfirmed(self.session, self.run_id)
            self._wait(wait_s)
            if self.turned_away.is_set():
                raise Detached

    def _try(self) -> tuple[Run | None, float]:
        """One pass, and how long to wait after it. No run: it did not work this time."""
        try:
            done = self._pass()
        except NEEDS_A_PERSON:
            raise
        except NoOfferFits as e:
            if not self._has_attempts():
                raise  # a first launch: the recipe asks for what the market does not have
            self.watch.trouble(e.message)
            return None, MARKET_WAIT_S
        except RunConflict:  # another orchestrator moved it: look again
            return None, LOOK_EVERY_S
        except TuneError as e:
            self.watch.trouble(e.message)
            wait_s, self.trouble_s = self.trouble_s, min(TROUBLE_WAIT_MAX_S, 2 * self.trouble_s)
            return None, wait_s
        self.trouble_s = TROUBLE_WAIT_S
        return done

    def _has_attempts(self) -> bool:
        with contextlib.suppress(TuneError):
            return bool(self.session.runs.load(self.run_id).run.attempts)
        return True  # the store does not say; the next pass will

    def _pass(self) -> tuple[Run, float]:
        from orchestrator.reconcile import reconcile

        done = reconcile(self.session.context, self.run_id)
        for text in done.events:
            self.watch.event(text)
        if done.troubles:
            self.watch.trouble("; ".join(done.troubles))
        else:
            self.watch.well()
        self.phase = done.run.phase
        self._look(done.run)
        return done.run, min(done.wait_s, self._longest_wait_s(done.run))

    def _longest_wait_s(self, run: Run) -> float:
        """A marketplace on this very machine costs nothing to ask."""
        is_embedded = self.session.provider(run.provider).provider.capabilities.list_lag_s == 0
        return EMBEDDED_WAIT_S if is_embedded else math.inf

    def _look(self, run: Run) -> View:
        view = observe(self.session.runs, run, now=self.session.runs.store.now())
        self.watch.show(view, monotonic_s=self.session.clock.monotonic())
        if self.goal.on_look:
            self.goal.on_look(view, self.watch.event)
        return view

    def _is_worth_a_pass(self, view: View) -> bool:
        """The run has moved on since the last pass: its attempt has ended, or somebody else has changed the record."""
        run, beat = view.run, view.heartbeat
        if run.phase is not self.phase:
            return True
        is_ending = beat is not None and (beat.stage in ENDING or (beat.max_steps > 0 and beat.step >= beat.max_steps))
        if not is_ending or run.attempt is None or run.phase is Phase.TERMINATING:
            return False
        return self.session.runs.exit_record(self.run_id, run.attempt.number) is not None

    def _wait(self, wait_s: float) -> None:
        """Until the next pass is due, with a look now and then.."""
        is_local = self.session.settings.storage.startswith("file:")
        every_s = LOOK_EVERY_S if is_local else LOOK_EVERY_REMOTE_S
        until = self.session.clock.monotonic() + wait_s
        while not self.turned_away.is_set():
            left_s = until - self.session.clock.monotonic()
            if left_s <= 0:
                return
            self.turned_away.wait(min(left_s, every_s))
            if left_s > every_s and not self.turned_away.is_set():
                with contextlib.suppress(TuneError):  # the next pass will say what is wrong
                    if self._is_worth_a_pass(self._look(self.session.runs.load(self.run_id).run)):
                        return


@contextlib.contextmanager
def _signals(turned_away: threading.Event) -> Iterator[None]:
    """Ctrl-C and friends set a flag; a pass that is under way is finished first. A second one changes nothing."""

    def turn_away(number: int, _frame: Any) -> None:
        if not turned_away.is_set() and number == signal.SIGINT and not invocation.current().json:
            with contextlib.suppress(OSError):
                os.write(
                    2, b"\nleaving; the step under way is finished first\n"
                )  # print() may be in the middle of a line
        turned_away.set()

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        if before[number] is not signal.SIG_IGN:  # nohup means it
            signal.signal(number, turn_away)
    try:
        yield
    finally:
        for number, handler in before.items():
            # Once turned away, the way out is short and a second Ctrl-C must not tear it.
            signal.signal(number, signal.SIG_IGN if turned_away.is_set() else handler)


def say_detached(session: Session, run_id: RunId, *, to_stderr: bool) -> None:
    """The run goes on; how to look again and how to stop it."""
    text = (
        "The run goes on without this terminal.\n"
        f"  watch and drive it:  tune resume {run_id}\n"
        f"  stop it:             tune stop {run_id}"
    )
    if to_stderr:
        session.render.note(text)
        return
    document = {"event": "detached", "run_id": run_id, "resume": f"tune resume {run_id}", "stop": f"tune stop {run_id}"}
    session.render.event(document, text)


def check_end(run: Run) -> None:
    """Raise what the run's end means for the exit code; return when it succeeded."""
    if run.phase is Phase.SUCCEEDED or not run.phase.is_terminal:
        return
    what = f"run {run.name} ({run.run_id})"
    because = f": {run.reason}" if run.reason else ""
    again = f"tune logs {run.run_id}   shows why; tune resume {run.run_id}   goes on from the newest checkpoint"
    if run.outcome is Outcome.BUDGET:
        raise BudgetSpent(
            f"{what} has used up its budget{because}", hint=f"tune resume {run.run_id}   grants it the same again"
        )
    if run.phase is Phase.CANCELLED:
        raise RunCancelled(
            f"{what} was stopped{because}", hint=f"tune resume {run.run_id}   goes on from the newest checkpoint"
        )
    last = run.attempt
    if last and last.exit_code == CheckpointCorrupt.exit_code:
        raise CheckpointCorrupt(f"{what} has no checkpoint that verifies{because}", hint=again)
    raise RunFailed(f"{what} failed ({run.outcome.value if run.outcome else 'no outcome'}){because}", hint=again)


def _unconfirmed(session: Session, run_id: RunId) -> TerminationUnconfirmed:
    run = session.runs.load(run_id).run
    left = [attempt for attempt in run.attempts if not attempt.ended_at]
    ids = [f"{attempt.instance_id or attempt.token} at {attempt.provider}" for attempt in left]
    urls = " ".join(filter(None, (_console_url(session, attempt) for attempt in left)))
    return TerminationUnconfirmed(
        f"not confirmed gone, may still be billing: {', '.join(ids) or 'unknown'}",
        instances=[(attempt.provider, attempt.instance_id) for attempt in left if attempt.instance_id],
        hint=f"look at {urls or 'the console of the provider'}; tune stop {run_id}   keeps trying",
    )


def _console_url(session: Session, attempt: Attempt) -> str:
    """Where a person can look at the instance, if the provider says so."""
    with contextlib.suppress(TuneError):
        if attempt.instance_id:
            return session.provider(attempt.provider).provider.get(attempt.instance_id).console_url
    return ""
