"""What keys may not say together, whatever the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.recipe.model import TuneBlock
from orchestrator.recipe.shapes import Report

_EXCLUSIVE = (
    ("gradient_accumulation_steps", "batch_size"),
    ("warmup_steps", "warmup_ratio"),
    ("save_steps", "saves_per_epoch"),
    ("eval_steps", "evals_per_epoch"),
    ("bf16", "fp16"),
    ("load_in_4bit", "load_in_8bit"),
    ("test_datasets", "val_set_size"),
)
_ADAPTER_ONLY = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_linear", "lora_target_modules")


def check(training: Mapping[str, Any], tune: TuneBlock, report: Report) -> None:
    """Report every contradiction."""
    if "base_model" not in training and not any(p.where.endswith("base_model") for p in report.problems):
        report.problem("base_model", "missing", "name the model to train, like org/model")
    for one, other in _EXCLUSIVE:
        # `auto` is no demand: it yields to whatever else is set
        if training.get(one) and training.get(other) and "auto" not in (training[one], training[other]):
            report.problem(other, f"cannot stand beside {one}", "keep one of them")
    _adapter(training, report)
    _saving(training, tune, report)
    _evaluation(training, report)
    if training.get("auto_find_batch_size"):
        why = (
            "it shrinks the batch after running out of memory without accumulating more, so the effective batch changes"
        )
        report.problem(
            "auto_find_batch_size", why, "remove it: tune halves micro_batch_size and doubles accumulation instead"
        )
    if training.get("sample_packing") and training.get("rl"):
        report.problem("sample_packing", f"does not work with rl: {training['rl']}", "set it to false")


def _adapter(training: Mapping[str, Any], report: Report) -> None:
    adapter, plugins = training.get("adapter"), training.get("plugins")
    if adapter not in (None, "lora", "qlora", "llama-adapter") and not plugins:
        from orchestrator.recipe.scalars import nearest

        near = nearest(str(adapter), ["lora", "qlora"])
        hint = f"did you mean {near}?" if near else "lora, qlora, or leave it out to train every weight"
        report.problem("adapter", f"`{adapter}` is no adapter", hint)
    if adapter == "qlora" and not training.get("load_in_4bit"):
        at = "load_in_4bit" if "load_in_4bit" in training else "adapter"
        report.problem(at, "adapter: qlora needs load_in_4bit: true", "set it, or use adapter: lora")
    if adapter == "qlora" and training.get("gptq"):
        report.problem("gptq", "cannot stand beside adapter: qlora", "use adapter: lora")
    if adapter is None:
        for key in ("load_in_4bit", "load_in_8bit"):
            if training.get(key):
                report.problem(
                    key, "quantised weights cannot be trained without an adapter", "set adapter: qlora (or lora)"
                )
        if idle := [k for k in _ADAPTER_ONLY if training.get(k)]:
            report.notice(idle[0], "has no effect without adapter: every weight is trained")


def _saving(training: Mapping[str, Any], tune: TuneBlock, report: Report) -> None:
    if training.get("save_only_model"):
        why = "checkpoints without optimizer and scheduler cannot be resumed"
        if tune.spot == "never":
            report.notice("save_only_model", f"{why}: should this run be interrupted, it starts again")
        else:
            report.problem("save_only_model", why, "remove it, or set `tune: {spot: never}`")
    if training.get("save_steps") and training.get("save_strategy") not in (None, "steps"):
        report.problem(
            "save_steps", f"cannot stand beside save_strategy: {training['save_strategy']}", "keep one of them"
        )


def _evaluation(training: Mapping[str, Any], report: Report) -> None:
    strategy, val = training.get("eval_strategy"), training.get("val_set_size")
    if training.get("eval_steps") and strategy not in (None, "steps"):
        report.problem("eval_steps", f"cannot stand beside eval_strategy: {strategy}", "keep one of them")
    if val == 0 and not training.get("test_datasets") and (training.get("eval_steps") or strategy not in (None, "no")):
        at = "eval_steps" if training.get("eval_steps") else "eval_strategy"
        report.problem(at, "nothing to evaluate on with val_set_size: 0", "set val_set_size, or remove it")
    if isinstance(val, float) and val > 1 and not val.is_integer():
        report.problem("val_set_size", f"{val:g} is neither a share below 1 nor a number of rows", "write 0.05, or 200")
