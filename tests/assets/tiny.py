"""A tiny random Llama with a real tokenizer, and small data sets: everything a real training needs, in a second.

Made without torch: the weights are drawn by numpy and written as safetensors, the tokenizer is trained on the data. Equal
on every machine, so that tests may compare hashes of what comes out of a training.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 768
HIDDEN = 128  # x r=32 gives LoRA matrices of 4,096 numbers: the smallest that an 8-bit optimizer really quantises
LAYERS = 2
HEADS = 4
KV_HEADS = 2
INTERMEDIATE = 256
ALPACA_ROWS = 48
CHAT_ROWS = 40
COMPLETION_ROWS = 40

# What the alpaca format puts around each row: the tokenizer learns it, so that rows stay short.
PREAMBLE = (
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a response "
    "that appropriately completes the request.\n\n### Instruction:\n### Input:\n### Response:\n"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLACES = ("garden", "harbour", "library", "kitchen", "station", "meadow", "workshop", "valley")
THINGS = ("lamp", "boat", "book", "kettle", "train", "horse", "hammer", "river", "window", "ladder")
COLOURS = ("red", "green", "blue", "grey", "white", "black")


@dataclass(frozen=True, slots=True)
class Tiny:
    """Where the model and the data sets lie."""

    model: Path
    alpaca: Path
    chat: Path
    completion: Path


def build(folder: Path) -> Tiny:
    """Everything below `folder`, which must be empty or absent."""
    made = _paths(folder)
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(7)
    alpaca = [_alpaca(draw) for _ in range(ALPACA_ROWS)]
    chat = [_chat(draw) for _ in range(CHAT_ROWS)]
    completion = [{"text": _sentence(draw, count=draw.randint(2, 6))} for _ in range(COMPLETION_ROWS)]
    for path, rows in ((made.alpaca, alpaca), (made.chat, chat), (made.completion, completion)):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _write_model(made.model, [PREAMBLE] * 100 + [json.dumps(row) for row in (*alpaca, *chat, *completion)])
    return made


def cached(shared: Path) -> Tiny:
    """The same, built once below `shared` however many processes ask at the same time."""
    folder = shared / "tiny-assets"
    if not folder.exists():
        draft = Path(tempfile.mkdtemp(prefix="tiny-", dir=shared))
        build(draft)
        try:
            draft.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(draft)
    return _paths(folder)


def _paths(folder: Path) -> Tiny:
    return Tiny(folder / "model", folder / "alpaca.jsonl", folder / "chat.jsonl", folder / "completion.jsonl")


def _sentence(draw: random.Random, *, count: int) -> str:
    return " ".join(
        f"The {draw.choice(COLOURS)} {draw.choice(THINGS)} stands in the {draw.choice(PLACES)}." for _ in range(count)
    )


def _alpaca(draw: random.Random) -> dict[str, str]:
    thing, place, colour = draw.choice(THINGS), draw.choice(PLACES), draw.choice(COLOURS)
    return {
        "instruction": f"Where is the {thing}?",
        "input": f"The {thing} is {colour}." if draw.random() < 0.5 else "",
        "output": f"The {colour} {thing} stands in the {place}. " + _sentence(draw, count=draw.randint(0, 3)),
    }


def _chat(draw: random.Random) -> dict[str, Any]:
    turns: list[dict[str, str]] = []
    for _ in range(draw.randint(1, 3)):
        row = _alpaca(draw)
        turns += [
            {"role": "user", "content": row["instruction"]},
            {"role": "assistant", "content": row["output"].strip()},
        ]
    return {"messages": turns}


def _write_model(folder: Path, corpus: list[str]) -> None:
    folder.mkdir(parents=True)
    _write_tokenizer(folder, corpus)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    _write_weights(folder / "model.safetensors")


def _write_tokenizer(folder: Path, corpus: list[str]) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _write_weights(path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    draw = np.random.default_rng(11)
    head = HIDDEN // HEADS

    def matrix(rows: int, columns: int) -> Any:
        return (draw.standard_normal((rows, columns)) * 0.05).astype(np.float32)

    ones = np.ones(HIDDEN, dtype=np.float32)
    tensors = {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN), "model.norm.weight": ones}
    for layer in range(LAYERS):
        start = f"model.layers.{layer}"
        tensors |= {
            f"{start}.input_layernorm.weight": ones.copy(),
            f"{start}.post_attention_layernorm.weight": ones.copy(),
            f"{start}.self_attn.q_proj.weight": matrix(HIDDEN, HIDDEN),
            f"{start}.self_attn.k_proj.weight": matrix(KV_HEADS * head, HIDDEN),
            f"{start}.self_attn.v_proj.weight": matrix(KV_HEADS * head, HIDDEN),
            f"{start}.self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN),
            f"{start}.mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            f"{start}.mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN),
            f"{start}.mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE),
        }
    save_file(tensors, str(path), metadata={"format": "pt"})
