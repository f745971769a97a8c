"""The agent as a real process, from the first file to the end of its instance."""

import json
import os
import signal
import time
from contextlib import suppress

import pytest

from orchestrator import keys
from orchestrator.types import Outcome, Phase
from tests.agent.stage import CANARY, RUN_ID, STUB, Stage, make_run


def test_a_run_ends_with_a_verified_artifact_and_only_then_with_code_0(stage: Stage) -> None:
    make_run(stage.store, {"steps": 5, "save_every": 2}, extra={"data/données 训练.jsonl": b"{}\n"})
    home = stage.instance()
    record = stage.finish(home)
    assert (record.code, record.outcome, record.step, record.max_steps) == (0, Outcome.SUCCEEDED, 5, 5)
    artifact = stage.artifact()
    assert stage.is_whole(artifact)
    names = {f.name for f in artifact.files}
    assert names == {
        "adapter_model.safetensors",
        "adapter_config.json",
        "recipe.yaml",
        "metrics.json",
        "provenance.json",
        "README.md",
    }
    card = next(stage.store.get(f.key).data.decode() for f in artifact.files if f.name == "README.md")
    assert "some/base" in card
    assert "d" * 64 in card
    assert "5 of 5" in card
    assert stage.steps() == [(1, 2), (1, 4)]
    ended, stored = stage.store.head(keys.exit_record(RUN_ID, 1)), stage.store.head(keys.artifact(RUN_ID))
    assert stored.modified_at < ended.modified_at
    beat = stage.heartbeat()
    assert beat is not None
    assert (beat.stage, beat.step, beat.max_steps, beat.checkpoint_step, beat.trainer_starts) == ("ended", 5, 5, 4, 1)
    assert beat.losses[:2] == (1.0, 0.5)
    assert beat.disk_free_gb
    assert beat.ram_used_gb
    assert (home.job / "data" / "données 训练.jsonl").read_bytes() == b"{}\n"
    assert "hello" in stage.log_text()
    assert stage.processes() == {}


def test_a_trainer_gets_utf_8_no_terminal_and_caches_below_the_tune_home(stage: Stage) -> None:
    spy = b"""
import json, os, sys
with open(os.environ["OUT"], "w") as f:
    json.dump({"env": dict(os.environ), "stdin": os.readlink("/proc/self/fd/0"), "sid": os.getsid(0),
               "encoding": sys.getfilesystemencoding(), "argv": sys.argv}, f)
""" + STUB.read_bytes()
    make_run(stage.store, {"steps": 1})
    stage.store.put(keys.file(RUN_ID, "trainer/stub_trainer.py"), spy)
    files = stage.store.get(keys.files_manifest(RUN_ID)).data.decode()
    from hashlib import sha256

    old = STUB.read_bytes()
    files = files.replace(sha256(old).hexdigest(), sha256(spy).hexdigest()).replace(f": {len(old)}", f": {len(spy)}")
    stage.store.put(keys.files_manifest(RUN_ID), files.encode())
    home = stage.instance()
    (home.root / "cache").mkdir()
    (home.root / "cache" / "huggingface").symlink_to("/var/tmp")
    out = stage.under / "seen.json"
    stage.finish(home, OUT=str(out), HF_HUB_CACHE="/root/.cache/small", LC_CTYPE="POSIX")
    seen = json.loads(out.read_text())
    env = seen["env"]
    assert (env["LC_ALL"], env["PYTHONUNBUFFERED"], env["PYTHONHASHSEED"]) == ("C.UTF-8", "1", "0")
    assert env["STUB_JOB"] == str(home.job)
    assert "HF_HUB_CACHE" not in env
    for name in ("HF_HOME", "TMPDIR", "PIP_CACHE_DIR", "XDG_CACHE_HOME"):
        assert os.path.realpath(env[name]).startswith(os.path.realpath(home.root)), name
    assert (seen["stdin"], seen["encoding"]) == ("/dev/null", "utf-8")
    beat = stage.heartbeat()
    assert beat is not None
    assert any("was a link to /var/tmp" in note for note in beat.notes)


