"""Axolotl's keys: what they hold, what old ones mean, what can never be right."""

from __future__ import annotations

import pytest

from orchestrator.recipe import axolotl
from tests.recipe.reading import BASE, only, read, refused

LORA = BASE + "adapter: lora\n"


def test_the_key_list_is_axolotls_own() -> None:
    known = axolotl.keys()
    assert len([k for k in known if k not in axolotl.GONE]) > 400
    for key in ("micro_batch_size", "datasets", "lora_target_linear", "deepspeed", "rl", "dynamic_checkpoint"):
        assert key in known
    assert set(axolotl.BOUNDS) <= set(known)
    assert set(axolotl.SYNONYMS) & set(known) <= {"gpu"}
    assert set(axolotl.RENAMED.values()) <= set(known)
    assert {"bool", "int", "float", "str", "list", "map", "any"} >= {k for s in known.values() for k in s["is"]}


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("lora_rank", "did you mean lora_r?"),
        ("max_seq_length", "did you mean sequence_len?"),
        ("per_device_train_batch_size", "did you mean micro_batch_size?"),
        ("num_train_epochs", "did you mean num_epochs?"),
        ("lr", "did you mean learning_rate?"),
        ("LearningRate", "did you mean learning_rate?"),
        ("gradient-accumulation-steps", "did you mean gradient_accumulation_steps?"),
        ("budget_usd", "budget_usd belongs under `tune:`"),
        ("checkpoint_evry", "checkpoint_every belongs under `tune:`"),
        ("qqqqqq", "tune schema"),
    ],
)
def test_an_unknown_key_is_answered_with_the_one_that_was_meant(key: str, hint: str) -> None:
    problem = only(BASE + f"{key}: 1\n")
    assert (problem.where, problem.line) == (key, 2)
    assert hint in problem.hint


def test_nested_keys_are_known_too() -> None:
    problem = only(BASE + "datasets:\n  - path: ./a.jsonl\n    typ: alpaca\n")
    assert (problem.where, problem.line, problem.hint) == ("datasets[0].typ", 4, "did you mean type?")
    assert only(BASE + "special_tokens: {pad_tokn: x}\n").hint == "did you mean pad_token?"
    assert "put trainer, spot under `tune:`" in only(BASE + "launcher: {trainer: trl, spot: never}\n").hint


def test_values_take_the_type_of_their_key() -> None:
    training = read(
        LORA
        + "lora_r: 8.0\nnum_epochs: 3\nsave_steps: 0.1\neval_steps: 100\nwandb_name: 1e3\nlora_target_modules: q_proj\n"
        + 'learning_rate: "0.0002"\ngradient_checkpointing: offload\ndeepspeed: {stage: 2, offload: no}\n'
        + "peft_init_lora_weights: false\nmax_memory: {0: 20GB, cpu: 30}\nadded_tokens_overrides: {5: a}\n"
        + "lora_rank_pattern: {q_proj: 4}\ntf32: auto\nwandb_log_model: false\n"
    ).training
    assert training["lora_r"] == 8
    assert type(training["lora_r"]) is int
    assert type(training["num_epochs"]) is float
    assert training["save_steps"] == 0.1
    assert type(training["eval_steps"]) is int
    assert training["wandb_name"] == "1e3"
    assert training["lora_target_modules"] == "q_proj"
    assert training["learning_rate"] == 0.0002
    assert training["gradient_checkpointing"] == "offload"
    assert training["deepspeed"] == {"stage": 2, "offload": "no"}
    assert training["peft_init_lora_weights"] is False
    assert training["max_memory"] == {"0": "20GB", "cpu": 30}
    assert training["lora_rank_pattern"] == {"q_proj": 4}
    assert training["wandb_log_model"] == "false"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("lora_r: [1]", "a list stands where a whole number is expected"),
        ("lora_r: {a: 1}", "a mapping stands where a whole number is expected"),
        ("lora_r: 8.5", "not a whole number"),
        ("datasets: ./a.jsonl", "stands where a list is expected"),
        ("datasets: {path: a}", "a mapping stands where a list is expected"),
        ("datasets: [./a.jsonl]", "stands where a mapping is expected"),
        ("datasets: [{type: alpaca}]", "path is missing"),
        ("load_in_4bit: maybe", "neither true nor false"),
        ("gradient_checkpointing: maybe", "words it may be"),
        ("save_strategy: sometimes", "words it may be"),
        ("optimizer: adamzzz", "words it may be"),
        ("chat_template: chat_ml", "words it may be"),
        ("attn_implementation: flsh", "words it may be"),
        ("bf16: [true]", "a list stands where"),
    ],
)
def test_a_value_of_another_kind_is_refused(line: str, says: str) -> None:
    assert says in only(LORA + line + "\n").message


