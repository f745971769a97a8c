"""What events, losses, silence and exit codes mean."""

import json
from pathlib import Path

import pytest

from orchestrator.agent import ending
from orchestrator.agent.ending import Again, Ending, Left, judge
from orchestrator.agent.progress import Progress
from orchestrator.agent.watchdog import is_hung
from orchestrator.types import Outcome
from tests.agent.bench import Steps


class Told:
    """A trainer's events, one at a time, and what is made of them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.jsonl"
        self.clock = Steps()
        self.progress = Progress(self.path, clock=self.clock)

    def say(self, event: str, **fields) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"event": event, "at": self.clock.at, **fields}) + "\n")
        self.progress.poll()

    def hung_after(self, seconds: float) -> bool:
        return is_hung(self.progress, 100, now=self.clock.monotonic() + seconds)


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path)


def test_progress_follows_the_events(told: Told) -> None:
    told.say("start", max_steps=60, versions={"trl": "1"}, tokens_per_step=None)
    told.say("step", step=1)
    told.say("log", step=1, loss=2.5, grad_norm=1.0, learning_rate=1e-4, tokens=100)
    told.clock.sleep(2)
    told.say("log", step=2, loss=2.0, grad_norm=1.0, learning_rate=2e-4, tokens=300)
    told.say("note", text="slow disk")
    p = told.progress
    assert (p.step, p.max_steps, p.loss, p.learning_rate, p.tokens_per_s) == (1, 60, 2.0, 2e-4, 100.0)
    assert (list(p.losses), list(p.notes), p.versions) == ([2.5, 2.0], ["slow disk"], {"trl": "1"})


def test_half_a_line_waits_for_its_other_half_and_rubbish_is_passed_over(told: Told) -> None:
    with told.path.open("ab") as file:
        file.write(b'not json\n[1]\n\xff\xfe\n{"event": "step", "st')
        file.flush()
        told.progress.poll()
        assert told.progress.step == 0
        file.write(b'ep": 7}\n')
    told.progress.poll()
    assert told.progress.step == 7


def test_a_line_without_end_does_not_fill_the_memory(told: Told) -> None:
    with told.path.open("ab") as file:
        file.write(b"x" * 10_000_000 + b'\n{"event": "step", "step": 3}\n')
    told.progress.drain()
    assert told.progress.step == 3


def test_tokens_per_second_come_from_steps_where_tokens_are_not_counted(told: Told) -> None:
    told.say("start", max_steps=9, tokens_per_step=50)
    told.say("step", step=1)
    told.clock.sleep(10)
    told.say("step", step=3)
    assert told.progress.tokens_per_s == 10.0


@pytest.mark.parametrize(
    ("losses", "diverged"),
    [
        ([1.0, "nan", "nan", "nan"], True),
        ([1.0, "inf", None, "-inf"], True),
        ([1.0, "nan", "nan", 1.0, "nan"], False),
        ([1.0, "nan", "nan", "nan", 1.0], True),
        ([0.0, 0.0, 0.0], False),
    ],
)
def test_so_many_bad_losses_in_a_row_are_a_divergence(told: Told, losses, diverged: bool) -> None:
    for step, loss in enumerate(losses, 1):
        told.say("log", step=step, loss=loss, grad_norm=0.5)
    assert told.progress.has_diverged is diverged


@pytest.mark.parametrize("norm", [0.0, "nan", None])
def test_a_loss_of_zero_with_nothing_to_learn_from_is_bad(told: Told, norm) -> None:
    for step in (1, 2, 3):
        told.say("log", step=step, loss=0.0, grad_norm=norm)
    assert told.progress.has_diverged


def test_a_log_without_a_loss_is_no_bad_loss(told: Told) -> None:
    for step in (1, 2, 3):
        told.say("log", step=step, learning_rate=1e-4)
    assert not told.progress.has_diverged


def test_what_was_saved_since_the_last_sane_loss_is_suspect_until_the_next(told: Told) -> None:
    told.say("log", step=4, loss=1.0, grad_norm=1)
    assert not told.progress.is_suspect(9)
    told.say("log", step=8, loss="nan", grad_norm=1)
    assert [s for s in (3, 4, 5, 8) if told.progress.is_suspect(s)] == [5, 8]
    told.say("log", step=12, loss=1.0, grad_norm=1)
    assert not told.progress.is_suspect(8)


def test_silence_in_training_is_a_hang_after_the_limit(told: Told) -> None:
    told.say("phase", name="training")
    told.say("step", step=1)
    assert not told.hung_after(99)
    assert told.hung_after(101)


@pytest.mark.parametrize(("phase", "patience"), [("loading", 4), ("evaluating", 4), ("saving", 2), ("finishing", 4)])
def test_announced_phases_have_more_time_but_not_for_ever(told: Told, phase: str, patience: int) -> None:
    told.say("step", step=1)
    told.say("phase", name=phase)
    assert not told.hung_after(99 * patience)
    assert told.hung_after(101 * patience)


def test_logs_without_steps_are_no_progress(told: Told) -> None:
    told.say("step", step=1)
    told.clock.sleep(101)
    told.say("log", step=1, loss=1.0, grad_norm=1)
    assert told.hung_after(0)


def test_a_step_ends_a_phase_that_nobody_ended(told: Told) -> None:
    told.say("phase", name="saving")
    told.say("step", step=2)
    assert told.hung_after(101)


@pytest.mark.parametrize(
    ("code", "tail", "outcome"),
    [
        (1, "Traceback\nValueError: bad column", Outcome.USER_ERROR),
        (1, "RuntimeError: CUDA error: device unavailable", Outcome.HOST_FAULT),
        (1, "Failed to initialize NVML: Driver/library version mismatch", Outcome.HOST_FAULT),
        (1, "OSError: [Errno 28] No space left on device", Outcome.USER_ERROR),
        (75, "", Outcome.PREEMPTED),
        (0, "", Outcome.USER_ERROR),
    ],
)
def test_a_trainer_that_left_by_itself_is_judged_by_what_it_said(told: Told, code: int, tail: str, outcome) -> None:
    told.say("step", step=1)
    verdict = judge(Left(code, tail), told.progress)
    assert isinstance(verdict, Ending)
    assert verdict.outcome is outcome
    assert verdict.code != 0


@pytest.mark.parametrize(
    ("left", "smaller"),
    [
        (Left(76, ""), True),
        (Left(1, "torch.OutOfMemoryError: CUDA out of memory. Tried"), True),
        (Left(137, "", oom_killed=True), True),
        (Left(137, ""), False),
        (Left(None, ""), False),
        (Left(143, ""), False),
    ],
)
def test_memory_and_murder_are_told_apart(told: Told, left: Left, smaller: bool) -> None:
    verdict = judge(left, told.progress)
    assert isinstance(verdict, Again)
    assert verdict.smaller_batch is smaller


def test_done_needs_the_last_step(told: Told) -> None:
    told.say("start", max_steps=10)
    told.say("done", step=9, max_steps=10)
    verdict = judge(Left(0, ""), told.progress)
    assert isinstance(verdict, Ending)
    assert "step 9 of 10" in verdict.reason
    assert (verdict.outcome, verdict.publish_artifact) == (Outcome.USER_ERROR, False)
    told.say("done", step=10, max_steps=10)
    verdict = judge(Left(0, ""), told.progress)
    assert isinstance(verdict, Ending)
    assert (verdict.outcome, verdict.code, verdict.publish_artifact) == (Outcome.SUCCEEDED, 0, True)


@pytest.mark.parametrize(
    ("micro", "accumulation", "half"), [(4, 2, (2, 4)), (2, 1, (1, 2)), (1, 8, None), (3, 2, None)]
)
def test_half_the_batch_keeps_the_effective_batch(micro: int, accumulation: int, half) -> None:
    assert ending.smaller(micro, accumulation) == half
