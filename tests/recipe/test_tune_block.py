"""The `tune:` block and what `--set` makes of it."""

from __future__ import annotations

from decimal import Decimal

import pytest

from orchestrator.errors import RecipeError
from orchestrator.recipe import TuneBlock, check_provider
from tests.recipe.reading import BASE, only, read, refused


def tune(block: str) -> TuneBlock:
    return read(BASE + f"tune: {{{block}}}\n").tune


def test_an_axolotl_file_without_the_block_is_a_recipe() -> None:
    assert read(BASE).tune == TuneBlock()
    assert read(BASE + "tune:\n").tune == TuneBlock()
    assert TuneBlock().trainer == "axolotl"
    assert (TuneBlock().checkpoint_every_s, TuneBlock().keep_checkpoints, TuneBlock().spot) == (1200, 2, "prefer")


def test_every_key_lands_in_its_field_with_its_unit() -> None:
    block = tune(
        "trainer: trl, provider: local, spot: never, name: my run, max_usd_per_hour: $0.40, budget_usd: 6, deadline: 12h, "
        "instance_deadline: 6h, checkpoint_every: 5s, keep_checkpoints: 3, hang_timeout: 10m, launch_timeout: 90s, "
        "bootstrap_timeout: 1h, unreachable_grace: 45m, upload_grace: 2h, max_attempts: 4, storage: 's3://b/p', "
        "publish: {hub: me/model}, env: {NCCL_DEBUG: INFO, N: 010}, environment: pinned, image: 'pytorch/pytorch:2.9', "
        "min_vram: 24GiB, gpu: RTX 4090, gpu_count: 2, disk: 100GiB, allow_drop: 0.2, files: [template.jinja], allow_optimizer_reset: yes, require_flash: on"
    )
    assert block == TuneBlock(
        trainer="trl",
        provider="local",
        spot="never",
        name="my run",
        max_usd_per_hour=Decimal("0.40"),
        budget_usd=Decimal(6),
        deadline_s=43_200,
        instance_deadline_s=21_600,
        checkpoint_every_s=5,
        keep_checkpoints=3,
        hang_timeout_s=600,
        launch_timeout_s=90,
        bootstrap_timeout_s=3600,
        unreachable_grace_s=2700,
        upload_grace_s=7200,
        max_attempts=4,
        storage="s3://b/p",
        publish={"hub": "me/model"},
        env={"NCCL_DEBUG": "INFO", "N": "010"},
        environment="pinned",
        image="pytorch/pytorch:2.9",
        min_vram_gib=24,
        gpu=("RTX 4090",),
        gpu_count=2,
        disk_gb=107.3741824,
        allow_drop=0.2,
        files=("template.jinja",),
        allow_optimizer_reset=True,
        require_flash=True,
    )


