"""Axolotl's vocabulary: which keys there are, what they hold, and what old names mean today."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator.recipe.scalars import nearest
from orchestrator.recipe.shapes import Report, Shape

SYNONYMS = MappingProxyType(
    {  # what other trainers call it
        "lora_rank": "lora_r",
        "rank": "lora_r",
        "lora_modules": "lora_target_modules",
        "target_modules": "lora_target_modules",
        "modules_to_save": "lora_modules_to_save",
        "model": "base_model",
        "model_name": "base_model",
        "model_id": "base_model",
        "model_name_or_path": "base_model",
        "dataset": "datasets",
        "train_dataset": "datasets",
        "max_seq_length": "sequence_len",
        "max_seq_len": "sequence_len",
        "max_length": "sequence_len",
        "seq_len": "sequence_len",
        "cutoff_len": "sequence_len",
        "packing": "sample_packing",
        "per_device_train_batch_size": "micro_batch_size",
        "train_batch_size": "micro_batch_size",
        "micro_batchsize": "micro_batch_size",
        "per_device_eval_batch_size": "eval_batch_size",
        "grad_accumulation_steps": "gradient_accumulation_steps",
        "grad_accum": "gradient_accumulation_steps",
        "num_train_epochs": "num_epochs",
        "epochs": "num_epochs",
        "n_epochs": "num_epochs",
        "lr": "learning_rate",
        "lr_scheduler_type": "lr_scheduler",
        "optim": "optimizer",
        "max_norm": "max_grad_norm",
        "clip_grad": "max_grad_norm",
        "gradient_checkpoint": "gradient_checkpointing",
        "activation_checkpointing": "gradient_checkpointing",
        "push_to_hub": "hub_model_id",
        "run_name": "wandb_name",
        "random_seed": "seed",
        "warmup": "warmup_ratio",
        "max_price": "max_usd_per_hour",
        "max_runtime": "deadline",
        "budget": "budget_usd",
        "sync_interval": "checkpoint_every",
        "save_interval": "checkpoint_every",
        "gpus": "gpu",
        "gpu_type": "gpu",
        "min_vram_gib": "min_vram",
        "disk_gb": "disk",
        "bucket": "storage",
        "env": "environment",
    }
)

# Bounds outside which a value can never be right, whatever the trainer.
_AT_LEAST_1 = [
    "micro_batch_size",
    "gradient_accumulation_steps",
    "batch_size",
    "eval_batch_size",
    "sequence_len",
    "eval_sequence_len",
    "lora_r",
    "lora_alpha",
    "logging_steps",
    "save_total_limit",
    "dataset_num_proc",
    "dataset_shard_num",
    "evals_per_epoch",
    "saves_per_epoch",
    "world_size",
    "sample_packing_group_size",
    "sample_packing_bin_size",
    "context_parallel_size",
    "tensor_parallel_size",
    "dp_shard_size",
    "dp_replicate_size",
    "pad_to_multiple_of",
    "early_stopping_patience",
    "min_sample_len",
    "max_prompt_len",
]
_AT_LEAST_0 = [
    "weight_decay",
    "warmup_steps",
    "max_grad_norm",
    "dataloader_num_workers",
    "dataloader_prefetch_factor",
    "seed",
    "neftune_noise_alpha",
    "loraplus_lr_ratio",
    "embedding_lr",
    "embedding_lr_scale",
    "rl_beta",
    "dataset_shard_idx",
    "profiler_steps",
]
_SHARES = ["warmup_ratio", "cosine_min_lr_ratio", "cosine_constant_lr_ratio"]
_BETAS = ["adam_beta1", "adam_beta2", "adam_beta3", "lora_dropout"]
BOUNDS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {k: {"min": 1} for k in _AT_LEAST_1}
    | {k: {"min": 0} for k in _AT_LEAST_0}
    | {k: {"min": 0, "max": 1} for k in _SHARES}
    | {k: {"min": 0, "below": 1} for k in _BETAS}
    | {
        k: {"above": 0}
        for k in ("learning_rate", "num_epochs", "adam_epsilon", "adam_epsilon2", "save_steps", "eval_steps")
    }
    | {"val_set_size": {"min": 0}, "max_steps": {"min": 1, "why": "leave it out to train for num_epochs"}}
)

ATTENTION_FLAGS = MappingProxyType(
    {
        "xformers_attention": "xformers",
        "sage_attention": "sage",
        "flex_attention": "flex_attention",
        "flash_attention": "flash_attention_2",
        "sdp_attention": "sdpa",
        "eager_attention": "eager",
    }
)
SHORT_ATTENTION = MappingProxyType({"flash": "flash_attention_2", "flex": "flex_attention", "sdp": "sdpa"})
RENAMED = MappingProxyType(
    {
        "noisy_embedding_alpha": "neftune_noise_alpha",
        "dpo_beta": "rl_beta",
        "evaluation_strategy": "eval_strategy",
        "eval_max_new_tokens": "generation_max_new_tokens",
        "pretrain_multipack_buffer_size": "streaming_multipack_buffer_size",
        "dataset_processes": "dataset_num_proc",
        "sequence_parallel_degree": "context_parallel_size",
    }
)
GONE = MappingProxyType(
    {
        "max_packed_sequence_len": "use sequence_len with sample_packing: true",
        "rope_scaling": "put it under overrides_of_model_config",
        "dpo_use_logits_to_keep": "remove it",
        "dpo_generate_during_eval": "remove it",
        "dpo_norm_loss": "remove it",
        "rpo_alpha": "remove it",
        "s2_attention": "remove it, or use sample_packing with a long sequence_len",
        "flash_attn_rms_norm": "remove it",
        "eval_table_size": "use generate_samples: true with num_generation_samples",
        "fsdp": "use fsdp_config with fsdp_version: 2",
        "unsloth_cross_entropy_loss": "use `tune: {trainer: unsloth}`",
        "unsloth_lora_mlp": "use lora_mlp_kernel",
        "unsloth_lora_qkv": "use lora_qkv_kernel",
        "unsloth_lora_o": "use lora_o_kernel",
        "unsloth_rms_norm": "use `tune: {trainer: unsloth}`",
        "unsloth_rope": "use `tune: {trainer: unsloth}`",
    }
)
_GONE_SHAPE: Shape = {"is": ["any"]}


def configs_dir() -> Path:
    """Where the data files lie: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_data" / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


