"""The trl trainer keeps the promises every trainer makes, and some of its own."""

from __future__ import annotations

import json
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.handover import EXIT_OOM
from orchestrator.recipe import data
from orchestrator.recipe.model import Recipe
from orchestrator.trainers.registry import get_trainer
from tests.assets.tiny import Tiny
from tests.trainers.stage import FULL, QLORA, Ended, Stage, recipe, tensors
from tests.trainers.trainer_contract import STEPS, TrainerContract

pytestmark = pytest.mark.train
OOM_LIMIT_BYTES = 5 << 30  # the stack maps about half of it; attention over one endless row wants far more


class TestTrl(TrainerContract):
    """On a CPU, with a tiny Llama and LoRA."""

    trainer = "trl"
    state_files = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")

    @pytest.fixture(scope="class")
    @classmethod
    def plain(cls, tmp_path_factory: pytest.TempPathFactory, tiny_assets: Tiny) -> Recipe:
        folder = tmp_path_factory.mktemp("recipe")
        return recipe(folder, tiny_assets.model, (tiny_assets.alpaca, "alpaca"), lora_dropout=0.0)

    @pytest.fixture
    def long(self, tmp_path: Path, tiny_assets: Tiny) -> Recipe:
        return recipe(tmp_path, tiny_assets.model, (tiny_assets.alpaca, "alpaca"), max_steps=100_000)

    @pytest.fixture
    def hopeless(self, tmp_path: Path, tiny_assets: Tiny) -> Recipe:
        more = {"learning_rate": 1e30, "max_steps": 4, "max_grad_norm": 0, "warmup_steps": 0}
        return recipe(tmp_path, tiny_assets.model, (tiny_assets.alpaca, "alpaca"), **more)

    def test_the_adapter_loads_onto_its_base_and_changes_what_it_says(
        self, whole: tuple[Stage, Ended], tiny_assets: Tiny
    ) -> None:
        stage, _ = whole
        said = json.loads((stage.work / "final/adapter_config.json").read_text())
        assert said["base_model_name_or_path"] == str(tiny_assets.model)
        assert "training_args.bin" not in stage.final.files and "tokenizer.json" in stage.final.files
        code = (
            "import sys, torch; from peft import PeftModel; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
            "base = AutoModelForCausalLM.from_pretrained(sys.argv[1]); tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])\n"
            "ids = tokenizer('Where is the lamp?', return_tensors='pt').input_ids\n"
            "before = base(ids).logits.clone(); after = PeftModel.from_pretrained(base, sys.argv[2])(ids).logits\n"
            "assert not torch.equal(before, after)"
        )
        argv = [sys.executable, "-c", code, str(tiny_assets.model), str(stage.work / "final")]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr

    def test_half_the_rows_at_once_and_twice_as_often_is_the_same_training(
        self, plain: Recipe, whole: tuple[Stage, Ended], stages: Callable[[Recipe], Stage]
    ) -> None:
        """What follows an out-of-memory: micro-batch halved, accumulation doubled, on from the checkpoint."""
        stage, ended = whole
        halved = stages(plain)
        carried = halved.run(
            resume_from=str(stage.work / "snapshots/5"), micro_batch_size=1, gradient_accumulation_steps=4
        )
        assert carried.code == 0, carried.log
        for step, loss in carried.losses.items():
            assert loss == pytest.approx(ended.losses[step], abs=1e-5)

    def test_out_of_memory_is_told_apart_from_failure(
        self, tmp_path: Path, tiny_assets: Tiny, stages: Callable[[Recipe], Stage]
    ) -> None:
        endless = tmp_path / "endless.jsonl"
        endless.write_text(json.dumps({"text": "The red lamp stands in the garden. " * 1500}) + "\n")
        wide = {"sequence_len": 100_000, "attn_implementation": "eager", "max_steps": 2}
        stage = stages(recipe(tmp_path, tiny_assets.model, (endless, "completion"), **wide))
        child = stage.start()
        resource.prlimit(child.pid, resource.RLIMIT_AS, (OOM_LIMIT_BYTES, resource.RLIM_INFINITY))
        ended = stage.ended(child)
        assert ended.code == EXIT_OOM, ended.log
        assert len(ended.of("oom")) == 1 and ended.of("done") == []

    def test_a_checkpoint_of_another_recipe_is_refused_with_what_differs(
        self, plain: Recipe, whole: tuple[Stage, Ended], stages: Callable[[Recipe], Stage]
    ) -> None:
        stage, _ = whole
        other = stages(replace(plain, training={**plain.training, "lora_r": 4}))
        ended = other.run(resume_from=str(stage.work / "snapshots/5"))
        assert ended.code == 1
        assert "28 tensors expected, 28 found" in ended.notes
        assert "expected 4x128, found 8x128" in ended.notes
        assert ended.of("step") == []

    def test_a_jump_of_the_loss_and_a_slower_attention_are_said_aloud(
        self, plain: Recipe, whole: tuple[Stage, Ended], stages: Callable[[Recipe], Stage]
    ) -> None:
        stage, ended = whole
        wanted = replace(plain, training={**plain.training, "attn_implementation": "flash_attention_2"})
        resumed = stages(wanted)
        folder = shutil.copytree(stage.work / f"snapshots/{STEPS - 1}", resumed.work / "restored")
        memory = json.loads((folder / "tune_state.json").read_text())
        assert memory["loss"] == pytest.approx(ended.losses[STEPS - 1])
        (folder / "tune_state.json").write_text(json.dumps({**memory, "loss": memory["loss"] / 2}))
        carried = resumed.run(resume_from=str(folder))
        assert carried.code == 0, carried.log
        assert "the first loss after resuming" in carried.notes
        assert "sdpa instead of flash_attention_2" in carried.notes
        assert resumed.final.metrics["attention"] == "sdpa"

    def test_flash_attention_that_is_required_is_not_replaced(
        self, plain: Recipe, stages: Callable[[Recipe], Stage]
    ) -> None:
        block = replace(plain.tune, require_flash=True)
        training = {**plain.training, "attn_implementation": "flash_attention_2"}
        ended = stages(replace(plain, training=training, tune=block)).run()
        assert ended.code == 1 and "require_flash" in ended.notes and ended.of("start") == []


