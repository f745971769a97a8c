"""Commands on runs, each as a process of its own, on the simulated cloud."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrator import keys
from orchestrator.types import (
    ArtifactManifest,
    CheckpointManifest,
    LaunchSpec,
    Outcome,
    Phase,
    Requirements,
    RunId,
    StoredFile,
    new_run_id,
    token_for,
)
from tests.cli.simdesk import SimDesk
from tests.e2e.desk import Desk

LONG = 1_000_000  # steps: a run that does not end by itself
ZERO = "0" * 64


def wait_for(desk: SimDesk, name: str, *phases: Phase, within_s: float = 60) -> None:
    give_up = time.monotonic() + within_s
    while desk.run(name).phase not in phases:
        assert time.monotonic() < give_up, f"{name} is {desk.run(name).phase}"
        time.sleep(0.05)


def said(desk: SimDesk, number: int = 0) -> str:
    return (desk.root / f"spawned-{number}.log").read_text()


# -- looking ----------------------------------------------------------------------------------------------------------


def test_an_empty_list_says_where_it_looked(sim: SimDesk) -> None:
    done = sim.tune("ls")
    assert done.stdout.startswith(f"no runs in {sim.bucket.as_uri()}")
    assert sim.json("ls") == {"runs": [], "unreadable": [], "storage": sim.bucket.as_uri()}


def test_ls_lists_newest_first_and_its_json_keeps_its_shape(sim: SimDesk) -> None:
    born = datetime(2026, 5, 1, tzinfo=UTC)
    for number in range(3):
        sim.a_run(
            f"run-{number}", created_at=born + timedelta(hours=number), phase=Phase.SUCCEEDED, outcome=Outcome.SUCCEEDED
        )
    runs = sim.json("ls", "--limit", "2")["runs"]
    assert [run["name"] for run in runs] == ["run-2", "run-1"]
    assert [run["name"] for run in sim.json("ls", "--all")["runs"]] == ["run-2", "run-1", "run-0"]
    assert {**runs[0], "run_id": "?"} == {
        "run_id": "?",
        "name": "run-2",
        "phase": "succeeded",
        "outcome": "succeeded",
        "reason": "",
        "provider": "sim",
        "created_at": "2026-05-01T01:59:59+00:00",
        "waiting_for": "",
        "attempts": 0,
        "step": 0,
        "spent_usd": "0.000000",
    }


def test_an_old_run_that_is_still_active_is_always_listed(sim: SimDesk) -> None:
    born = datetime(2026, 5, 1, tzinfo=UTC)
    sim.a_run("old", created_at=born)
    for number in range(3):
        sim.a_run(
            f"new-{number}", created_at=born + timedelta(hours=1 + number), phase=Phase.FAILED, outcome=Outcome.OOM
        )
    assert [run["name"] for run in sim.json("ls", "--limit", "1")["runs"]] == ["new-2", "old"]
    assert sim.tune("stop", "old").returncode == 0


def test_a_torn_record_is_reported_and_left_as_it_is(sim: SimDesk) -> None:
    torn = sim.a_run("torn", phase=Phase.SUCCEEDED)
    sim.a_run("fine", phase=Phase.SUCCEEDED)
    sim.put(keys.record(torn.run_id), b'{"run_id": "x')
    listed = sim.tune("--json", "ls")
    assert listed.returncode == 18
    answer = json.loads(listed.stdout)
    assert [run["name"] for run in answer["runs"]] == ["fine"]
    assert "is not JSON" in answer["unreadable"][0]
    done = sim.tune("resume", "torn")
    assert done.returncode == 18
    assert "nothing was overwritten" in done.stderr
    assert (sim.bucket / keys.record(torn.run_id)).read_bytes() == b'{"run_id": "x'


def test_a_bucket_with_nothing_but_a_torn_record_is_never_said_to_be_empty(sim: SimDesk) -> None:
    torn = sim.a_run("torn", phase=Phase.RUNNING)
    for damage in (b"", b"[" * 100_000):
        sim.put(keys.record(torn.run_id), damage)
        listed = sim.tune("ls")
        assert listed.returncode == 18
        assert "no runs" not in listed.stdout
        assert keys.record(torn.run_id) in listed.stderr
    sim.runs.store.delete(keys.active(torn.run_id))


def test_a_run_is_found_by_id_by_the_beginning_of_one_and_by_name(sim: SimDesk) -> None:
    run = sim.a_run("night", phase=Phase.SUCCEEDED)
    for word in (run.run_id, run.run_id[:9], "night"):
        assert sim.json("status", word)["run_id"] == run.run_id


@pytest.mark.parametrize("command", [("status",), ("logs",), ("stop",), ("resume",), ("pull", "/tmp/x")])
def test_an_unknown_run_is_answered_with_those_of_a_similar_name(sim: SimDesk, command: tuple[str, ...]) -> None:
    sim.a_run("nightly", phase=Phase.SUCCEEDED)
    done = sim.tune("--json", command[0], "nigthly", *command[1:])
    assert done.returncode == 20
    answer = json.loads(done.stderr)
    assert (answer["error"], answer["exit_code"]) == ("RunNotFound", 20)
    assert "did you mean nightly?" in answer["hint"]


def test_the_json_of_status_keeps_its_shape(sim: SimDesk) -> None:
    run = sim.a_run("night")
    assert sim.tune("resume", "night").returncode == 0
    sim.put(keys.checkpoint(run.run_id, 40, 1), b"{}")
    answer = sim.json("status", "night")
    attempt = answer["attempts"][0]
    assert set(answer) == {
        "run_id", "name", "phase", "outcome", "reason", "provider", "storage", "created_at", "phase_since", "waiting_for",
        "not_before", "stop_requested_at", "resumes", "step", "max_steps", "stage", "loss", "learning_rate", "tokens_per_s",
        "notes", "problem", "heartbeat_age_s", "elapsed_s", "remaining_s", "spent_usd", "safe_until",
        "outlasts_its_keys", "checkpoint", "has_artifact", "attempts",
    }  # fmt: skip
    assert set(attempt) == {
        "number", "provider", "token", "instance_id", "gpu", "spot", "usd_per_hour", "intended_at", "running_at", "ended_at",
        "outcome", "reason", "last_step",
    }  # fmt: skip
    assert set(answer["checkpoint"]) == {"step", "attempt", "stored_at", "age_s"}
    assert (answer["phase"], answer["step"], answer["max_steps"], answer["has_artifact"]) == ("succeeded", 50, 50, True)
    assert datetime.fromisoformat(attempt["ended_at"]).tzinfo is not None
    text = sim.tune("status", "night").stdout
    assert re.search(r"step +50/50", text)
    assert "succeeded" in text


# -- driving ----------------------------------------------------------------------------------------------------------


def test_resume_drives_a_run_to_its_end_one_line_per_event(sim: SimDesk) -> None:
    sim.a_run("night")
    done = sim.tune("resume", "night")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^rented sim-1 at \$", done.stdout, re.MULTILINE)
    assert "nothing is billing" in done.stdout
    assert sim.run("night").phase is Phase.SUCCEEDED


def test_a_finished_run_says_so_and_exits_0_so_that_a_nightly_line_is_harmless(sim: SimDesk) -> None:
    sim.a_run("night", phase=Phase.SUCCEEDED, outcome=Outcome.SUCCEEDED)
    before = sim.run("night")
    done = sim.tune("resume", "night")
    assert done.returncode == 0
    assert "succeeded" in done.stdout
    assert sim.run("night") == before


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.CANCELLED])
def test_resume_opens_an_ended_run_again(sim: SimDesk, phase: Phase) -> None:
    sim.a_run("night", phase=phase, outcome=Outcome.USER_ERROR, reason="it broke")
    assert sim.tune("resume", "night").returncode == 0
    run = sim.run("night")
    assert (run.phase, run.resumes) == (Phase.SUCCEEDED, 1)


def test_in_json_every_event_is_one_line(sim: SimDesk) -> None:
    sim.a_run("night")
    done = sim.tune("--json", "resume", "night")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[-1]["event"] == "finished"
    assert {"note", "progress", "finished"} <= {event["event"] for event in events}
    progress = next(event for event in events if event["event"] == "progress")
    assert set(progress) == {
        "event", "attempt", "checkpoint_step", "run_id", "phase", "stage", "step", "max_steps", "loss", "tokens_per_s",
        "elapsed_s", "remaining_s", "spent_usd",
    }  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_turning_away_leaves_the_run_alone_and_says_how_to_stop_it(sim: SimDesk, number: signal.Signals) -> None:
    sim.climate(total_steps=LONG)
    run = sim.a_run("night")
    watching = sim.spawn("resume", "night")
    wait_for(sim, "night", Phase.RUNNING)
    watching.send_signal(number)
    watching.send_signal(number)  # the second one changes nothing
    assert watching.wait(60) == 130
    assert f"tune stop {run.run_id}" in said(sim)
    assert "Traceback" not in said(sim)
    assert sim.run("night").phase is Phase.RUNNING
    assert len(sim.instances()) == 1
    assert sim.tune("stop", "night", "--now").returncode == 0


def test_stop_waits_until_nothing_is_billing(sim: SimDesk) -> None:
    sim.climate(total_steps=LONG)
    sim.a_run("night")
    watching = sim.spawn("resume", "night")
    wait_for(sim, "night", Phase.RUNNING)
    done = sim.tune("stop", "night")
    assert done.returncode == 0, done.stderr
    assert "nothing is billing" in done.stdout
    assert sim.run("night").phase is Phase.CANCELLED
    assert sim.instances() == []
    assert watching.wait(60) == 4, "the other terminal's run was cancelled"
    assert sim.tune("stop", "night").returncode == 0, "a second stop is harmless"


def test_stop_can_leave_the_work_to_cron(sim: SimDesk) -> None:
    sim.climate(total_steps=LONG)
    sim.a_run("night")
    watching = sim.spawn("resume", "night")
    wait_for(sim, "night", Phase.RUNNING)
    watching.send_signal(signal.SIGINT)
    watching.wait(60)
    done = sim.tune("stop", "night", "--now", "--no-wait")
    assert "reconcile --all" in done.stdout
    assert sim.run("night").stop_requested_at is not None
    for _ in range(60):
        assert sim.tune("reconcile", "--all").returncode == 0
        if sim.run("night").phase is Phase.CANCELLED:
            break
        time.sleep(0.2)
    assert sim.run("night").phase is Phase.CANCELLED


@pytest.mark.parametrize(
    ("phase", "outcome", "code", "words"),
    [
        (Phase.FAILED, Outcome.USER_ERROR, 3, "failed (user_error): it broke"),
        (Phase.CANCELLED, Outcome.CANCELLED, 4, "was stopped"),
        (Phase.FAILED, Outcome.BUDGET, 5, "budget"),
    ],
)
def test_a_watched_run_ends_the_program_with_its_own_code(
    sim: SimDesk, phase: Phase, outcome: Outcome, code: int, words: str
) -> None:
    from orchestrator.cli.app import _report
    from orchestrator.cli.drive import check_end
    from orchestrator.cli.render import Renderer
    from orchestrator.errors import TuneError

    run = sim.a_run("night", phase=phase, outcome=outcome, reason="it broke")
    with pytest.raises(TuneError) as caught:
        check_end(run)
    assert words in caught.value.message
    assert f"tune resume {run.run_id}" in caught.value.hint
    assert _report(caught.value, Renderer(json_mode=True)) == code


def test_detach_returns_once_it_trains_and_says_what_goes_on_alone(sim: SimDesk) -> None:
    sim.climate(total_steps=LONG)
    sim.a_run("night")
    done = sim.tune("resume", "night", "--detach")
    assert done.returncode == 0, done.stderr
    assert "is running" in done.stdout
    assert "no cron line was found" in done.stdout
    assert "ends itself" in done.stdout
    assert sim.tune("stop", "night", "--now").returncode == 0


def test_twenty_parallel_resumes_rent_one_instance_and_none_of_them_fails(sim: SimDesk) -> None:
    sim.climate(total_steps=200)
    sim.a_run("night", phase=Phase.FAILED, outcome=Outcome.OOM)
    watching = [sim.spawn("resume", "night") for _ in range(20)]
    codes = [child.wait(240) for child in watching]
    logs = [said(sim, number) for number in range(20)]
    assert codes == [0] * 20, "\n".join(log for log, code in zip(logs, codes, strict=True) if code)
    run = sim.run("night")
    assert (run.phase, run.resumes, len(run.attempts)) == (Phase.SUCCEEDED, 1, 1)
    assert sum(log.count("rented ") for log in logs) == 1


def test_resume_without_waiting_only_opens_it_again(sim: SimDesk) -> None:
    sim.a_run("night", phase=Phase.FAILED, outcome=Outcome.OOM)
    assert sim.json("resume", "night", "--no-wait")["phase"] == "pending"
    assert (sim.run("night").phase, sim.run("night").attempts) == (Phase.PENDING, ())


# -- cron -------------------------------------------------------------------------------------------------------------


def test_reconcile_all_is_one_pass_over_each_and_0_although_they_still_train(sim: SimDesk) -> None:
    sim.climate(total_steps=LONG)
    for name in ("a", "b"):
        sim.a_run(name)
    done = sim.tune("--json", "reconcile", "--all")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert {event["name"] for event in events if event["event"] == "pass"} == {"a", "b"}
    assert len(sim.instances()) == 2
    for name in ("a", "b"):
        assert sim.tune("stop", name, "--now").returncode == 0


def test_one_run_s_trouble_does_not_keep_the_others_from_their_pass(sim: SimDesk) -> None:
    sim.climate(total_steps=LONG)
    torn = sim.a_run("torn")
    sim.a_run("fine")
    sim.put(keys.record(torn.run_id), b"{}")
    done = sim.tune("reconcile", "--all")
    assert done.returncode == 18
    assert len(sim.run("fine").attempts) == 1
    assert sim.tune("stop", "fine", "--now").returncode == 0


def test_reconcile_wants_one_run_or_all(sim: SimDesk) -> None:
    assert sim.tune("reconcile").returncode == 2
    assert sim.tune("reconcile", "x", "--all").returncode == 2
    assert "no active runs" in sim.tune("reconcile", "--all").stdout


def test_the_cron_line_works_with_nothing_in_its_environment(sim: SimDesk) -> None:
    sim.a_run("night")
    line = sim.json("cron", "print")["line"]
    assert line.startswith("*/5 * * * * ")
    command = line.removeprefix("*/5 * * * * ").replace(r"\%", "%")
    done = subprocess.run(["env", "-i", "/bin/sh", "-c", command], cwd="/", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "night" in (sim.state / "cron.log").read_text()
    assert len(sim.run("night").attempts) == 1
    assert sim.tune("stop", "night", "--now").returncode == 0


# -- what a run leaves ------------------------------------------------------------------------------------------------


def with_artifact(desk: SimDesk, name: str = "night", files: dict[str, bytes] | None = None) -> RunId:
    run = desk.a_run(name, phase=Phase.SUCCEEDED, outcome=Outcome.SUCCEEDED)
    stored = store_files(
        desk, run.run_id, files or {"adapter_config.json": b"{}", "sub/adapter.safetensors": b"weights" * 99}
    )
    desk.put(keys.artifact(run.run_id), ArtifactManifest(run.run_id, 9, 9, 1, run.created_at, stored, ZERO, ZERO))
    return run.run_id


def store_files(desk: SimDesk, run_id: RunId, files: dict[str, bytes]) -> tuple[StoredFile, ...]:
    stored = []
    for name, data in files.items():
        sha = hashlib.sha256(data).hexdigest()
        desk.put(keys.blob(run_id, 1, sha), data)
        stored.append(StoredFile(name, keys.blob(run_id, 1, sha), len(data), sha))
    return tuple(stored)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and not p.name.startswith(".tune")
    }


def test_pull_fetches_the_artifact_and_a_second_one_fetches_nothing(sim: SimDesk) -> None:
    with_artifact(sim)
    target = sim.root / "out put"
    assert sim.json("pull", "night", str(target))["fetched"] == 2
    assert contents(target) == {"adapter_config.json": b"{}", "sub/adapter.safetensors": b"weights" * 99}
    assert sim.json("pull", "night", str(target))["fetched"] == 0


def test_pull_never_overwrites_other_files_and_fetches_nothing_then(sim: SimDesk) -> None:
    with_artifact(sim)
    target = sim.root / "out"
    target.mkdir()
    (target / "adapter_config.json").write_bytes(b"mine")
    done = sim.tune("pull", "night", str(target))
    assert done.returncode == 2
    assert "other files are in the way" in done.stderr
    assert contents(target) == {"adapter_config.json": b"mine"}


def test_pull_goes_on_where_it_was_interrupted(sim: SimDesk) -> None:
    with_artifact(sim)
    target = sim.root / "out"
    half = target / ".tune-partial" / "sub"
    half.mkdir(parents=True)
    (half / "adapter.safetensors").write_bytes(b"weights" * 99)
    sha = hashlib.sha256(b"weights" * 99).hexdigest()
    sim.runs.store.delete(keys.blob(sim.run("night").run_id, 1, sha))  # it must not be asked for again
    assert sim.tune("pull", "night", str(target)).returncode == 0
    assert set(contents(target)) == {"adapter_config.json", "sub/adapter.safetensors"}


def test_pull_puts_nothing_in_place_when_one_file_is_damaged(sim: SimDesk) -> None:
    run_id = with_artifact(sim)
    sha = hashlib.sha256(b"weights" * 99).hexdigest()
    sim.put(keys.blob(run_id, 1, sha), b"wEights" * 99)
    done = sim.tune("pull", "night", str(sim.root / "out"))
    assert done.returncode == 19
    assert "do not match the manifest" in done.stderr
    assert contents(sim.root / "out").keys() <= {".tune-partial/adapter_config.json"}


def test_pull_names_the_file_that_is_not_stored_any_more(sim: SimDesk) -> None:
    run_id = with_artifact(sim)
    sim.runs.store.delete(keys.blob(run_id, 1, hashlib.sha256(b"weights" * 99).hexdigest()))
    done = sim.tune("pull", "night", str(sim.root / "out"))
    assert done.returncode == 19
    assert "sub/adapter.safetensors is not in the storage any more" in done.stderr
    assert contents(sim.root / "out").keys() <= {".tune-partial/adapter_config.json"}


@pytest.mark.parametrize("name", ["../outside", "/abs", "a/../../b"])
def test_a_manifest_cannot_write_outside_of_the_folder(sim: SimDesk, name: str) -> None:
    with_artifact(sim, files={name: b"evil"})
    done = sim.tune("pull", "night", str(sim.root / "out"))
    assert done.returncode == 18
    assert "outside of its folder" in done.stderr
    assert not (sim.root / "outside").exists()


def test_pull_before_the_end_says_what_there_is_instead(sim: SimDesk) -> None:
    sim.a_run("night", phase=Phase.FAILED, outcome=Outcome.OOM)
    done = sim.tune("pull", "night", str(sim.root / "out"))
    assert done.returncode == 20
    assert "--checkpoint" in done.stderr


def test_pull_checkpoint_takes_the_newest_that_verifies_and_says_why(sim: SimDesk) -> None:
    run = sim.a_run("night", phase=Phase.FAILED, outcome=Outcome.OOM)
    for step, data in ((90, b"ninety"), (1000, b"thousand")):
        stored = store_files(sim, run.run_id, {"adapter.safetensors": data})
        manifest = CheckpointManifest(run.run_id, step, 2000, 1, run.created_at, stored, ZERO, ZERO, 1, 1)
        sim.put(keys.checkpoint(run.run_id, step, 1), manifest)
    sim.put(keys.blob(run.run_id, 1, hashlib.sha256(b"thousand").hexdigest()), b"thouSand")
    done = sim.tune("pull", "--checkpoint", "night", str(sim.root / "out"))
    assert done.returncode == 0, done.stderr
    assert "checkpoint 1000 of attempt 1 is not whole" in done.stderr
    assert contents(sim.root / "out") == {"adapter.safetensors": b"ninety"}


def test_a_run_without_a_checkpoint_that_verifies_exits_19(sim: SimDesk) -> None:
    sim.a_run("night", phase=Phase.FAILED, outcome=Outcome.OOM)
    assert sim.tune("pull", "--checkpoint", "night", str(sim.root / "out")).returncode == 19


def test_a_finished_run_without_a_log_promises_none(sim: SimDesk) -> None:
    sim.a_run("early", phase=Phase.CANCELLED, outcome=Outcome.CANCELLED)
    assert "no attempt has begun" in sim.tune("logs", "early").stderr
    sim.a_run("night")
    assert "arrive about once a minute" in sim.tune("logs", "night").stderr
    assert sim.tune("resume", "night").returncode == 0
    assert "attempt 1 has left no log" in sim.tune("logs", "night", "-f").stderr


def test_the_log_of_a_set_up_that_failed_stands_in_where_no_agent_has_logged(sim: SimDesk) -> None:
    sim.a_run("night")
    assert sim.tune("resume", "night").returncode == 0
    run_id = sim.run("night").run_id
    sim.put(keys.setup_log(run_id, 1), b"installing\n\x1b[31mno Python\x1b[0m")
    shown = sim.tune("logs", "night")
    assert shown.stdout == "installing\nno Python\n"
    assert "failed before the agent began" in shown.stderr
    lines = [json.loads(line) for line in sim.tune("--json", "logs", "night").stdout.splitlines()]
    assert lines[0] == {"attempt": 1, "line": "installing"}
    sim.put(keys.log_segment(run_id, 1, 0), b"the agent's own words\n")
    assert sim.tune("logs", "night").stdout == "the agent's own words\n"


def test_logs_are_printed_in_order_and_without_control_characters(sim: SimDesk) -> None:
    sim.a_run("night")
    assert sim.tune("resume", "night").returncode == 0
    run_id = sim.run("night").run_id
    for number, text in enumerate([b"first\n", b"\x1b[31msecond\x1b[0m\n", b"third"]):
        sim.put(keys.log_segment(run_id, 1, number), text)
    assert sim.tune("logs", "night").stdout == "first\nsecond\nthird\n"
    lines = [json.loads(line) for line in sim.tune("--json", "logs", "night").stdout.splitlines()]
    assert lines[0] == {"attempt": 1, "line": "first"}
    assert sim.tune("logs", "night", "-f").stdout == "first\nsecond\nthird\n", "a finished run is not waited for"
    assert sim.tune("logs", "night", "--attempt", "7").returncode == 20


# -- the rest ---------------------------------------------------------------------------------------------------------


def an_orphan(desk: Desk) -> RunId:
    """An instance on this machine whose run nobody knows."""
    cloud, run_id = desk.cloud(), new_run_id(datetime.now(UTC))
    token = token_for(desk.runs.namespace(), run_id, 1)
    cloud.create(cloud.offers(Requirements())[0], LaunchSpec("sleep 1000", 3600), token=token)
    return run_id


def test_an_instance_without_an_owner_is_ended_only_when_seen_twice(desk: Desk) -> None:
    run_id = an_orphan(desk)
    looked = json.loads(desk.tune("--json", "sweep", "--dry-run").stdout)
    assert [one["reason"] for one in looked["suspects"]] == [f"there is no record of run {run_id}"]
    assert len(desk.instances()) == 1
    assert json.loads(desk.tune("--json", "sweep").stdout)["terminated"] == [], "one look is not enough"
    long_ago = time.time() - 600
    for noted in (path for path in (desk.bucket / keys.SWEEP).rglob("*") if path.is_file()):
        os.utime(noted, (long_ago, long_ago))  # it was seen first ten minutes ago
    assert len(json.loads(desk.tune("--json", "sweep").stdout)["terminated"]) == 1
    assert desk.instances() == []


def test_with_the_bucket_gone_what_was_ours_can_still_be_ended(desk: Desk) -> None:
    an_orphan(desk)
    assert desk.tune("reconcile", "--all").returncode == 0  # this computer has seen the namespace now
    desk.bucket.rename(desk.root / "lost")
    refused = desk.tune("sweep", "--without-storage")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert not desk.bucket.exists(), "a lost bucket is not made anew"
    assert len(json.loads(desk.tune("--json", "sweep", "--without-storage", "--yes").stdout)["terminated"]) == 1
    (desk.root / "lost").rename(desk.bucket)


def test_doctor_finds_a_sound_setup_sound(sim: SimDesk) -> None:
    answer = sim.json("doctor")
    assert answer["ok"] is True
    assert {"python", "config", "state", "storage", "clock", "provider", "hub", "sdk", "trainer", "cron"} == {
        c["what"] for c in answer["checks"]
    }
    assert list(sim.runs.store.scan("doctor/")) == [], "the probe is taken away again"


def test_doctor_names_every_fault_and_exits_with_the_code_of_the_first(sim: SimDesk) -> None:
    blocked = sim.root / "file"
    blocked.write_text("in the way")
    sim.config.write_text(f'storage = "{blocked}/below"\nstate_dir = "{sim.state}"\nprovider = "nosuch"\n')
    done = sim.tune("doctor")
    assert done.returncode == 18
    assert re.search(r"^fail +storage", done.stdout, re.MULTILINE)
    assert re.search(r"^fail +provider +there is no provider 'nosuch'", done.stdout, re.MULTILINE)
    sim.config.write_text("storag = 1\n")
    assert sim.tune("doctor").returncode == 2
    sim.climate()


def test_providers_are_listed_with_the_reason_why_not(sim: SimDesk) -> None:
    answer = sim.json("providers")
    rows = {row["name"]: row for row in answer["providers"]}
    assert answer["default"] == "sim"
    assert rows["local"]["usable"]
    assert rows["local"]["capabilities"]["list_lag_s"] == 0
    assert (rows["runpod"]["usable"], bool(rows["runpod"]["reason"])) == (False, True), "no key is set"


def test_only_a_run_on_this_machine_can_be_preempted_by_hand(sim: SimDesk) -> None:
    sim.a_run("night", phase=Phase.FAILED)
    assert sim.tune("local", "preempt", "night").returncode == 20


def test_a_pipe_that_closes_ends_the_watching_and_says_that_the_run_goes_on(sim: SimDesk) -> None:
    sim.climate(total_steps=LONG)
    run = sim.a_run("night")
    argv = (
        f'"{sys.executable}" -m orchestrator --config "{sim.config}" resume night | head -1; echo "${{PIPESTATUS[0]}}"'
    )
    done = subprocess.run(["bash", "-c", argv], capture_output=True, text=True, timeout=120, env=sim.environment)
    assert done.stdout.splitlines()[-1] == "141"
    assert f"tune stop {run.run_id}" in done.stderr
    assert "Traceback" not in done.stderr
    assert sim.tune("stop", "night", "--now").returncode == 0