@pytest.mark.parametrize("victims", ["agent", "agent at once"])
def test_a_killed_agent_is_started_again_and_adopts_its_living_trainer(stage: Stage, victims: str) -> None:
    make_run(stage.store, {"steps": 60, "step_s": 0.05, "save_every": 20})
    home = stage.instance()
    stage.boot(home)
    agents = lambda: [p for p, line in stage.processes().items() if "-m orchestrator.agent" in line]  # noqa: E731
    if victims == "agent at once":  # at the very moment that the trainer comes to life, before its pid is noted
        stage.wait(lambda: any("stub_trainer" in line for line in stage.processes().values()))
    else:
        stage.wait(lambda: stage.events(home, "step"))
    for pid in agents():
        os.kill(pid, signal.SIGKILL)
    stage.wait(home.ended.exists, 25)
    assert stage.exit_record().code == 0
    assert len({e["pid"] for e in stage.events(home, "pid")}) == 1, "one trainer, all the time"
    assert stage.is_whole(stage.artifact())
    beat = stage.heartbeat()
    assert beat is not None
    assert (beat.agent_starts, beat.trainer_starts) == (2, 1)


def test_a_trainer_that_ended_while_no_agent_lived_is_still_reported(stage: Stage) -> None:
    make_run(stage.store, {"steps": 8, "step_s": 0.05})
    home = stage.instance()
    agent = stage.agent(home)
    stage.wait(lambda: stage.events(home, "step"))
    agent.kill()
    agent.wait()
    stage.wait(lambda: home.exit_code(1).exists())
    record = stage.finish(home)
    assert record.code == 0
    assert len(stage.events(home, "start")) == 1


def test_one_agent_at_most_works_on_an_instance(stage: Stage) -> None:
    make_run(stage.store, {"steps": 40, "step_s": 0.05})
    home = stage.instance()
    first = stage.agent(home)
    stage.wait(lambda: stage.events(home, "step"))
    assert stage.agent(home).wait(10) == 73
    assert first.poll() is None
    assert len(stage.events(home, "start")) == 1


def test_after_a_power_cut_at_any_moment_the_next_attempt_goes_on_from_what_verifies(stage: Stage) -> None:
    plan = {"steps": 40, "step_s": 0.03, "save_every": 4, "save_pause": 0.03}
    make_run(stage.store, plan)
    number, reached = 1, 0
    for cut in (0.35, 0.62, 0.95):
        home = stage.instance(number)
        stage.agent(home)
        stage.wait(lambda h=home: stage.events(h, "start"))
        time.sleep(cut)
        stage.kill_everything()
        resumed = stage.events(home, "pid")[0]["resumed"]
        assert resumed >= reached, "nothing stored is lost"
        for at in stage.steps():
            assert stage.is_whole(stage.manifest(at[1], at[0])), "what is published is whole"
        reached = max((step for _, step in stage.steps()), default=0)
        number = stage.next_attempt()
    home = stage.instance(number)
    assert stage.finish(home).code == 0
    assert stage.events(home, "pid")[0]["resumed"] == reached > 0
    beat = stage.heartbeat(number)
    assert beat is not None
    assert beat.restored_step == reached
    assert beat.restored_from.endswith(f"{reached}-a{stage.steps()[0][0]}.json") or beat.restored_from


def test_a_container_that_is_restarted_goes_on_by_itself_and_says_so(stage: Stage) -> None:
    make_run(stage.store, {"steps": 30, "step_s": 0.05, "save_every": 5})
    home = stage.instance()
    stage.boot(home)
    stage.wait(lambda: len(stage.steps()) > 0)
    deadline = home.deadline.read_text()
    stage.kill_everything()
    stage.boot(home, TUNE_DEADLINE_S="999999")
    stage.wait(home.ended.exists, 25)
    assert home.deadline.read_text() == deadline
    assert stage.exit_record().code == 0
    starts = stage.events(home, "pid")
    assert len(starts) == 2
    assert starts[1]["resumed"] >= 5
    beat = stage.heartbeat()
    assert beat is not None
    assert (beat.agent_starts, beat.trainer_starts) == (2, 2), stage.explain(home)
    assert beat.ends_at_latest_s is not None


