"""Trainers that hang, diverge, flood, run out of memory or lie, and what the agent makes of them."""

import json

import pytest

from orchestrator import keys
from orchestrator.types import Outcome
from tests.agent.stage import CANARY, RUN_ID, Stage, make_run


def test_a_hang_is_looked_into_and_restarted_once_from_the_newest_checkpoint(stage: Stage) -> None:
    make_run(stage.store, {"steps": 8, "save_at": [3], "hang_at": 5})
    home = stage.instance(hang_timeout_s=1.5)
    record = stage.finish(home)
    assert record.code == 0
    assert [e["resumed"] for e in stage.events(home, "pid")] == [0, 3]
    stacks = stage.store.get(keys.stacks(RUN_ID, 1, 1)).data.decode()
    assert "stub_trainer.py" in stacks
    beat = stage.heartbeat()
    assert beat is not None
    assert any("no step for 1.5 s after step 5" in note for note in beat.notes)
    assert stage.processes() == {}


def test_a_second_hang_at_the_same_step_ends_the_attempt(stage: Stage) -> None:
    make_run(stage.store, {"steps": 8, "save_at": [3], "hang_at": [5], "ignore_term": True, "worker": True})
    home = stage.instance(hang_timeout_s=1.2)
    record = stage.finish(home)
    assert (record.outcome, record.step) == (Outcome.HUNG, 5)
    assert len(stage.events(home, "start")) == 2
    assert stage.steps() == [(1, 3)]
    assert stage.processes() == {}


def test_a_long_save_announces_itself_and_is_no_hang(stage: Stage) -> None:
    make_run(stage.store, {"steps": 4, "save_at": [2], "save_pause": 0.5})
    home = stage.instance(hang_timeout_s=1.2)
    assert stage.finish(home).code == 0
    assert len(stage.events(home, "start")) == 1


@pytest.mark.parametrize(
    ("losses", "norm"),
    [({"5": "nan", "6": "inf", "7": None}, 1.0), ({"5": 0.0, "6": 0.0, "7": 0.0}, "nan")],
    ids=["not a number", "zero"],
)
def test_a_divergence_ends_the_attempt_and_keeps_the_last_good_checkpoint(stage: Stage, losses, norm) -> None:
    make_run(stage.store, {"steps": 5000, "losses": losses, "norm": norm, "save_at": [4, 6], "step_s": 0.05})
    home = stage.instance()
    record = stage.finish(home)
    assert record.outcome is Outcome.DIVERGED
    assert record.code != 0
    assert "step 4" in record.reason
    assert stage.steps() == [(1, 4)], "what was saved after the first bad loss is not published"


def test_one_bad_loss_is_no_divergence_and_its_checkpoint_is_published_later(stage: Stage) -> None:
    make_run(stage.store, {"steps": 12, "losses": {"5": "nan"}, "save_at": [5]})
    assert stage.finish(stage.instance()).code == 0
    assert stage.steps() == [(1, 5)]


def test_a_restart_forgets_what_was_saved_in_a_bad_moment(stage: Stage) -> None:
    plan = {"steps": 8, "save_at": [2], "save_once": 4, "first_losses": {"4": "nan", "5": "nan"}, "kill_at": 5}
    make_run(stage.store, {**plan, "step_s": 0.1})
    home = stage.instance()
    assert stage.finish(home).code == 0
    assert [e["resumed"] for e in stage.events(home, "pid")] == [0, 2]
    assert stage.steps() == [(1, 2)]


def test_out_of_memory_halves_the_batch_once_and_the_next_attempt_takes_it_up(stage: Stage) -> None:
    make_run(stage.store, {"steps": 60, "step_s": 0.03, "oom_above": 2, "oom_at": 3, "save_at": [2, 6]})
    home = stage.instance()
    stage.agent(home)
    stage.wait(lambda: (1, 6) in stage.steps())
    stage.kill_everything()
    assert [e["micro"] for e in stage.events(home, "pid")] == [4, 2]
    assert [e["resumed"] for e in stage.events(home, "pid")] == [0, 2]
    manifest = stage.manifest(6)
    assert (manifest.micro_batch_size, manifest.gradient_accumulation_steps) == (2, 4)
    number = stage.next_attempt()
    second = stage.instance(number)
    assert stage.finish(second).code == 0
    assert [e["micro"] for e in stage.events(second, "pid")] == [2]