@pytest.mark.parametrize(
    "line",
    [
        "learning_rate: -1e-4",
        "learning_rate: 0",
        "micro_batch_size: 0",
        "gradient_accumulation_steps: -1",
        "sequence_len: 0",
        "lora_r: 0",
        "lora_dropout: 1",
        "num_epochs: 0",
        "max_steps: 0",
        "val_set_size: -0.1",
        "val_set_size: 1.5",
        "warmup_ratio: 1.1",
        "weight_decay: -0.1",
        "adam_beta1: 1",
        "save_steps: 0",
        "seed: -1",
        "learning_rate: .nan",
        "max_grad_norm: .inf",
        "relora_prune_ratio: 2",
        "lora_rank_pattern: {q_proj: 0}",
    ],
)
def test_a_number_that_can_never_be_right_is_refused(line: str) -> None:
    assert only(LORA + line + "\n").line == 3


@pytest.mark.parametrize(("flag", "backend"), sorted(axolotl.ATTENTION_FLAGS.items()))
def test_old_attention_switches_are_translated(flag: str, backend: str) -> None:
    recipe = read(BASE + f"{flag}: true\n")
    assert recipe.training == {"base_model": "acme/tiny", "attn_implementation": backend}
    assert recipe.lines["attn_implementation"] == 2
    assert f"read as attn_implementation: {backend}" in recipe.notices[0]
    off = read(BASE + f"{flag}: false\nattn_implementation: eager\n")
    assert off.training["attn_implementation"] == "eager"
    assert "off; left out" in off.notices[0]


def test_an_old_attention_switch_never_stands_beside_another_choice() -> None:
    assert "cannot stand beside" in only(BASE + "flash_attention: true\nattn_implementation: sdpa\n").message
    assert "only one of" in only(BASE + "flash_attention: true\nsdp_attention: true\n").message
    assert read(BASE + "attn_implementation: flash\n").training["attn_implementation"] == "flash_attention_2"
    kernel = "kernels-community/flash-attn3"
    assert read(BASE + f"attn_implementation: {kernel}\n").training["attn_implementation"] == kernel


@pytest.mark.parametrize(("old", "new"), sorted(axolotl.RENAMED.items()))
def test_old_names_are_read_as_todays(old: str, new: str) -> None:
    value = "steps" if new == "eval_strategy" else "2"
    recipe = read(BASE + f"{old}: {value}\n")
    assert new in recipe.training
    assert old not in recipe.training
    assert f"read as {new}" in recipe.notices[0]
    assert f"an old name of {new}" in only(BASE + f"{old}: {value}\n{new}: {value}\n").message


@pytest.mark.parametrize("key", sorted(axolotl.GONE))
def test_what_no_longer_exists_is_refused_with_what_replaced_it(key: str) -> None:
    problem = only(BASE + f"{key}: [full_shard]\n" if key == "fsdp" else BASE + f"{key}: {_some_value(key)}\n")
    assert problem.message == "Axolotl no longer has this key"
    assert read(BASE + f"{key}:\n").training == {"base_model": "acme/tiny"}


def _some_value(key: str) -> str:
    kinds = axolotl.keys()[key]["is"]
    return "true" if "bool" in kinds else "4"


def test_other_spellings_end_in_axolotls_own() -> None:
    training = read(
        BASE + "model_config: {use_cache: false}\nfsdp_config: {fsdp_offload_params: true, version: 2}\n"
    ).training
    assert training["overrides_of_model_config"] == {"use_cache": False}
    assert training["fsdp_config"] == {"offload_params": True, "fsdp_version": 2}
    problem = only(BASE + "model_config: {a: 1}\noverrides_of_model_config: {a: 1}\n")
    assert "which is set too" in problem.message


def test_keys_of_a_plugin_need_the_plugin() -> None:
    assert "plugins: [axolotl.integrations.liger." in only(BASE + "liger_rope: true\n").hint
    plugin = "plugins: [axolotl.integrations.liger.LigerPlugin]\n"
    assert read(BASE + plugin + "liger_rope: true\n").training["liger_rope"] is True


