"""What each of Axolotl's keys means to the trl trainer. A key that stands in none of these tables is refused."""

from __future__ import annotations

from typing import Any

# Honoured: the training script reads them from the job's settings.
HONOURED = frozenset(
    {
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "adapter",
        "attn_implementation",
        "base_model",
        "batch_size",
        "bf16",
        "chat_template",
        "chat_template_jinja",
        "dataloader_num_workers",
        "dataloader_pin_memory",
        "datasets",
        "eval_batch_size",
        "eval_steps",
        "evals_per_epoch",
        "excess_length_strategy",
        "fp16",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "gradient_checkpointing_kwargs",
        "group_by_length",
        "learning_rate",
        "load_in_4bit",
        "load_in_8bit",
        "logging_steps",
        "lora_alpha",
        "lora_dropout",
        "lora_fan_in_fan_out",
        "lora_modules_to_save",
        "lora_r",
        "lora_target_linear",
        "lora_target_modules",
        "lr_scheduler",
        "lr_scheduler_kwargs",
        "max_grad_norm",
        "max_steps",
        "micro_batch_size",
        "num_epochs",
        "optim_args",
        "optimizer",
        "peft_layers_to_transform",
        "peft_use_dora",
        "peft_use_rslora",
        "revision_of_model",
        "sample_packing",
        "save_steps",
        "seed",
        "sequence_len",
        "special_tokens",
        "test_datasets",
        "tf32",
        "tokenizer_config",
        "train_on_inputs",
        "trust_remote_code",
        "val_set_size",
        "warmup_ratio",
        "warmup_steps",
        "weight_decay",
    }
)

# Accepted, and nothing changes: each says why. Shown to the user as a notice.
_TUNE_SAVES = "tune decides when to save (`tune.checkpoint_every`) and how many to keep (`tune.keep_checkpoints`)"
_FOUND = "the right class is found from the model's own configuration"
_SPEED = "it changes speed and memory only, never what is learned"
WITHOUT_EFFECT = {
    "auto_resume_from_checkpoints": "tune always goes on from the newest checkpoint that verifies",
    "dataset_prepared_path": "rows are encoded afresh at each start, which takes seconds and cannot be stale",
    "dataset_num_proc": "rows are encoded by the tokenizer's own threads",
    "dataset_processes": "rows are encoded by the tokenizer's own threads",
    "eval_sample_packing": "held-out rows are packed like the others; " + _SPEED,
    "is_falcon_derived_model": _FOUND,
    "is_llama_derived_model": _FOUND,
    "is_mistral_derived_model": _FOUND,
    "is_qwen_derived_model": _FOUND,
    "lora_mlp_kernel": _SPEED,
    "lora_o_kernel": _SPEED,
    "lora_qkv_kernel": _SPEED,
    "low_cpu_mem_usage": _SPEED,
    "output_dir": "the result is kept in the run's storage; fetch it with `tune pull`",
    "pad_to_sequence_len": _SPEED,
    "save_safetensors": "weights are always saved as safetensors",
    "save_strategy": _TUNE_SAVES,
    "save_total_limit": _TUNE_SAVES,
    "saves_per_epoch": _TUNE_SAVES,
    "shuffle_merged_datasets": "rows are shuffled afresh in each epoch",
    "strict": "the base model is always loaded strictly",
    "tokenizer_type": _FOUND,
    "tokenizer_use_fast": "the fast one is taken where there is one",
    "type_of_model": _FOUND,  # what `model_type` is read as
}

# Refused with more to say than "not honoured".
ADVICE = {
    "deepspeed": "the trl trainer works on one GPU",
    "early_stopping_patience": "a run ends at its last step; look at the evaluation losses and lower `num_epochs`",
    "fsdp": "the trl trainer works on one GPU",
    "fsdp_config": "the trl trainer works on one GPU",
    "hub_model_id": "fetch the result with `tune pull` and upload it from there",
    "load_best_model_at_end": "the last step is what you get",
    "lora_model_dir": "merge that adapter into the base model first",
    "resume_from_checkpoint": "tune finds the checkpoint itself: `tune resume`",
    "save_only_model": "such a checkpoint cannot be resumed from",
    "tokens": "adding tokens to the vocabulary is not supported",
    "wandb_project": "no tracker is attached; metrics are kept with the run",
}

OPTIMIZERS = frozenset(
    {
        "adafactor",
        "adamw_8bit",
        "adamw_bnb_8bit",
        "adamw_torch",
        "adamw_torch_fused",
        "ademamix",
        "ademamix_8bit",
        "lion_32bit",
        "lion_8bit",
        "paged_adamw_32bit",
        "paged_adamw_8bit",
        "paged_ademamix_32bit",
        "paged_ademamix_8bit",
        "paged_lion_32bit",
        "paged_lion_8bit",
        "rmsprop",
        "sgd",
    }
)
SCHEDULES = frozenset(
    {"constant", "constant_with_warmup", "cosine", "cosine_with_restarts", "inverse_sqrt", "linear", "polynomial"}
)
ATTENTION = frozenset({"eager", "sdpa", "flash_attention_2", "flash_attention_3"})

CHAT_TEMPLATES = frozenset({"tokenizer_default", "chatml", "jinja", "tokenizer_default_fallback_chatml"})
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
    "+ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def asks_for_nothing(value: Any) -> bool:
    """A key that is switched off or left blank asks for nothing, so nobody has to honour it."""
    return value is None or value is False or value in ("", 0, [], {})
