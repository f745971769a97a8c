"""One training job has one hash, however its file looks; another job has another."""

from __future__ import annotations

import pytest

from orchestrator.recipe.digest import counts
from tests.recipe.reading import BASE, read

PLAIN = BASE + "adapter: lora\nlora_r: 8\nlearning_rate: 2e-4\ntune: {trainer: trl}\n"


@pytest.mark.parametrize(
    "other",
    [
        "# a comment\n\n" + PLAIN,
        "\ufeff" + PLAIN.replace("\n", "\r\n"),
        "---\n" + PLAIN.replace("2e-4", "0.0002").replace("lora_r: 8", 'lora_r:   "8.0"  # eight'),
        'tune:\n  trainer: "trl"\n  spot: never\nlearning_rate: .0002\nlora_r: 0x8\nadapter: lora\n' + BASE,
        '{"base_model": "acme/tiny", "adapter": "lora", "lora_r": 8, "learning_rate": 0.0002, "tune": {"trainer": "trl"}}',
        PLAIN + "wandb_project:\nhub_model_id: me/x\noutput_dir: ./elsewhere\nsave_steps: 10\n",
        PLAIN.replace(
            "{trainer: trl}", "{trainer: trl, provider: vastai, budget_usd: 3, deadline: 1h, name: x, disk: 50GB}"
        ),
        PLAIN.replace("{trainer: trl}", "{trainer: trl, gpu_count: 1, checkpoint_every: 30m, max_attempts: 3}"),
        "x-a: &a {adapter: lora, lora_r: 8}\n<<: *a\n" + BASE + "learning_rate: 2e-4\ntune: {trainer: trl}\n",
    ],
)
def test_formatting_place_and_price_do_not_change_it(other: str) -> None:
    assert read(other).sha256 == read(PLAIN).sha256


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace("2e-4", "3e-4"),
        PLAIN.replace("trl", "axolotl"),
        PLAIN.replace("acme/tiny", "acme/tiny@v2"),
        PLAIN + "seed: 1\n",
        PLAIN + "datasets: [{path: a.jsonl}]\n",
        PLAIN.replace("{trainer: trl}", "{trainer: trl, gpu_count: 2}"),
        PLAIN.replace("{trainer: trl}", "{trainer: trl, environment: {A: b}}"),
        PLAIN.replace("{trainer: trl}", "{trainer: trl, files: [a]}"),
    ],
)
def test_what_changes_the_weights_changes_it(other: str) -> None:
    assert read(other).sha256 != read(PLAIN).sha256


def test_it_never_changes_between_releases() -> None:
    assert read(PLAIN).sha256 == "f665b3320e8061fc300c8843f23733f8132eac1b6788f276dc1193ebb37afcce"


def test_an_override_counts_as_if_it_stood_in_the_file() -> None:
    assert read(PLAIN, "lora_r=16").sha256 == read(PLAIN.replace("lora_r: 8", "lora_r: 16")).sha256
    assert read(PLAIN, "tune.provider=local").sha256 == read(PLAIN).sha256


def test_old_and_new_names_are_the_same_job() -> None:
    assert (
        read(BASE + "flash_attention: true\n").sha256 == read(BASE + "attn_implementation: flash_attention_2\n").sha256
    )
    assert read("base_model: acme/tiny:v1\n").sha256 == read("base_model: acme/tiny\nrevision_of_model: v1\n").sha256


def test_reporting_does_not_count_and_training_does() -> None:
    assert not any(counts(k) for k in ("wandb_name", "hub_model_id", "output_dir", "save_steps", "logging_steps"))
    assert all(counts(k) for k in ("learning_rate", "seed", "optimizer", "val_set_size", "datasets"))