@pytest.mark.parametrize(
    ("lines", "where", "says"),
    [
        ("adapter: qlora", "adapter", "needs load_in_4bit"),
        ("adapter: qlora\nload_in_4bit: false", "load_in_4bit", "needs load_in_4bit"),
        ("load_in_4bit: true", "load_in_4bit", "without an adapter"),
        ("adapter: lora\nload_in_4bit: true\nload_in_8bit: true", "load_in_8bit", "cannot stand beside load_in_4bit"),
        ("adapter: qlra", "adapter", "is no adapter"),
        ("gradient_accumulation_steps: 2\nbatch_size: 4", "batch_size", "cannot stand beside"),
        ("warmup_steps: 2\nwarmup_ratio: 0.1", "warmup_ratio", "cannot stand beside"),
        ("bf16: true\nfp16: true", "fp16", "cannot stand beside bf16"),
        ("save_strategy: epoch\nsave_steps: 5", "save_steps", "cannot stand beside save_strategy"),
        ("val_set_size: 0\neval_steps: 5", "eval_steps", "nothing to evaluate on"),
        ("sample_packing: true\nrl: dpo", "sample_packing", "rl: dpo"),
        ("auto_find_batch_size: true", "auto_find_batch_size", "the effective batch changes"),
        ("gradient_checkpointing: unsloth", "gradient_checkpointing", "works with trainer unsloth, not axolotl"),
        ("save_only_model: true", "save_only_model", "cannot be resumed"),
        ("revision_of_model: a\nbase_model: acme/x@b", "revision_of_model", "two revisions"),
    ],
)
def test_contradictions_are_refused(lines: str, where: str, says: str) -> None:
    problem = only(lines + "\n" + ("" if "base_model" in lines else BASE))
    assert problem.where == where
    assert says in problem.message


def test_what_is_fine_elsewhere_is_fine() -> None:
    text = BASE + "gradient_checkpointing: unsloth\ntune: {trainer: unsloth}\n"
    assert read(text).training["gradient_checkpointing"] == "unsloth"
    never = read(BASE + "save_only_model: true\ntune: {spot: never}\n")
    assert "starts again" in never.notices[0]
    assert read(BASE + "bf16: auto\nfp16: true\n").training["fp16"] is True
    assert "no effect without adapter" in read(BASE + "lora_r: 8\n").notices[0]
    assert "taken as text" in read(BASE + "model_kwargs: {use_cache: no}\n").notices[0]


def test_base_model_is_asked_for_and_split_into_name_and_revision() -> None:
    assert only("seed: 1\n").where == "base_model"
    training = read("base_model: https://huggingface.co/acme/tiny/tree/dev\n").training
    assert (training["base_model"], training["revision_of_model"]) == ("acme/tiny", "dev")
    assert "ambiguous" in only("base_model: tiny\n").message
    for provider in ("local", "vastai"):  # a folder is sent along where the instance is elsewhere
        text = f"base_model: ./models/tiny\ntune: {{provider: {provider}}}\n"
        assert read(text).training["base_model"] == "./models/tiny"
    assert read("base_model: acme/tiny-bnb-4bit\n").notices


def test_datasets_become_references_with_their_lines() -> None:
    recipe = read(
        BASE
        + "datasets:\n"
        + "  - {path: ./a.jsonl, type: alpaca}\n"
        + "  - path: acme/chat\n    type: chat_template\n    split: train\n    field_messages: conversations\n"
        + "    message_field_role: from\n    message_field_content: value\n    roles: {assistant: [gpt, model]}\n"
        + "    roles_to_train: []\n    field_tools: tools\n    data_files: a.json\n"
        + "  - path: ./t.txt\n    type: {field_instruction: q, field_output: a, format: '{instruction}'}\n    field: body\n"
        + "test_datasets:\n  - {path: ./b.jsonl, type: completion}\n"
    )
    first, second, third, test = recipe.datasets
    assert (first.path, first.type, first.index, first.line, first.held_out) == ("./a.jsonl", "alpaca", 0, 3, False)
    assert (second.split, second.field_messages, second.line) == ("train", "conversations", 4)
    assert second.message_property_mappings == {"role": "from", "content": "value"}
    assert second.roles == {"assistant": ("gpt", "model")}
    assert second.data_files == ("a.json",)
    assert second.extra == {"field_tools": "tools"}
    assert third.type is None
    assert third.format["field_instruction"] == "q"
    assert third.text_field == "body"
    assert (test.path, test.held_out) == ("./b.jsonl", True)
    assert recipe.place("datasets[1].nothing") == 4
    clash = "datasets: [{path: a, message_field_role: x, message_property_mappings: {role: y}}]\n"
    assert "says other than" in refused(BASE + clash)[0].message