@cache
def _document() -> Mapping[str, Any]:
    return json.loads((configs_dir() / "axolotl_keys.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


@cache
def keys() -> Mapping[str, Shape]:
    """Every top-level key with its shape: Axolotl's own, and those it no longer takes."""
    known: dict[str, Shape] = {k: {**s, **BOUNDS.get(k, {})} for k, s in _document()["keys"].items()}
    checkpointing = known["gradient_checkpointing"]
    known["gradient_checkpointing"] = {**checkpointing, "choices": [*checkpointing["choices"], "unsloth"]}
    attention = known["attn_implementation"]
    known["attn_implementation"] = {**attention, "choices": [*attention["choices"], *SHORT_ATTENTION]}
    known["fsdp_config"] = {**known["fsdp_config"], "keys": _with_prefix(known["fsdp_config"]["keys"])}
    return MappingProxyType(known | dict.fromkeys(GONE, _GONE_SHAPE))


def _with_prefix(known: Mapping[str, Shape]) -> dict[str, Shape]:
    """The spelling of accelerate, `fsdp_offload_params`, is as common as Axolotl's own."""
    return {k: {**s, "aliases": [*s.get("aliases", ()), f"fsdp_{k}"]} for k, s in known.items()}


@cache
def plugin_keys() -> Mapping[str, tuple[str, Shape]]:
    """Keys that a plugin adds: key -> (the start of the plugin's name, shape)."""
    return {k: (start, s) for start, group in _document()["plugins"].items() for k, s in group.items()}


@cache
def aliases() -> Mapping[str, str]:
    """Other spellings of a key: `model_config` -> `overrides_of_model_config`."""
    return {a: k for k, s in keys().items() for a in s.get("aliases", ())}


def suggestion(key: str, tune_keys: tuple[str, ...]) -> str:
    """What an unknown top-level key was probably meant to be, as a hint."""
    words = [*keys(), *SYNONYMS, *tune_keys, *aliases(), "tune"]
    near = nearest(key, words)
    meant = SYNONYMS.get(near, near)
    if meant in tune_keys and meant not in keys():
        return f"{meant} belongs under `tune:`"
    return f"did you mean {meant}?" if meant else "see `tune schema` for every key"


def translate(training: dict[str, Any], report: Report, *, trainer: str) -> None:
    """Old names to today's, with a notice; what no longer exists is refused, with what replaced it."""
    _attention(training, report)
    for old, new in RENAMED.items():
        if old in training:
            value = training.pop(old)
            if new in training:
                report.problem(old, f"an old name of {new}, which is set too", f"remove {old}")
            else:
                training[new] = value
                _move_line(report, old, new)
                report.notice(old, f"an old name; read as {new}")
    for old, cure in GONE.items():
        if old in training and training.pop(old):
            report.problem(old, "Axolotl no longer has this key", cure)
    if (kind := training.pop("fsdp_final_state_dict_type", None)) is not None:
        training.setdefault("fsdp_config", {}).setdefault("final_state_dict_type", kind)
        report.notice("fsdp_final_state_dict_type", "an old name; read as fsdp_config.final_state_dict_type")
    if training.get("gradient_checkpointing") == "unsloth" and trainer != "unsloth":
        hint = "write true, or offload"
        report.problem("gradient_checkpointing", f"`unsloth` works with trainer unsloth, not {trainer}", hint)


def _attention(training: dict[str, Any], report: Report) -> None:
    flags = {f: training.pop(f) for f in ATTENTION_FLAGS if f in training}
    chosen = [f for f, on in flags.items() if on]
    for flag in set(flags) - set(chosen):
        report.notice(flag, "an old switch that is off; left out")
    if chosen and "attn_implementation" in training:
        hint = f"remove {', '.join(chosen)}"
        report.problem(chosen[0], f"cannot stand beside attn_implementation: {training['attn_implementation']}", hint)
    elif len(chosen) > 1:
        report.problem(chosen[0], f"only one of {', '.join(chosen)} can be used", "set attn_implementation instead")
    elif chosen:
        training["attn_implementation"] = ATTENTION_FLAGS[chosen[0]]
        _move_line(report, chosen[0], "attn_implementation")
        report.notice(chosen[0], f"an old name; read as attn_implementation: {ATTENTION_FLAGS[chosen[0]]}")
    short = training.get("attn_implementation", "")
    if short in SHORT_ATTENTION:
        training["attn_implementation"] = SHORT_ATTENTION[short]
        report.notice("attn_implementation", f"{short} is short for {SHORT_ATTENTION[short]}")


def _move_line(report: Report, old: str, new: str) -> None:
    """What is said of the new name points at where the old one stands."""
    if (line := report.lines.get(old)) is not None:
        report.lines[new] = line
    if report.is_overridden(old):
        report.overridden.add(new)
