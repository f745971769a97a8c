"""The live view at a terminal, and what it becomes elsewhere."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from orchestrator.cli.follow import SafeUntil
from orchestrator.cli.live import facts, panel, progress_line
from orchestrator.cli.render import Renderer
from orchestrator.cli.view import View, document
from orchestrator.storage.runs import StoredCheckpoint
from orchestrator.types import (
    Attempt,
    Heartbeat,
    Namespace,
    Offer,
    Phase,
    Run,
    RunId,
    Token,
)
from tests.cli.simdesk import SimDesk

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
STARTED = NOW - timedelta(minutes=10)


def a_view(*, name: str = "night", phase: Phase = Phase.RUNNING, **beat: object) -> View:
    offer = Offer("sim", "o", Decimal("0.40"), spot=True, gpu_name="RTX 4090")
    attempt = Attempt(2, Token("t"), "sim", offer, STARTED, STARTED, running_at=STARTED)
    run = Run(
        RunId("0000000000"),
        name,
        Namespace("n"),
        STARTED - timedelta(hours=1),
        "r",
        "d",
        "sim",
        phase=phase,
        attempts=(attempt,),
    )
    values: dict[str, object] = {
        "attempt": 2, "seq": 1, "stage": "training", "step": 60, "max_steps": 160, "loss": 1.2345, "tokens_per_s": 1234.5,
        "losses": (3.0, 2.0, 1.5, 1.2), "restored_step": 40, "notes": ("older checkpoint used: 50 was damaged",),
    }  # fmt: skip
    heartbeat = Heartbeat(**{**values, **beat})  # type: ignore[arg-type]
    checkpoint = StoredCheckpoint("k", 55, 2, NOW - timedelta(seconds=200))
    return View(run, NOW, Decimal("0.61"), heartbeat, NOW, checkpoint)


def with_keys(view: View, until: datetime) -> View:
    """The same instance with keys to the bucket that expire."""
    attempt = replace(view.run.attempts[-1], keys_until=until)
    return replace(view, run=replace(view.run, attempts=(attempt,)))


def test_it_says_until_when_nobody_needs_to_look_and_whether_that_is_long_enough() -> None:
    shown = dict(facts(with_keys(a_view(), NOW + timedelta(hours=3)), plain=True))
    assert shown["safe until"] == "2026-05-01 15:00 UTC (3h 00m) without this computer"
    soon = with_keys(a_view(), NOW + timedelta(minutes=20))
    assert soon.outlasts_its_keys, "100 of 120 steps are left, and 20 took ten minutes"
    assert (
        "sooner than it will be done: let cron renew the keys (`tune cron print`), or set TUNE_WORKER_ACCESS_KEY_ID"
        in dict(facts(soon, plain=True))["safe until"]
    )
    past = dict(facts(with_keys(a_view(), NOW - timedelta(minutes=1)), plain=True))
    assert "`tune reconcile --all` renews" in past["safe until"]


def test_a_watched_run_says_it_once_and_again_only_when_it_is_too_short() -> None:
    said: list[str] = []
    tell = SafeUntil()
    for view in (a_view(), *(with_keys(a_view(), NOW + timedelta(hours=hours)) for hours in (3, 4)),
                 *(with_keys(a_view(), NOW + timedelta(minutes=minutes)) for minutes in (20, 30))):  # fmt: skip
        tell(view, said.append)
    assert [line.partition(" (")[0] for line in said] == [
        "safe until 2026-05-01 15:00 UTC",
        "safe until 2026-05-01 12:20 UTC",
    ]
    assert "tune cron print" in said[1] and "tune cron print" not in said[0]


def test_keys_that_never_expire_and_runs_that_have_ended_need_no_word() -> None:
    assert "safe until" not in dict(facts(a_view(), plain=True))
    ended = with_keys(a_view(phase=Phase.SUCCEEDED), NOW + timedelta(hours=3))
    assert "safe until" not in dict(facts(ended, plain=True))
    assert document(ended, storage="s3://b")["safe_until"] is None


def test_the_view_tells_what_a_person_wants_to_know() -> None:
    told = dict(facts(a_view(), plain=False))
    assert told["phase"] == "running (training)"
    assert told["attempt"] == "2 on sim (RTX 4090 spot)"
    assert told["step"].startswith("60/160 █")
    assert told["loss"] == "1.234 █▄▂▁"
    assert told["speed"] == "1,234 tokens/s"
    assert told["time"] == "1h 10m, about 50m 00s left", "twenty steps in ten minutes, a hundred to go"
    assert told["spent"] == "$0.610"
    assert told["checkpoint"] == "step 55, 3m 20s ago"
    assert told["note"] == "older checkpoint used: 50 was damaged"


def test_nothing_is_invented_while_there_is_no_pace() -> None:
    assert a_view(step=40).remaining_s is None
    assert a_view(max_steps=0).remaining_s is None
    assert a_view(phase=Phase.SUCCEEDED).remaining_s is None


def test_one_line_says_it_all_where_there_is_no_terminal() -> None:
    line = progress_line(a_view())
    assert line == "  running a2, training, step 60/160, loss 1.234, 1,234 tok/s, left 50m 00s, checkpoint 55, $0.610"


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("plain", [True, False])
def test_the_panel_fits_any_width_and_any_alphabet(width: int, plain: bool) -> None:
    from rich.console import Console

    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(panel(a_view(name="näme [bold]not markup[/bold]"), plain=plain))
    lines = capture.get().splitlines()
    assert all(len(line) <= width for line in lines)
    if plain:
        assert set("█▁░╭│") & set("".join(lines)) == set()
    if width == 200:
        assert "[bold]" in capture.get(), "a name is shown, not interpreted"


def test_at_a_terminal_the_view_is_drawn_and_the_end_is_readable(sim: SimDesk) -> None:
    sim.climate(total_steps=200)
    sim.a_run("night")
    leader, follower = pty.openpty()
    argv = [sys.executable, "-m", "orchestrator", "--config", str(sim.config), "resume", "night"]
    child = subprocess.Popen(
        argv,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**sim.environment, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
    )
    os.close(follower)
    shown = b""
    give_up = time.monotonic() + 90
    while time.monotonic() < give_up:
        if select.select([leader], [], [], 0.2)[0]:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # the other side is closed
                break
            shown += piece
            if not piece:
                break
    os.close(leader)
    assert child.wait(60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "night  " in text
    assert re.search(r"phase +.*running", text)
    assert "step" in text
    assert "200/200" in text
    assert "nothing is billing" in text
    assert "Traceback" not in text


def test_a_table_shows_where_a_narrow_terminal_has_cut_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`10` of `100` would be another number."""
    monkeypatch.setattr(Renderer, "is_terminal", True)
    monkeypatch.setattr(Renderer, "speaks_unicode", False)
    monkeypatch.setenv("COLUMNS", "12")
    Renderer(json_mode=False).table(("NAME", "STEP"), [("a-night", "1000"), ("b", "7")])
    assert capsys.readouterr().out == "NAME     S~\na-night  1~\nb        7\n"