@pytest.mark.parametrize(("micro", "starts"), [(1, 1), (3, 1), (4, 2)])
def test_out_of_memory_that_halving_cannot_cure_ends_the_attempt(stage: Stage, micro: int, starts: int) -> None:
    make_run(stage.store, {"steps": 6, "oom_above": 0}, micro=micro)
    home = stage.instance()
    record = stage.finish(home)
    assert record.outcome is Outcome.OOM
    assert "CUDA out of memory" in record.reason
    assert len(stage.events(home, "start")) == starts


@pytest.mark.parametrize(
    ("plan", "outcome", "words"),
    [
        ({"exit_at": 2, "code": 0}, Outcome.USER_ERROR, "that is not done"),
        ({"exit_at": 2, "code": 7, "print_at": 2, "print": "ValueError: x"}, Outcome.USER_ERROR, "ValueError: x"),
        ({"exit_at": 2, "code": 1, "print_at": 1, "print": "NVRM: Xid 79"}, Outcome.HOST_FAULT, "Xid 79"),
        ({"exit_at": 2, "code": 1, "print_at": 1, "print": "OSError: No space left on device"}, None, "disk"),
        ({"die_before_start": 5}, Outcome.SETUP_FAILED, "before its first step"),
        ({"steps": 0}, Outcome.USER_ERROR, "0 steps"),
        ({"final": ["nan", 1.0]}, Outcome.USER_ERROR, "NaN"),
        ({"final": [0.0, 0.0]}, Outcome.USER_ERROR, "learned nothing"),
        ({"kill_at": [2]}, Outcome.HOST_FAULT, "killed from outside"),
    ],
    ids=lambda v: str(v) if isinstance(v, dict) else "",
)
def test_done_means_that_the_last_step_was_reached_with_a_usable_result(stage: Stage, plan, outcome, words) -> None:
    make_run(stage.store, {"steps": 4, **plan})
    record = stage.finish(stage.instance())
    assert record.outcome is (outcome or Outcome.USER_ERROR)
    assert record.code != 0
    assert words in record.reason
    assert not list(stage.store.scan(keys.artifact(RUN_ID)))


def test_what_a_trainer_says_of_its_end_is_covered_in_the_exit_record(stage: Stage) -> None:
    make_run(stage.store, {"steps": 6, "oom_above": 0, "oom_says": f"for {CANARY}"}, micro=1)
    record = stage.finish(stage.instance(secrets={"CANARY": CANARY}))
    assert "2 GiB for [secret]" in record.reason
    assert CANARY not in str(record)


def test_a_trainer_killed_once_from_outside_goes_on_here(stage: Stage) -> None:
    make_run(stage.store, {"steps": 6, "save_at": [2], "kill_at": 4, "step_s": 0.1})
    home = stage.instance()
    assert stage.finish(home).code == 0
    assert [e["resumed"] for e in stage.events(home, "pid")] == [0, 2]


def test_a_flood_is_cut_short_and_counted(stage: Stage) -> None:
    make_run(stage.store, {"steps": 6, "flood_at": 2, "print_at": 5, "print": "after the flood"})
    home = stage.instance()
    assert stage.finish(home).code == 0
    text = stage.log_text()
    assert "bytes left out" in text
    assert "after the flood" in text
    assert len(text) < 600_000 < home.trainer_log.stat().st_size


def test_a_disk_that_fills_is_a_reason_to_save_and_stop(stage: Stage) -> None:
    make_run(stage.store, {"steps": 5000, "save_at": [3]})
    home = stage.instance(min_free_gb=10_000_000.0)
    record = stage.finish(home)
    assert record.outcome is Outcome.USER_ERROR
    assert "tune.disk_gb" in record.reason
    assert stage.steps()[-1] == (1, record.step), "what it had was saved first"


