"""Files that break tools, byte for byte as people have them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from orchestrator.errors import Problem, RecipeError
from orchestrator.recipe import load
from orchestrator.recipe.ids import ModelId, parse_model_id
from orchestrator.recipe.scalars import Unfit, parse_int
from orchestrator.recipe.units import parse_duration_s, parse_gb, parse_gib, parse_usd
from tests.recipe.reading import BASE, FIXTURES, read


def problems_of(name: str) -> list[Problem]:
    with pytest.raises(RecipeError) as caught:
        load(FIXTURES / name)
    for problem in caught.value.problems:
        assert problem.path == str(FIXTURES / name)
    return list(caught.value.problems)


def value_in(name: str, key: str) -> str:
    """The raw text after a key: `max_price: $0.40` -> `$0.40`."""
    for line in (FIXTURES / name).read_text("utf-8").splitlines():
        if line.strip().startswith(f"{key}:"):
            return line.partition(":")[2].strip()
    raise KeyError(key)


def test_every_way_to_write_a_float_is_a_float() -> None:
    training = load(FIXTURES / "r01-scientific.yaml").training
    floats = {
        "learning_rate": 0.0002,
        "weight_decay": 0.01,
        "adam_epsilon": 1e-08,
        "warmup_ratio": 0.03,
        "lora_dropout": 0.05,
        "max_grad_norm": 1.0,
    }
    assert {k: training[k] for k in floats} == floats
    assert {type(training[k]) for k in floats} == {float}


def test_booleans_and_words_that_look_like_booleans_are_told_apart_by_their_key() -> None:
    recipe = load(FIXTURES / "r02-booleans.yaml")
    training = recipe.training
    assert training["load_in_4bit"] is True
    assert training["gradient_checkpointing"] is True
    assert training["sample_packing"] is True
    assert training["save_strategy"] == "no"
    assert training["eval_strategy"] == "no"
    assert training["bf16"] == "auto"
    assert "fp16" not in training
    assert training["attn_implementation"] == "flash_attention_2"
    assert "flash_attention" not in training
    assert any("flash_attention" in n for n in recipe.notices)


def test_duplicates_are_refused_with_both_lines_nested_ones_too() -> None:
    found = {p.where: p for p in problems_of("r03-duplicate.yaml")}
    assert set(found) == {"lora_r", "datasets[0].path"}
    assert "lines 4 and 9" in found["lora_r"].message
    assert "lines 6 and 8" in found["datasets[0].path"].message


def test_blocks_that_hold_anchors_are_unknown_by_name_and_never_duplicates() -> None:
    found = {p.where: p for p in problems_of("r04-anchors.yaml")}
    assert {"common", "variants"} <= set(found)
    assert all("unknown key" in found[k].message for k in ("common", "variants"))
    assert not any("twice" in p.message for p in found.values())
    assert "x-common" in found["common"].hint


def test_the_same_blocks_merge_when_they_are_named_as_holders() -> None:
    text = (FIXTURES / "r04-anchors.yaml").read_text()
    text = text.replace("common:", "x-common:").replace("variants:", "x-variants:").replace("big:", "big: &big")
    recipe = read(text + BASE + "adapter: lora\n<<: *big\n")
    assert {k: recipe.training[k] for k in ("sequence_len", "micro_batch_size", "lora_r")} == {
        "sequence_len": 2048,
        "micro_batch_size": 2,
        "lora_r": 64,
    }


def test_a_byte_order_mark_and_windows_line_ends_change_nothing() -> None:
    data = (FIXTURES / "r05-bom-crlf.yaml").read_bytes()
    assert data.startswith(b"\xef\xbb\xbf")
    assert b"\r\n" in data
    windows, plain = read(data), read(data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n"))
    assert windows.training == plain.training
    assert windows.sha256 == plain.sha256
    assert windows.lines == plain.lines
    assert next(iter(windows.training)) == "base_model"


def test_a_tab_in_the_indentation_is_named_with_its_line() -> None:
    (problem,) = problems_of("r06-tab-indent.yaml")
    assert problem.line == 9
    assert "TAB" in problem.message


def test_an_invisible_character_is_named_with_its_own_line() -> None:
    first, second = problems_of("r07-nbsp.yaml")
    assert (first.line, second.line) == (8, 9)
    assert "U+00A0" in first.message
    assert "U+00A0" in second.message


def test_odd_numbers_are_refused_or_exact() -> None:
    found = {p.where: p for p in problems_of("r08-odd-numbers.yaml")}
    assert set(found) == {"seed", "max_runtime", "run_date", "run_name"}  # the last three are not keys at all
    assert "write 10" in found["seed"].hint
    name = "r08-odd-numbers.yaml"
    assert parse_int(value_in(name, "max_steps")) == 1000
    assert parse_int(value_in(name, "save_steps")) == 8
    assert parse_int(value_in(name, "lora_r")) == 16
    with pytest.raises(Unfit, match="hours or minutes"):
        parse_duration_s(value_in(name, "max_runtime"))
    recipe = read(BASE + f"wandb_name: {value_in(name, 'run_date')}\nwandb_run_id: {value_in(name, 'run_name')}\n")
    assert recipe.training["wandb_name"] == "2026-01-01"
    assert recipe.training["wandb_run_id"] == "1e3"


def test_an_empty_file_says_so() -> None:
    (problem,) = problems_of("r09-empty.yaml")
    assert problem.message == "recipe is empty"


def test_a_second_document_is_refused_with_its_line() -> None:
    (problem,) = problems_of("r10-two-documents.yaml")
    assert "more than one document" in problem.message
    assert problem.line == 8  # the `---`


def test_typos_and_misplaced_keys_are_refused_all_at_once_with_what_was_meant() -> None:
    found = problems_of("r11-typos.yaml")
    assert [(p.line, p.where) for p in found] == [(8, "lerning_rate"), (9, "lora_ranl"), (10, "training")]
    assert "did you mean learning_rate" in found[0].hint
    assert "did you mean lora_r?" in found[1].hint
    assert "put learning_rate at the top level" in found[2].hint


def test_blank_values_are_not_set_and_an_empty_list_is_mentioned() -> None:
    recipe = load(FIXTURES / "r12-blank-values.yaml")
    blank = {
        "lora_model_dir",
        "wandb_project",
        "wandb_entity",
        "special_tokens",
        "resume_from_checkpoint",
        "dataset_prepared_path",
        "hub_model_id",
        "deepspeed",
        "tokens",
    }
    assert not blank & set(recipe.training)
    assert recipe.training["val_set_size"] == 0.05
    assert [n for n in recipe.notices if "tokens" in n]


def test_units_are_read_as_people_mean_them() -> None:
    name = "r13-units.yaml"
    assert parse_usd(value_in(name, "max_price")) == Decimal("0.40")
    assert parse_gb(value_in(name, "disk")) == pytest.approx(107.4, abs=0.05)
    assert parse_gib(value_in(name, "min_vram")) == pytest.approx(24e9 / 2**30)
    assert parse_duration_s(value_in(name, "sync_interval")) == 900
    assert parse_duration_s(value_in(name, "max_runtime")) == 21_600
    for foreign in ("0.4 EUR", "€0.4"):
        with pytest.raises(Unfit, match="not in US dollars"):
            parse_usd(foreign)
    with pytest.raises(Unfit) as bare:
        parse_duration_s("15")
    assert bare.value.hint == "write 15m or 15s"
    problems = {p.where: p.hint for p in problems_of(name)}
    assert "deadline belongs under `tune:`" in problems["max_runtime"]


MODEL_IDS: list[ModelId | str] = [
    ModelId("acme/tiny-llama-1b"),
    ModelId("acme/tiny-llama-1b", "8f3c2d1"),
    ModelId("acme/tiny-llama-1b", "main"),
    ModelId("acme/tiny-llama-1b"),
    ModelId("acme/tiny-llama-1b", "dev"),
    ModelId("acme/tiny-llama-1b"),
    ModelId("acme/tiny-llama-1b"),
    "ambiguous",
    "a folder on this computer",
    "a folder on this computer",
    "GGUF",
    ModelId("acme/tiny-llama-1b-bnb-4bit"),
    "contains a space",
]


def test_every_way_to_write_a_model_id_is_read_or_refused_with_the_reason() -> None:
    lines = (FIXTURES / "r14-model-ids.txt").read_text().splitlines()
    assert len(lines) == len(MODEL_IDS)
    for line, expected in zip(lines, MODEL_IDS, strict=True):
        if isinstance(expected, str):
            with pytest.raises(Unfit, match=expected) as refusal:
                parse_model_id(line, remote=True)
            assert refusal.value.hint
        else:
            found = parse_model_id(line, remote=True)
            assert (found.name, found.revision, found.local) == (expected.name, expected.revision, False)
            assert bool(found.notices) == (line.startswith(" ") or "bnb" in line)
    for line in ("./models/my model", "~/models/tiny"):
        assert parse_model_id(line) == ModelId(line, local=True)


def test_no_fixture_is_left_out() -> None:
    names = sorted(p.name for p in FIXTURES.iterdir() if p.name.startswith("r"))
    assert [n[:3] for n in names] == [f"r{i:02d}" for i in range(1, 15)]