def test_an_instance_that_woke_up_stops_writing_and_ends_itself(stage: Stage) -> None:
    make_run(stage.store, {"steps": 500, "step_s": 0.02, "save_every": 5})
    home = stage.instance()
    farewell = stage.under / "farewell"
    agent = stage.agent(home, TUNE_FAREWELL=f"touch '{farewell}'")
    stage.wait(lambda: len(stage.steps()) > 0)
    os.killpg(agent.pid, signal.SIGSTOP)  # outbid: it is only paused
    stage.next_attempt()
    before = [o.key for o in stage.store.scan(f"runs/{RUN_ID}/ckpt/")]
    os.killpg(agent.pid, signal.SIGCONT)
    stage.wait(farewell.exists)
    assert [o.key for o in stage.store.scan(f"runs/{RUN_ID}/ckpt/")] == before
    assert not any("stub_trainer" in line for line in stage.processes().values())
    with pytest.raises(Exception, match="exit"):
        stage.exit_record()


def test_a_run_that_is_over_for_everybody_else_is_not_trained_any_more(stage: Stage) -> None:
    make_run(stage.store, {"steps": 500})
    stage.change_run(phase=Phase.CANCELLED)
    home = stage.instance()
    assert stage.agent(home).wait(15) == 0
    assert stage.events(home, "start") == []


def test_an_unreadable_run_record_proves_nothing(stage: Stage) -> None:
    make_run(stage.store, {"steps": 3})
    stage.store.put(keys.record(RUN_ID), b"{")
    assert stage.finish(stage.instance()).code == 0


@pytest.mark.parametrize(
    ("ask", "outcome"), [("move", Outcome.MOVED), ("stop", Outcome.CANCELLED), ("signal", Outcome.PREEMPTED)]
)
def test_asked_to_leave_it_saves_publishes_and_says_why(stage: Stage, ask: str, outcome: Outcome) -> None:
    make_run(stage.store, {"steps": 5000, "step_s": 0.02, "worker": True})
    home = stage.instance()
    agent = stage.agent(home)
    stage.wait(lambda: len(stage.events(home, "step")) > 2)
    if ask == "move":
        stage.change_run(request="save_and_exit")
    elif ask == "stop":
        stage.change_run(stop_requested_at=stage.store.now())
    else:
        agent.terminate()
    assert agent.wait(20) == 0
    record = stage.exit_record()
    assert (record.outcome, record.code) == (outcome, 75)
    assert stage.steps() == [(1, record.step)]
    assert stage.is_whole(stage.manifest(record.step))
    assert stage.processes() == {}, "workers are gone too"


def test_a_trainer_that_is_just_finishing_may_finish(stage: Stage) -> None:
    make_run(stage.store, {"steps": 4, "ignore_term": True, "finish_pause": 0.3})
    home = stage.instance()
    agent = stage.agent(home)
    stage.wait(lambda: any(e["name"] == "finishing" for e in stage.events(home, "phase")))
    agent.terminate()
    assert agent.wait(20) == 0
    assert (stage.exit_record().outcome, stage.exit_record().code) == (Outcome.SUCCEEDED, 0)
    assert stage.is_whole(stage.artifact())


def test_a_trainer_that_ignores_the_request_is_killed_in_time(stage: Stage) -> None:
    make_run(stage.store, {"steps": 5000, "ignore_term": True, "worker": True, "save_at": [3]})
    home = stage.instance(save_and_exit_s=0.5)
    agent = stage.agent(home)
    stage.wait(lambda: stage.steps() == [(1, 3)])
    agent.terminate()
    assert agent.wait(20) == 0
    assert "not saved in time" in stage.exit_record().reason
    assert stage.processes() == {}