class Kills:
    """One kind of training, killed at drawn steps: the weights come out the same."""

    def __init__(self, base: Path, wanted: Recipe) -> None:
        self._base = base
        self._recipe = wanted
        self.whole = self.stage("whole")
        ended = self.whole.run()
        assert ended.code == 0, ended.log
        self.losses = ended.losses

    def stage(self, name: str) -> Stage:
        with get_trainer("trl").render(self._recipe, data.check(self._recipe)) as job:
            return Stage.of(self._base / name, job)

    def kill_and_carry_on(self, name: str, step: int) -> Ended:
        stage = self.stage(name)
        try:
            stage.killed_at(step, checkpoint_every_s=0.0)
            newest = stage.snapshots[-1]
            ended = stage.run(resume_from=str(stage.work / f"snapshots/{newest}"))
        finally:
            stage.close()
        assert ended.code == 0, ended.log
        assert ended.losses == {s: loss for s, loss in self.losses.items() if s > newest}
        assert tensors(stage.work / "final") == tensors(self.whole.work / "final") != {}
        return ended


def _kinds(tiny: Tiny) -> dict[str, tuple[tuple[Path, str], dict[str, Any]]]:
    return {
        "qlora": ((tiny.alpaca, "alpaca"), {**QLORA}),
        "full": ((tiny.completion, "completion"), {**FULL}),
        "packing over two epochs": (
            (tiny.chat, "chat_template"),
            {"sample_packing": True, "sequence_len": 256, "max_steps": None, "num_epochs": 2},
        ),
        "grouped by length, evaluated": (
            (tiny.alpaca, "alpaca"),
            {"group_by_length": True, "val_set_size": 0.2, "eval_steps": 3, "max_steps": None, "num_epochs": 2},
        ),
        "bfloat16 with gradient checkpointing": (
            (tiny.alpaca, "alpaca"),
            {**QLORA, "bf16": True, "gradient_checkpointing": True},
        ),
        "a trained head": (
            (tiny.alpaca, "alpaca"),
            {"lora_modules_to_save": ["lm_head"], "optimizer": "adamw_torch_fused"},
        ),
    }


def _kills(base: Path, tiny: Tiny, kind: str) -> Kills:
    source, changes = _kinds(tiny)[kind]
    return Kills(base, recipe(base, tiny.model, source, **changes))


def test_a_quantised_training_with_dropout_survives_a_kill_bit_by_bit(tmp_path: Path, tiny_assets: Tiny) -> None:
    """Adapters must be float32 from the first step on, or a resume changes their precision and with it everything."""
    kills = _kills(tmp_path, tiny_assets, "qlora")
    kills.kill_and_carry_on("killed", random.randint(3, STEPS - 2))
    snapshot = kills.whole.snapshot(STEPS)
    assert snapshot.files["adapter_model.safetensors"] == kills.whole.final.files["adapter_model.safetensors"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(_kinds(Tiny(*[Path()] * 4))))
def test_any_kind_of_training_survives_kills_bit_by_bit(kind: str, tmp_path: Path, tiny_assets: Tiny) -> None:
    kills = _kills(tmp_path, tiny_assets, kind)
    last = max(kills.losses)
    for step in random.sample(range(2, last - 1), 3):
        kills.kill_and_carry_on(f"killed at {step}", step)


@pytest.mark.slow
def test_packed_rows_do_not_see_each_other(tmp_path: Path, tiny_assets: Tiny) -> None:
    """The loss of four rows in one sequence is that of the same four rows side by side."""
    few = tmp_path / "few.jsonl"
    few.write_text("".join(line + "\n" for line in tiny_assets.completion.read_text().splitlines()[:4]))
    losses = {}
    for packing, micro in ((True, 1), (False, 4)):
        changes = {"sample_packing": packing, "sequence_len": 512, "micro_batch_size": micro, "max_steps": 2}
        wanted = recipe(
            tmp_path, tiny_assets.model, (few, "completion"), gradient_accumulation_steps=1, lora_dropout=0.0, **changes
        )
        with get_trainer("trl").render(wanted, data.check(wanted)) as job:
            ended = Stage.of(tmp_path / f"packing {packing}", job).run()
        assert ended.code == 0, ended.log
        losses[packing] = list(ended.losses.values())
    assert losses[True] == pytest.approx(losses[False], abs=1e-5)
