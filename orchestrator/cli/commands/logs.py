"""tune logs"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.commands._arguments import RunArgument

if TYPE_CHECKING:
    from orchestrator.cli.session import Session
    from orchestrator.types import RunId

POLL_S = 2.0
EXAMPLES = (
    "tune logs night              the latest attempt's log",
    "tune logs night -f           and what comes",
    "tune logs night --attempt 1  an earlier one",
)


def logs(
    run: RunArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    attempt: Annotated[int, typer.Option(min=0, help="Which attempt; the latest when left out.")] = 0,
) -> None:
    """Print what trainer and agent said, as far as it is stored (once a minute); or the log of a set-up that failed."""
    from orchestrator.cli.session import Session
    from orchestrator.errors import RunNotFound

    session = Session()
    run_id = session.runs.resolve(run)
    record = session.runs.load(run_id).run
    if attempt > len(record.attempts):
        raise RunNotFound(
            f"run {record.name} has no attempt {attempt}",
            hint=f"it has {len(record.attempts)}; run `tune status {run_id}`",
        )
    number = attempt or len(record.attempts)
    seen = _print_new(session, run_id, number, "")
    while follow and not record.phase.is_terminal:
        session.clock.sleep(POLL_S)
        record = session.runs.load(run_id).run
        seen = _print_new(session, run_id, number, seen)
        if not attempt and len(record.attempts) > number:
            number, seen = len(record.attempts), _print_new(session, run_id, len(record.attempts), "")
    if not seen and number and _print_set_up(session, run_id, number):
        return
    if not seen and record.phase.is_terminal:
        session.render.note(
            f"attempt {number} has left no log" if number else "no attempt has begun, so there is no log"
        )
    elif not seen:
        session.render.note("nothing has been logged yet; logs arrive about once a minute")


def _print_set_up(session: Session, run_id: RunId, attempt: int) -> bool:
    """Print what a set-up that failed before there was an agent has left; False when there is none."""
    from orchestrator import keys
    from orchestrator.errors import ObjectNotFound

    try:
        data = session.runs.store.get(keys.setup_log(run_id, attempt)).data
    except ObjectNotFound:
        return False
    session.render.note(f"the set-up of attempt {attempt} failed before the agent began; its log:")
    _print(session, attempt, data)
    return True


def _print(session: Session, attempt: int, data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    if session.render.json_mode:
        for line in text.splitlines():
            session.render.event({"attempt": attempt, "line": line}, "")
    else:
        session.render.raw(text if text.endswith("\n") else text + "\n")
    session.render.flush()


def _print_new(session: Session, run_id: RunId, attempt: int, after: str) -> str:
    """Print the segments after `after`; returns the last one's name."""
    from orchestrator import keys

    if not attempt:
        return after
    prefix = keys.log_segment(run_id, attempt, 0).rpartition("/")[0] + "/"
    for name in session.runs.store.children(prefix, start_after=after):
        _print(session, attempt, session.runs.store.get(prefix + name).data)
        after = name
    return after
