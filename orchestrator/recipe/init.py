"""A recipe to start from: short, commented, and valid as it is."""

from __future__ import annotations

import json

_TEMPLATE = """\
# Training keys are Axolotl's; everything the launcher needs stands under `tune:`.
# Check it with `tune validate`, see every key with `tune schema`.

base_model: {base_model}   # a model on the hub, with @revision to pin it; or ./folder with `provider: local`

datasets:
  - path: {dataset}   # JSONL, JSON or Parquet
    type: {type}      # alpaca | chat_template | completion
# val_set_size: 0.05           # share of the rows kept for evaluation

adapter: qlora                 # qlora (4-bit weights) | lora | leave out to train every weight
load_in_4bit: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_linear: true

sequence_len: 2048             # longer rows are cut or dropped; `tune validate` says how many
sample_packing: true           # several short rows in one sequence
micro_batch_size: 2            # times gradient_accumulation_steps is the batch that one step learns from
gradient_accumulation_steps: 8
num_epochs: 3
learning_rate: 2e-4
lr_scheduler: cosine
warmup_ratio: 0.03
optimizer: paged_adamw_8bit
bf16: auto
gradient_checkpointing: true
attn_implementation: sdpa
seed: 42

tune:
  trainer: {trainer}
  spot: prefer                 # prefer | require | never
  max_usd_per_hour: 0.60       # never rent above this
  budget_usd: 6                # end, saved, when this much is spent
  deadline: 12h                # end, saved, after this time, all attempts together
  checkpoint_every: 20m        # the most work that a preemption may cost; 15m to 30m is the useful range
  # provider: local            # default: from your config
  # storage: s3://bucket/tune  # default: from your config
  # publish: {{hub: me/my-model}}
"""


def template(
    *,
    trainer: str = "trl",
    base_model: str = "HuggingFaceTB/SmolLM2-135M-Instruct",
    dataset: str = "./data.jsonl",
    dataset_type: str = "alpaca",
) -> str:
    """The text of a recipe, with your model, data and trainer filled in."""
    values = {"base_model": base_model, "dataset": dataset, "type": dataset_type, "trainer": trainer}
    return _TEMPLATE.format(**{k: _scalar(v) for k, v in values.items()})


def _scalar(text: str) -> str:
    """Bare where YAML reads the text as itself, else in double quotes, which JSON's escapes fit."""
    plain = text.isascii() and text.replace("/", "").replace(".", "").replace("-", "").replace("_", "").isalnum()
    starts_well = text[:1].isalpha() or text.startswith(("./", "/", "../"))
    return text if plain and starts_well else json.dumps(text)
