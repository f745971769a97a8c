"""Secrets, logs, disks, environments, processes: each part by itself."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import codec, keys
from orchestrator.agent import disk, environment, farewell, machine, processes, snapshots, trainer
from orchestrator.agent.bucket import Orders, load_secrets, orders_of
from orchestrator.agent.heartbeat import Pulse, Status
from orchestrator.agent.home import Home, read_json, write_atomically
from orchestrator.agent.logs import Limits, Logs
from orchestrator.agent.redact import COVER, Redactor
from orchestrator.clock import SystemClock
from orchestrator.errors import StorageUnavailable
from orchestrator.types import Heartbeat, Phase, Run
from tests.agent.bench import SPEC, Bench, Steps
from tests.agent.stage import RUN_ID

text = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), min_size=8, max_size=40).filter(
    lambda s: len(s.strip()) >= 8
)


@given(secret=text, before=st.text(max_size=20), after=st.text(max_size=20))
def test_a_secret_is_covered_in_every_usual_spelling(secret: str, before: str, after: str) -> None:
    cover = Redactor([secret]).text
    for form in (
        secret,
        quote(secret, safe=""),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
    ):
        assert form not in cover(before + form + after) or form in COVER
    encoded = base64.b64encode(secret.encode()).decode()
    assert encoded not in cover(f"{before} {encoded} {after}")


@given(secret=st.binary(min_size=9, max_size=30).map(bytes.hex), user=st.text("abc", min_size=0, max_size=4))
def test_a_secret_within_longer_base64_leaves_no_whole_part(secret: str, user: str) -> None:
    whole = base64.b64encode(f"{user}:{secret}:{user}".encode()).decode()
    assert COVER in Redactor([secret]).text(whole)


def test_words_that_occur_everywhere_are_left_alone() -> None:
    assert Redactor(["1", "true", ""]).text("1 is true") == "1 is true"


def test_every_line_of_a_key_file_is_a_secret() -> None:
    key = "-----BEGIN KEY-----\nabcdefgh\nijklmnop\n-----END KEY-----\n"
    assert "abcdefgh" not in Redactor([key]).text("> abcdefgh <")


class Small(Limits):
    head_bytes = 200
    tail_bytes = 200
    total_bytes = 2000
    little_bytes = 50
    disk_bytes = 5000


class LongTalk(Small):
    total_bytes = 10**9


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def logs_of(bench: Bench, *secrets: str, limits: type[Limits] = Small) -> Logs:
    return Logs(bench.bucket, bench.home, Redactor(secrets), limits=limits)


def stored(bench: Bench, kind: str = "log") -> str:
    prefix = f"{keys.attempt(RUN_ID, 1)}{kind}/"
    return "".join(bench.store.get(o.key).data.decode() for o in bench.store.scan(prefix))


def say(bench: Bench, data: bytes) -> None:
    with bench.home.trainer_log.open("ab") as file:
        file.write(data)


def test_each_line_is_stored_once_also_across_a_restart_of_the_agent(bench: Bench) -> None:
    say(bench, b"one\ntwo\nhal")
    assert logs_of(bench).ship()
    say(bench, b"f\nthree\n")
    assert logs_of(bench).ship()
    assert logs_of(bench).ship()
    assert stored(bench) == "one\ntwo\nhalf\nthree\n"


def test_what_the_bucket_did_not_take_goes_with_the_next_segment(bench: Bench) -> None:
    logs = logs_of(bench)
    say(bench, b"one\n")

    def away(operation: str, _key: str) -> None:
        raise StorageUnavailable(operation)

    bench.store.fault = away
    assert not logs.ship()
    bench.store.fault = None
    assert logs.ship()
    assert stored(bench) == "one\n"


def test_a_flood_shows_its_beginning_its_end_and_how_much_is_missing(bench: Bench) -> None:
    say(bench, b"first\n" + b"x" * 70 + b"\n" + b"flood\n" * 10_000 + b"last\n")
    logs_of(bench).ship()
    kept = stored(bench)
    assert kept.startswith("first\n")
    assert kept.endswith("last\n")
    assert "bytes left out" in kept
    assert len(kept) < 600


def test_no_part_of_a_secret_shows_where_a_flood_was_cut(bench: Bench) -> None:
    secret = "abcdefghijklmnopqrstuvwxyz0123456789"
    logs = logs_of(bench, secret, limits=LongTalk)
    for filler in range(150, 210, 3):  # the secret lies across the cut, with no line end near
        say(bench, b"." * filler + secret.encode() + b"," * 3000 + secret.encode() + b"." * filler)
        logs.ship()
        say(bench, b"\n")
        logs.ship()
    kept = stored(bench)
    assert not any(secret[i : i + 6] in kept for i in range(len(secret) - 6))


def test_no_secret_shows_among_the_stacks_of_a_hang(bench: Bench) -> None:
    secret = "abcdefghijklmnopqrstuvwxyz0123456789"
    logs = logs_of(bench, secret)
    say(bench, b"before\n")
    at = bench.home.trainer_log.stat().st_size
    say(bench, f'File "x.py", line 3 in ask\nkey={secret}\n'.encode())
    logs.dump_stacks(1, at)
    kept = bench.store.get(keys.stacks(RUN_ID, 1, 1)).data.decode()
    assert "line 3 in ask" in kept and "before" not in kept and secret not in kept


def test_a_log_that_grows_beyond_bounds_is_cut_on_the_disk_and_its_end_still_stored(bench: Bench) -> None:
    logs = logs_of(bench)
    say(bench, b"first\n" + b"x\n" * 10_000 + b"before the cut\n")
    logs.trim()
    assert bench.home.trainer_log.stat().st_size == 0
    say(bench, b"after the cut\n")
    logs.ship()
    kept = stored(bench)
    assert "before the cut" in kept
    assert kept.endswith("after the cut\n")


def test_an_attempt_that_talks_for_days_stays_within_its_total(bench: Bench) -> None:
    logs = logs_of(bench)
    for _ in range(60):
        say(bench, b"words and more words\n" * 50)
        logs.ship()
    assert len(stored(bench)) < Small.total_bytes + 60 * 200


def test_metrics_are_the_events_that_say_something(bench: Bench) -> None:
    events = [{"event": "start", "max_steps": 2}, {"event": "step", "step": 1}, {"event": "log", "loss": "nan"}]
    bench.home.events(1).write_text("".join(json.dumps(e) + "\n" for e in events) + '{"event": "lo')
    logs_of(bench).ship()
    bench.home.events(2).write_text('{"event": "done", "step": 2}\n')
    logs_of(bench).ship()
    kept = [json.loads(line) for line in stored(bench, "metrics").splitlines()]
    assert [e["event"] for e in kept] == ["start", "log", "done"]


def test_room_is_made_from_what_is_least_needed_and_only_as_far_as_needed(bench: Bench) -> None:
    home = bench.home
    for folder in (home.restored / "checkpoint-10", home.restored / "checkpoint-20", home.output / "checkpoint-30"):
        folder.mkdir(parents=True)
    (home.output / "checkpoint-40").mkdir()
    (home.output / "not-ours").mkdir()
    for step in (50, 60):
        bench.snapshot(step)
    in_use = home.restored / "checkpoint-20"
    gone = lambda: [p for p in (home.restored / "checkpoint-10", home.output / "checkpoint-30") if not p.exists()]  # noqa: E731
    room = disk.make_room(
        home, checkpoint_bytes=10**9, min_free_bytes=0, in_use=in_use, free=lambda _: len(gone()) * 10**9
    )
    assert (room.is_short, room.removed) == (
        False,
        ("work/restored/checkpoint-10", "work/out/checkpoint-30"),
    )
    room = disk.make_room(home, checkpoint_bytes=10**9, min_free_bytes=0, in_use=in_use, free=lambda _: 10**9)
    assert room.is_short
    assert room.removed == ("work/snapshots/50",)
    assert snapshots.pending(home) == [60], "the newest may be all there is"
    assert in_use.exists()
    assert (home.output / "checkpoint-40").exists()
    assert (home.output / "not-ours").exists()


def test_free_space_is_that_of_the_disk_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/shm")
    shm = os.statvfs("/dev/shm")
    assert abs(machine.disk_free_bytes(tmp_path / "link") - shm.f_bavail * shm.f_frsize) < 50_000_000


def test_the_job_may_set_its_own_environment_but_not_lose_the_rest(tmp_path: Path) -> None:
    home, notes = Home(tmp_path), []
    env = environment.trainer_environment(
        home, {"PATH": "/bin", "TRANSFORMERS_CACHE": "/small", "LANG": "C"}, {"HF_HUB_OFFLINE": "1"}, note=notes.append
    )
    assert (env["PATH"], env["LANG"], env["HF_HUB_OFFLINE"]) == ("/bin", "C.UTF-8", "1")
    assert "TRANSFORMERS_CACHE" not in env
    assert Path(env["TMPDIR"]).is_dir()
    assert notes == []


def test_small_files_are_whole_or_absent_and_private(tmp_path: Path) -> None:
    path = tmp_path / "a" / "x.json"
    write_atomically(path, b'{"a": 1}')
    assert read_json(path) == {"a": 1}
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"[1")
    assert read_json(path) == {}
    path.write_bytes(b"[1]")
    assert read_json(path) == {}
    assert list(path.parent.iterdir()) == [path]


def test_renewed_keys_are_taken_up_and_the_old_ones_stay_covered(bench: Bench) -> None:
    home, opened = bench.home, []
    home.secrets.write_text('{"TUNE_TEST_KEY": "old-secret-value"}')
    bench.bucket._open = lambda: opened.append(os.environ["TUNE_TEST_KEY"]) or bench.store  # type: ignore[func-returns-value]
    try:
        assert bench.bucket.store is bench.bucket.store
        write_atomically(home.secrets, b'{"TUNE_TEST_KEY": "new-secret-value"}')
        assert bench.bucket.store is bench.store
        assert opened == ["old-secret-value", "new-secret-value"]
        assert bench.redactor.text("old-secret-value new-secret-value") == f"{COVER} {COVER}"
        home.secrets.write_text("{")
        load_secrets(home, bench.redactor)
    finally:
        os.environ.pop("TUNE_TEST_KEY")


def test_who_is_in_charge_is_read_from_the_record(bench: Bench) -> None:
    from dataclasses import replace

    where = keys.record(RUN_ID)
    run = codec.load(Run, bench.store.get(where).data, where=where)
    assert orders_of(run, 1) == Orders()
    assert orders_of(replace(run, request="save_and_exit"), 1) == Orders(save_and_exit=True)
    now = bench.clock.now()
    assert orders_of(replace(run, stop_requested_at=now), 1) == Orders(save_and_exit=True, stop=True)
    for over in (
        replace(run, phase=Phase.FAILED),
        replace(run, attempts=(replace(run.attempts[0], ended_at=now),)),
        replace(run, attempts=(*run.attempts, replace(run.attempts[0], number=2))),
    ):
        assert orders_of(over, 1).superseded
    assert not orders_of(replace(run, phase=Phase.TERMINATING), 1).superseded


def pulse_of(bench: Bench) -> Pulse:
    return Pulse(bench.bucket, bench.home, Status(), bench.sync, redactor=bench.redactor, clock=bench.clock)


def beat(bench: Bench) -> Heartbeat:
    where = keys.heartbeat(RUN_ID, 1)
    return codec.load(Heartbeat, bench.store.get(where).data, where=where)


def test_a_restarted_agent_goes_on_counting_its_heartbeats(bench: Bench) -> None:
    for _ in range(3):
        pulse_of(bench).beat()
    assert beat(bench).seq == 3
    bench.home.pulse.unlink()
    pulse_of(bench).beat()
    assert beat(bench).seq == 4


def test_a_heartbeat_says_until_when_and_whether_the_instance_can_end_itself(bench: Bench) -> None:
    import time

    bench.home.deadline.write_text(f"{int(time.time()) + 500}\n")
    pulse_of(bench).beat()
    said = beat(bench)
    assert 490 < (said.ends_at_latest_s or 0) <= 500
    assert said.can_end_itself is bool(os.environ.get("TUNE_FAREWELL"))


def test_after_the_hand_over_the_heart_beats_no_more(bench: Bench) -> None:
    pulse = pulse_of(bench)
    pulse.beat()
    bench.next_attempt()
    pulse.beat()
    assert pulse.orders.superseded
    assert beat(bench).seq == 1


def test_a_heartbeat_that_cannot_be_stored_is_kept_on_the_disk(bench: Bench) -> None:
    def away(operation: str, _key: str) -> None:
        raise StorageUnavailable(operation)

    bench.store.fault = away
    pulse_of(bench).beat()
    assert codec.load(Heartbeat, bench.home.last_heartbeat.read_bytes(), where="x").stage == "fetching"


def test_gpus_are_read_where_there_is_a_driver_and_a_broken_one_is_no_matter(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '87, 20311, 24564, 71, [N/A]'\n")
    program.chmod(0o755)
    before = os.environ["PATH"]
    try:
        os.environ["PATH"] = f"{tmp_path}:{before}"
        assert machine.gpus() == (
            {"utilization": 87.0, "memory_used_mib": 20311.0, "memory_total_mib": 24564.0, "temperature_c": 71.0},
        )
        program.write_text("#!/bin/sh\nexit 9\n")
        assert machine.gpus() == ()
    finally:
        os.environ["PATH"] = before


def test_a_farewell_is_said_until_it_comes_true_and_the_secrets_are_gone_first(bench: Bench) -> None:
    home = bench.home
    home.secrets.write_text("{}")
    said = home.root / "said"
    before = os.environ.get("TUNE_FAREWELL")
    os.environ["TUNE_FAREWELL"] = f"test ! -e '{home.secrets}' && echo x >> '{said}'; exit 1"
    try:
        clock = Steps()
        times = lambda: said.read_text().count("x") if said.exists() else 0  # noqa: E731
        farewell.end_instance(home, reason="done", clock=clock, keep_on=lambda: times() < 4)
    finally:
        os.environ.pop("TUNE_FAREWELL")
        if before is not None:
            os.environ["TUNE_FAREWELL"] = before
    assert times() == 4
    assert clock.at == 5 + 10 + 20 + 40
    assert home.ended.read_text() == "done\n"


def test_a_trainer_is_told_apart_from_a_stranger_with_its_pid(bench: Bench) -> None:
    home, clock = bench.home, SystemClock()
    spec = type(SPEC)("stub", (sys.executable, "-c", "import time; time.sleep(600)"), {}, 1, 1)
    started = trainer.launch(
        home, bench.config, spec, None, setting=(1, 1), base_env=os.environ, clock=clock, note=bench.notes.append
    )
    try:
        again = trainer.adopt(home, clock=clock)
        assert again is not None
        assert again.is_alive
        said = json.loads(home.trainer.read_text())
        home.trainer.write_text(json.dumps({**said, "started": said["started"] + 1}))
        stranger = trainer.adopt(home, clock=clock)
        assert stranger is not None
        assert not stranger.is_alive
    finally:
        started.end()
    assert started.code is None
    assert processes.members(started.start.pid, started.start.marker) == []


def test_a_trainer_whose_agent_died_before_it_noted_the_pid_is_found(bench: Bench) -> None:
    home, clock = bench.home, SystemClock()
    spec = type(SPEC)("stub", (sys.executable, "-c", "import time; time.sleep(600)"), {}, 1, 1)
    started = trainer.launch(
        home, bench.config, spec, None, setting=(1, 1), base_env=os.environ, clock=clock, note=bench.notes.append
    )
    try:
        said = json.loads(home.trainer.read_text())
        home.trainer.write_text(json.dumps({**said, "pid": 0, "started": 0}))
        found = trainer.adopt(home, clock=clock)
        assert found is not None
        assert found.is_alive
        assert found.start.pid == started.start.pid
    finally:
        started.end()


def test_ending_a_trainer_ends_what_it_started_in_sessions_of_their_own(bench: Bench) -> None:
    runaway = "import subprocess as s, sys, time; s.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); print('up', flush=True); time.sleep(600)"
    spec = type(SPEC)("stub", (sys.executable, "-c", runaway), {}, 1, 1)
    clock = SystemClock()
    started = trainer.launch(
        bench.home, bench.config, spec, None, setting=(1, 1), base_env=os.environ, clock=clock, note=bench.notes.append
    )
    while b"up" not in bench.home.trainer_log.read_bytes():
        clock.sleep(0.01)
    assert len(processes.members(started.start.pid, started.start.marker)) == 3
    trainer.end_leftovers(bench.home, clock=clock)
    assert processes.members(started.start.pid, started.start.marker) == []
    started.end()


def test_the_agent_carries_little() -> None:
    heavy = [
        "boto3",
        "typer",
        "rich",
        "psutil",
        "yaml",
        "paramiko",
        "torch",
        "runpod",
        "vastai",
        "orchestrator.recipe",
        "orchestrator.cli",
    ]
    code = f"import orchestrator.agent.__main__, sys; print([m for m in {heavy!r} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_a_setting_that_is_a_path_of_the_job_is_placed_and_any_other_text_is_left_alone(tmp_path: Path) -> None:
    home = Home(tmp_path / "inst'ance {job}")
    assert trainer._placed("{job}/model", home) == f"{home.job}/model"
    for value in ("{job}", "see {job}/model", "{{ messages }}{job}/x", "{work}/x", 3, None, ["{job}/model"]):
        assert trainer._placed(value, home) == value