@pytest.mark.parametrize(
    ("block", "where", "says", "cure"),
    [
        ("trainr: trl", "tune.trainr", "unknown key", "did you mean trainer?"),
        ("trainer: trll", "tune.trainer", "words it may be", "did you mean trl?"),
        ("provider: vast", "tune.provider", "no provider is called", "did you mean vastai?"),
        ("provider: aws-bedrock", "tune.provider", "no provider is called", "known: local"),
        ("spot: sometimes", "tune.spot", "words it may be", "prefer, require, never"),
        ("deadline: 15", "tune.deadline", "has no unit", "write 15m or 15s"),
        ("budget_usd: 6 EUR", "tune.budget_usd", "not in US dollars", "USD"),
        ("budget_usd: 0", "tune.budget_usd", "not above 0", "above 0"),
        ("max_usd_per_hour: -1", "tune.max_usd_per_hour", "not an amount", "0.60"),
        ("disk: 100", "tune.disk", "has no unit", "100GiB"),
        ("keep_checkpoints: 0", "tune.keep_checkpoints", "below 1", "always kept"),
        ("max_attempts: 0", "tune.max_attempts", "below 1", "least"),
        ("allow_drop: 1.5", "tune.allow_drop", "above 1", "most"),
        ("gpu_count: -1", "tune.gpu_count", "below 0", "least"),
        ("gpu: {count: -1}", "tune.gpu.count", "below 0", "least"),
        ("gpu: {cuont: 1}", "tune.gpu.cuont", "unknown key", "did you mean count?"),
        ("gpu: {min_vram: 24}", "tune.gpu.min_vram", "has no unit", "write 24GB"),
        ("gpu: {count: 1}, gpu_count: 2", "tune.gpu.count", "the same as tune.gpu_count", "keep one"),
        ("gpu: {min_vram: 9GB}, min_vram: 8GB", "tune.gpu.min_vram", "the same as tune.min_vram", "keep one"),
        ("gpu: {count: 0, name: RTX 4090}", "tune.gpu", "asks for no GPU and for a kind of it", "remove"),
        ("provider: [vastai, runpodd]", "tune.provider", "no provider is called", "did you mean runpod?"),
        ("provider: 'vastai,any'", "tune.provider", "no provider is called `any`", "known: local"),
        ("provider: 'vastai, local'", "tune.provider", "cannot stand in", "name it alone"),
        ("environment: images", "tune.environment", "is no environment", "did you mean image?"),
        ("environment: ./venv", "tune.environment", "is no environment", "absolute path"),
        ("image: 'a b'", "tune.image", "not the name of a container image", "pytorch/pytorch"),
        ("image: 'https://hub.docker.com/r/a/b'", "tune.image", "not the name", "pytorch/pytorch"),
        ("env: {HF_TOKEN: x}", "tune.env.HF_TOKEN", "looks like a secret", "your own environment"),
        ("env: {TUNE_HOME: /x}", "tune.env.TUNE_HOME", "tune's own", "another name"),
        ("env: {A: 1}, environment: {A: 2}", "tune.environment.A", "the same as tune.env.A", "keep one"),
        ("checkpoint_every: 4m", "tune.checkpoint_every", "outside 5m to 60m", "provider: local"),
        ("checkpoint_every: 61m", "tune.checkpoint_every", "outside 5m to 60m", "15m to 30m"),
        ("checkpoint_every: 0.5s, provider: sim", "tune.checkpoint_every", "shorter than a second", "1s"),
        ("name: -rf", "tune.name", "like an option", "letter"),
        ('name: "a\\nb"', "tune.name", "one line", "shorten"),
        ("publish: {hub: me}", "tune.publish.hub", "ambiguous", "org/me"),
        ("publish: {hubb: me/x}", "tune.publish.hubb", "unknown key", "did you mean hub?"),
        ("environment: {HF_TOKEN: x}", "tune.environment.HF_TOKEN", "looks like a secret", "your own environment"),
        ("environment: {A: hf_abcdefghijklmnop}", "tune.environment.A", "looks like a secret", "your own environment"),
        ("environment: {TUNE_HOME: /x}", "tune.environment.TUNE_HOME", "tune's own", "another name"),
        ("environment: {'A B': x}", "tune.environment.A B", "not a name", "letters"),
        ("files: [../x]", "tune.files[0]", "not below the recipe's folder", "copy it"),
        ("files: [a, /etc/passwd]", "tune.files[1]", "not below the recipe's folder", "copy it"),
        ('storage: "a\\u0007b"', "tune.storage", "invisible", "one line"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place_and_cure(block: str, where: str, says: str, cure: str) -> None:
    problem = only(BASE + f"tune: {{{block}}}\n")
    assert (problem.where, problem.line) == (where, 2)
    assert says in problem.message
    assert cure in problem.hint


def test_a_block_that_is_no_block_is_refused() -> None:
    assert "must hold keys" in only(BASE + "tune: trl\n").message
    assert "must hold keys" in only(BASE + "tune: [trl]\n").message


def test_an_interval_outside_the_useful_range_is_mentioned() -> None:
    assert "useful range" in read(BASE + "tune: {checkpoint_every: 10m}\n").notices[0]
    assert read(BASE + "tune: {checkpoint_every: 20m}\n").notices == ()
    assert read(BASE + "tune: {checkpoint_every: 2s, provider: local}\n").notices == ()


def test_a_provider_chosen_elsewhere_is_held_to_the_same_rules() -> None:
    demo = read("base_model: ./tiny\ntune: {provider: local, checkpoint_every: 5s}\n")
    check_provider(demo, "sim")
    with pytest.raises(RecipeError) as caught:
        check_provider(demo, "vastai")
    assert [(p.where, p.line) for p in caught.value.problems] == [("tune.checkpoint_every", 2)]
    check_provider(read(BASE), "vastai")


def test_gpus_may_be_asked_for_in_one_mapping() -> None:
    block = tune("gpu: {count: 2, name: [RTX 4090, RTX 3090], min_vram: 24GiB}")
    assert (block.gpu_count, block.gpu, block.min_vram_gib) == (2, ("RTX 4090", "RTX 3090"), 24)
    assert tune("gpu: {name: L4}").gpu == ("L4",)
    assert tune("gpu: {}") == TuneBlock()
    assert tune("gpu: [L4, T4]").gpu == ("L4", "T4")


@pytest.mark.parametrize("provider", ["vastai", "runpod", "any", "[vastai, runpod]"])
def test_a_recipe_without_gpus_is_tiny_and_may_save_every_few_seconds_anywhere(provider: str) -> None:
    block = tune(f"gpu: {{count: 0}}, checkpoint_every: 5s, provider: {provider}")
    assert (block.gpu_count, block.checkpoint_every_s) == (0, 5)
    check_provider(read(BASE + "tune: {gpu_count: 0, provider: local, checkpoint_every: 5s}\n"), "vastai")
    assert "shorter than a second" in only(BASE + "tune: {gpu_count: 0, checkpoint_every: 0.1s}\n").message


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("any", "any"),
        ("vastai", "vastai"),
        ("'vastai, runpod'", "runpod,vastai"),
        ("[vastai, runpod]", "runpod,vastai"),
    ],
)
def test_several_providers_are_one_wish_however_they_are_written(written: str, means: str) -> None:
    assert tune(f"provider: {written}").provider == means


def test_environment_is_a_word_or_as_before_the_variables() -> None:
    assert tune("environment: {NCCL_DEBUG: INFO}") == TuneBlock(env={"NCCL_DEBUG": "INFO"})
    assert tune("environment: {A: 1}, env: {B: 2}").env == {"A": "1", "B": "2"}
    assert tune("environment: /opt/conda/bin/python").environment == "/opt/conda/bin/python"
    assert [tune(f"environment: {word}").environment for word in ("auto", "image", "pinned")] == [
        "auto",
        "image",
        "pinned",
    ]


@pytest.mark.parametrize(
    "image",
    [
        "ubuntu",
        "ubuntu:24.04",
        "pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime",
        "ghcr.io/me/x@sha256:" + "a" * 64,
        "localhost:5000/x",
    ],
)
def test_every_form_of_an_image_s_name_is_taken(image: str) -> None:
    assert tune(f"image: '{image}'").image == image


def test_limits_that_fight_each_other_are_mentioned() -> None:
    assert "six minutes" in read(BASE + "tune: {max_usd_per_hour: 3, budget_usd: 0.2}\n").notices[0]
    assert "comes first" in read(BASE + "tune: {deadline: 1h, instance_deadline: 2h}\n").notices[0]


def test_hostile_text_stays_text() -> None:
    for text in ("x; touch /tmp/p #", "$(touch /tmp/p)", "`id`", "~root", 'a"b'):
        quoted = text.replace("'", "''")
        recipe = read(BASE + f"output_dir: '{quoted}'\ntune: {{name: '{quoted}'}}\n")
        assert recipe.training["output_dir"] == text
        assert recipe.tune.name == text


class TestSet:
    """`--set key=value` follows the file's own rules."""

    def test_values_are_typed_by_their_key(self) -> None:
        recipe = read(
            BASE + "learning_rate: 1\ntune: {spot: never}\n",
            "learning_rate=2e-4",
            "adapter=lora",
            "tune.provider=local",
            "tune.checkpoint_every=5s",
            "special_tokens.pad_token=<pad>",
            "lora_target_modules=[q_proj, v_proj]",
            "wandb_name=a: b # c",
        )
        assert recipe.training["learning_rate"] == 2e-4
        assert recipe.training["lora_target_modules"] == ["q_proj", "v_proj"]
        assert recipe.training["special_tokens"] == {"pad_token": "<pad>"}
        assert recipe.training["wandb_name"] == "a: b # c"
        assert (recipe.tune.provider, recipe.tune.checkpoint_every_s, recipe.tune.spot) == ("local", 5, "never")

    def test_the_last_one_wins_and_a_blank_unsets(self) -> None:
        assert read(BASE, "seed=1", "seed=2").training["seed"] == 2
        assert "seed" not in read(BASE + "seed: 3\n", "seed=").training

    def test_entries_of_a_list_can_be_set(self) -> None:
        text = BASE + "datasets: [{path: ./a.jsonl, type: alpaca}]\n"
        assert read(text, "datasets[0].path=./b.jsonl").datasets[0].path == "./b.jsonl"
        assert "nothing of that name" in only(text, "datasets[1].path=./b.jsonl").message

    def test_an_alias_elsewhere_is_left_alone(self) -> None:
        text = BASE + "x-a: &a {path: ./a.jsonl}\ndatasets: [*a, *a]\n"
        assert [d.path for d in read(text, "datasets[0].path=./b.jsonl").datasets] == ["./b.jsonl", "./a.jsonl"]

    @pytest.mark.parametrize(
        ("option", "where"),
        [
            ("lora_r=abc", "--set lora_r"),
            ("lerning_rate=1", "--set lerning_rate"),
            ("tune.deadline=15", "--set tune.deadline"),
            ("tune.trainr=trl", "--set tune.trainr"),
            ("seed", "--set seed"),
            ("=1", "--set =1"),
            ("a..b=1", "--set a..b=1"),
            ("seed.x=1", "--set seed.x"),
            ("lora_target_modules=[a", "--set lora_target_modules"),
            ("lora_target_modules=[a, !x b]", "--set lora_target_modules"),
        ],
    )
    def test_a_problem_names_the_option_and_no_line(self, option: str, where: str) -> None:
        problems = refused(BASE + "seed: 1\n", option)
        assert problems[0].where == where
        assert problems[0].line is None
        assert problems[0].hint
        assert "recipe.yaml" not in str(problems[0])


def test_a_training_key_under_tune_is_sent_to_the_top_level() -> None:
    problem = only(BASE + "tune:\n  trainer: trl\n  learning_rate: 2e-4\n")
    assert (problem.where, problem.line) == ("tune.learning_rate", 4)
    assert "top level" in problem.hint


def test_a_block_of_other_names_is_translated_key_by_key() -> None:
    launcher, training = refused(BASE + "provider: {max_price: 1, disk: 9GB}\ntraining: {lr: 1e-4, lora_rank: 8}\n")
    assert launcher.hint == "put max_usd_per_hour, disk under `tune:`"
    assert training.hint == "put learning_rate, lora_r at the top level"