def test_the_hard_deadline_finds_the_work_saved(stage: Stage) -> None:
    make_run(stage.store, {"steps": 5000, "step_s": 0.05})
    home = stage.instance(save_and_exit_s=2.0)
    gone = stage.under / "gone"
    stage.boot(home, TUNE_DEADLINE_S="5", TUNE_FAREWELL=f"touch '{gone}'")
    stage.wait(gone.exists, 20)
    record = stage.exit_record()
    assert record.outcome is Outcome.MOVED
    assert "deadline" in record.reason
    assert stage.steps() == [(1, record.step)]


def test_an_incomplete_snapshot_is_not_published_and_said(stage: Stage) -> None:
    make_run(stage.store, {"steps": 6, "save_at": [3], "forget": ["optimizer.pt"], "step_s": 0.1})
    assert stage.finish(stage.instance()).code == 0
    assert stage.steps() == []
    beat = stage.heartbeat()
    assert beat is not None
    assert any("optimizer.pt is missing" in note for note in beat.notes)


def test_a_checkpoint_that_learned_infinity_is_not_published(stage: Stage) -> None:
    make_run(stage.store, {"steps": 6, "save_at": [2, 4], "weights": {"4": ["inf", 1.0]}, "step_s": 0.2})
    assert stage.finish(stage.instance()).code == 0
    assert stage.steps() == [(1, 2)]


def test_damaged_files_of_the_run_are_refused_before_anything_starts(stage: Stage) -> None:
    make_run(stage.store, {"steps": 3}, extra={"data.jsonl": b"good"})
    stage.store.put(keys.file(RUN_ID, "data.jsonl"), b"baad")
    home = stage.instance()
    record = stage.finish(home)
    assert (record.outcome, home.trainer.exists()) == (Outcome.SETUP_FAILED, False)
    assert "data.jsonl does not match its sha256" in record.reason


def test_no_checkpoint_that_verifies_ends_the_attempt_instead_of_starting_over(stage: Stage) -> None:
    make_run(stage.store, {"steps": 400, "step_s": 0.02, "save_at": [2, 4]})
    stage.agent(stage.instance())
    stage.wait(lambda: stage.steps() == [(1, 2), (1, 4)])
    stage.kill_everything()
    for step in (2, 4):
        weights = next(f for f in stage.manifest(step).files if f.name.endswith(".safetensors"))
        stage.store.put(weights.key, stage.store.get(weights.key).data[:-1])
    home = stage.instance(stage.next_attempt())
    record = stage.finish(home)
    assert record.code == 19
    assert "adapter_model.safetensors" in record.reason
    assert stage.events(home, "start") == []


def test_the_newest_checkpoint_is_damaged_and_the_older_one_is_used_with_the_reason(stage: Stage) -> None:
    make_run(stage.store, {"steps": 400, "step_s": 0.02, "save_at": [2, 4], "best": "/old/host/out/checkpoint-2"})
    stage.agent(stage.instance())
    stage.wait(lambda: stage.steps() == [(1, 2), (1, 4)])
    stage.kill_everything()
    weights = next(f for f in stage.manifest(4).files if f.name.endswith(".safetensors"))
    data = bytearray(stage.store.get(weights.key).data)
    data[-2] ^= 1
    stage.store.put(weights.key, bytes(data))
    number = stage.next_attempt()
    home = stage.instance(number)
    stage.agent(home)
    stage.wait(lambda: stage.events(home, "step"))
    assert stage.events(home, "pid")[0]["resumed"] == 2
    state = json.loads((home.restored / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == str(home.restored / "checkpoint-2"), "no path of the dead machine is left"
    stage.wait(lambda: (b := stage.heartbeat(number)) is not None and b.restored_step == 2)
    beat = stage.heartbeat(number)
    assert beat is not None
    assert any("4-a1: adapter_model.safetensors does not match its sha256" in note for note in beat.notes)
    assert (1, 4) in stage.steps(), "a damaged newer one is not deleted before a newer whole one exists"