def test_a_trainer_that_does_not_save_leaves_time_to_say_so(stage: Stage) -> None:
    """Whoever asked ends the instance after `save_and_exit_s`: by then the exit record must be stored."""
    make_run(stage.store, {"steps": 5000, "ignore_term": True})
    home = stage.instance(save_and_exit_s=6.0)
    agent = stage.agent(home)
    stage.wait(lambda: len(stage.events(home, "step")) > 2)
    stage.change_run(request="save_and_exit")
    asked = time.monotonic()
    assert agent.wait(20) == 0
    assert time.monotonic() - asked < 5.0
    assert "not saved in time" in stage.exit_record().reason


def test_no_secret_leaves_in_any_spelling(stage: Stage) -> None:
    import base64
    from urllib.parse import quote

    spoken = f"key={CANARY} {quote(CANARY, safe='')} {base64.b64encode(f'user:{CANARY}'.encode()).decode()}"
    make_run(stage.store, {"steps": 6, "print_at": 2, "print": spoken, "exit_at": 4, "code": 3, "save_at": [2]})
    home = stage.instance(secrets={"CANARY": CANARY})
    record = stage.finish(home)
    assert record.outcome is Outcome.USER_ERROR
    assert "hello" in stage.log_text()
    bodies = [stage.store.get(o.key).data for o in stage.store.scan(f"runs/{RUN_ID}/a1/")]
    for form in (CANARY, quote(CANARY, safe=""), base64.b64encode(CANARY.encode()).decode()[:12], "CANARY/value"):
        assert not any(form.encode() in body for body in bodies), form
    inner = base64.b64encode(f"user:{CANARY}".encode()).decode()[8:20].encode()
    assert not any(inner in body for body in bodies)
    assert not home.secrets.exists()
    assert CANARY not in home.agent_log.read_text()


def test_nobody_ever_comes_back_and_the_instance_ends_all_the_same(stage: Stage) -> None:
    make_run(stage.store, {"steps": 4, "exit_at": 2, "code": 9})
    home = stage.instance()
    said = stage.under / "farewells"
    stage.boot(home, TUNE_FAREWELL=f"echo x >> '{said}'; false")
    stage.wait(lambda: said.exists() and said.read_text().count("x") >= 2, 25, "a farewell that failed is said again")
    assert stage.exit_record().code == 9
    assert not home.secrets.exists()


def test_a_storage_outage_at_the_end_is_waited_out(stage: Stage) -> None:
    make_run(stage.store, {"steps": 8, "step_s": 0.05, "save_at": [4]})
    home = stage.instance()
    agent = stage.agent(home)
    bucket = stage.under / "bucket"
    stage.wait(lambda: stage.steps() == [(1, 4)])
    away = stage.under / "away"
    bucket.rename(away)
    bucket.write_text("not a folder")
    with suppress(AssertionError):
        stage.wait(lambda: json.loads(home.last_heartbeat.read_text())["stage"] == "upload_blocked", 10)
    assert json.loads(home.last_heartbeat.read_text())["stage"] == "upload_blocked"
    bucket.unlink()
    away.rename(bucket)
    assert agent.wait(20) == 0
    assert stage.exit_record().code == 0
    assert stage.is_whole(stage.artifact())


def test_what_cannot_be_stored_in_time_is_lost_loudly(stage: Stage) -> None:
    make_run(stage.store, {"steps": 3})
    home = stage.instance(upload_grace_s=1.0)
    agent = stage.agent(home)
    stage.wait(lambda: stage.events(home, "step"))
    bucket = stage.under / "bucket"
    bucket.rename(stage.under / "away")
    bucket.write_text("not a folder")
    assert agent.wait(30) == 0
    assert "lost_upload" in home.ended.read_text()
