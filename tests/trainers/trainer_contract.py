"""What every trainer promises: it makes the steps foretold, tells what it does, and can be carried on from any kill."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestrator.handover import EXIT_SAVED
from orchestrator.recipe import data
from orchestrator.recipe.model import Recipe
from orchestrator.trainers.registry import get_trainer
from tests.trainers.stage import Ended, Stage, tensors

STEPS = 12


class TrainerContract:
    """Subclass it with the name of a trainer that this machine can run."""

    trainer: str
    state_files: Sequence[str]  # what a checkpoint needs beyond weights

    @pytest.fixture
    def stages(self, tmp_path: Path) -> Iterator[Callable[[Recipe], Stage]]:
        made: list[Stage] = []

        def make(recipe: Recipe) -> Stage:
            with get_trainer(self.trainer).render(recipe, data.check(recipe)) as job:
                made.append(Stage.of(tmp_path / f"home-{len(made)}", job))
            return made[-1]

        yield make
        for stage in made:
            stage.close()

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, tmp_path_factory: pytest.TempPathFactory, plain: Recipe) -> Iterator[tuple[Stage, Ended]]:
        """An uninterrupted training of the plain recipe, with a checkpoint after every step."""
        with get_trainer(cls.trainer).render(plain, data.check(plain)) as job:
            stage = Stage.of(tmp_path_factory.mktemp("whole"), job)
        yield stage, stage.run(checkpoint_every_s=0.0)
        stage.close()

    def test_it_makes_the_steps_that_the_data_check_foretold(self, plain: Recipe, whole: tuple[Stage, Ended]) -> None:
        stage, ended = whole
        assert ended.code == 0, ended.log
        foretold = data.check(plain).steps
        assert foretold == STEPS
        assert [e["step"] for e in ended.of("step")] == list(range(1, foretold + 1))
        assert ended.of("start")[0]["max_steps"] == foretold
        assert {k: ended.of("done")[0][k] for k in ("step", "max_steps")} == {"step": foretold, "max_steps": foretold}
        assert (stage.final.step, stage.final.max_steps) == (foretold, foretold)

    def test_it_says_what_it_does_in_the_order_in_which_it_does_it(self, whole: tuple[Stage, Ended]) -> None:
        _, ended = whole
        first_of_each = list(dict.fromkeys(e["event"] for e in ended.events))
        assert first_of_each[:4] == ["phase", "start", "step", "log"] and first_of_each[-1] == "done"
        assert [e["name"] for e in ended.of("phase")][:2] == ["loading", "training"]
        assert ended.events[-1]["event"] == "done"
        for event in ended.of("log"):
            assert event.keys() >= {"at", "step", "loss", "grad_norm", "learning_rate", "tokens"}
        tokens = [event["tokens"] for event in ended.of("log")]
        assert tokens == sorted(tokens) and tokens[0] > 0
        assert ended.of("start")[0]["versions"]["torch"]
        at = [event["at"] for event in ended.events]
        assert at == sorted(at)

    def test_every_checkpoint_is_complete_and_vouched_for_outside_the_trainers_own_folder(
        self, whole: tuple[Stage, Ended]
    ) -> None:
        stage, ended = whole
        assert stage.snapshots == [e["step"] for e in ended.of("checkpoint")] == list(range(1, STEPS + 1))
        for step in stage.snapshots:
            folder, snapshot = stage.work / f"snapshots/{step}", stage.snapshot(step)
            assert snapshot.step == step and snapshot.world_size == 1
            assert {p.name: p.stat().st_size for p in folder.iterdir()} == dict(snapshot.files)
            assert snapshot.files.keys() >= set(self.state_files)
            assert any(name.endswith(".safetensors") for name in snapshot.files)
            assert "training_args.bin" not in snapshot.files  # a pickle that nobody needs
        assert list((stage.work / "out").glob("checkpoint-*")) == []  # nothing piles up

    def test_the_loss_falls_and_the_figures_say_so(self, whole: tuple[Stage, Ended]) -> None:
        stage, ended = whole
        losses = list(ended.losses.values())
        metrics = stage.final.metrics
        assert losses[-1] < losses[0] - 0.3
        assert metrics["first_loss"] == losses[0] and metrics["last_loss"] == losses[-1] == stage.final.loss
        assert metrics["tokens"] == ended.of("log")[-1]["tokens"]
        assert float(metrics["train_s"] or 0) > 0 and float(metrics["peak_ram_gib"] or 0) > 0.1
        assert metrics["attention"] in ("sdpa", "eager")

    def test_killed_without_warning_and_carried_on_it_ends_with_the_very_same_weights(
        self, plain: Recipe, whole: tuple[Stage, Ended], stages: Callable[[Recipe], Stage]
    ) -> None:
        stage, ended = whole
        broken = stages(plain)
        step = random.randint(3, STEPS - 2)
        lost = broken.killed_at(step, checkpoint_every_s=0.0)
        assert lost.code == -signal.SIGKILL
        newest = broken.snapshots[-1]
        carried = broken.run(resume_from=str(broken.work / f"snapshots/{newest}"))
        assert carried.code == 0, carried.log
        assert [e["step"] for e in carried.of("step")] == list(range(newest + 1, STEPS + 1))
        assert carried.losses == {s: loss for s, loss in ended.losses.items() if s > newest}
        assert tensors(broken.work / "final") == tensors(stage.work / "final") != {}
        assert broken.final.metrics["first_loss"] == stage.final.metrics["first_loss"]  # of the whole training

    def test_killed_after_the_last_checkpoint_it_hands_over_without_training_more(
        self, plain: Recipe, whole: tuple[Stage, Ended], stages: Callable[[Recipe], Stage]
    ) -> None:
        stage, _ = whole
        again = stages(plain)
        ended = again.run(resume_from=str(stage.work / f"snapshots/{STEPS}"))
        assert ended.code == 0, ended.log
        assert ended.of("step") == []
        assert tensors(again.work / "final") == tensors(stage.work / "final")
        told_again = again.run()  # and once more, as after a kill between the last word and the exit
        assert told_again.code == 0 and [e["event"] for e in told_again.events] == ["phase", "done"]

    def test_it_saves_when_wished_shows_its_stacks_and_leaves_when_asked(
        self, long: Recipe, stages: Callable[[Recipe], Stage]
    ) -> None:
        stage = stages(long)
        child = stage.start()
        stage.wait_for(child, lambda events: _count(events, "step") >= 3)
        assert stage.snapshots == []
        stage.wish_for_save()
        stage.wait_for(child, lambda events: _count(events, "checkpoint") == 1)
        assert not (stage.work / "control/save").exists()
        child.send_signal(signal.SIGUSR1)
        before = _count(stage.events(), "step")
        stage.wait_for(child, lambda events: _count(events, "step") >= before + 3)  # it only looked up
        child.send_signal(signal.SIGTERM)
        ended = stage.ended(child)
        assert ended.code == EXIT_SAVED
        assert ended.of("done") == []
        assert stage.snapshots[-1] == ended.of("step")[-1]["step"] == ended.of("checkpoint")[-1]["step"]
        assert not (stage.work / "final.json").exists()
        assert 'File "' in ended.log and "most recent call first" in ended.log

    def test_asked_to_leave_while_it_loads_it_goes_at_once(
        self, plain: Recipe, stages: Callable[[Recipe], Stage]
    ) -> None:
        stage = stages(plain)
        child = stage.start()
        stage.wait_for(child, lambda events: _count(events, "phase") >= 1)
        child.send_signal(signal.SIGTERM)
        assert stage.ended(child).code == EXIT_SAVED
        assert stage.snapshots == []

    def test_it_saves_by_the_clock_however_fast_the_steps_are(
        self, long: Recipe, stages: Callable[[Recipe], Stage]
    ) -> None:
        stage = stages(long)
        child = stage.start(checkpoint_every_s=0.5)
        stage.wait_for(child, lambda events: _count(events, "checkpoint") >= 3)
        child.send_signal(signal.SIGTERM)
        ended = stage.ended(child)
        saved = [e["at"] for e in ended.of("checkpoint")][:3]
        assert all(later - earlier >= 0.5 for earlier, later in pairwise(saved))
        assert len(ended.of("step")) > len(ended.of("checkpoint"))

    def test_a_loss_that_is_no_number_is_reported_and_never_handed_over(
        self, hopeless: Recipe, stages: Callable[[Recipe], Stage]
    ) -> None:
        ended = stages(hopeless).run()
        assert ended.code == 1
        assert "nan" in ended.losses.values()
        assert ended.of("done") == []
        assert "NaN" in ended.notes

    def test_without_a_row_to_learn_from_it_refuses(self, plain: Recipe, stages: Callable[[Recipe], Stage]) -> None:
        stage = stages(plain)
        (stage.home / "job/data/000.jsonl").write_text("")
        ended = stage.run()
        assert ended.code == 1
        assert ended.of("step") == ended.of("done") == []
        assert "no step" in ended.notes


def _count(events: list[dict[str, Any]], name: str) -> int:
    return sum(event["event"] == name for event in events)
