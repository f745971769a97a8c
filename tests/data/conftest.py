"""A real tokenizer, small enough to be made on the spot, and recipes over rows written on the spot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.recipe.model import DatasetRef, Recipe, TuneBlock

FIXTURES = Path(__file__).parents[1] / "fixtures" / "data"

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = """\
{%- for m in messages %}
    {{- '<|im_start|>' + m['role'] + '\n' }}
    {%- if m['role'] == 'assistant' %}
        {%- generation %}{{ m['content'] + '<|im_end|>' }}{%- endgeneration %}
    {%- else %}
        {{- m['content'] + '<|im_end|>' }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""
ALTERNATES = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{{ '[' + m['role'] + '] ' + m['content'] + eos_token }}{% endfor %}"
)
# The template of SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), as its GGUF file carries it.
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Cuts the thinking out of every reply but the last, as reasoning models' templates do.
FORGETFUL = (
    "{% for m in messages %}{% set said = m['content'] if loop.last else m['content'].split('</think>')[-1] %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + said + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tokenizer(template: str | None = CHATML, *, bos: bool = False) -> Any:
    """A byte-level BPE trained on a few sentences; with `bos`, one that begins every text with `<s>` by itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<s>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    core.train_from_iterator(["The capital of France is Paris, and the answer is a number of words."] * 8, trainer)
    if bos:
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="<|im_end|>")
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="session")
def _base_tokenizer() -> Any:
    return build_tokenizer()


@pytest.fixture
def tokenizer(_base_tokenizer: Any) -> Any:
    _base_tokenizer.chat_template = CHATML
    return _base_tokenizer


def chat(*said: str) -> dict[str, Any]:
    """Turns that alternate, the user first."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]}


def as_jsonl(rows: Iterable[object]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


MakeRecipe = Callable[..., Recipe]


@pytest.fixture
def recipe(tmp_path: Path) -> MakeRecipe:
    """A recipe over rows (or raw bytes) that are written beside it; keywords of `tune` and of training alike."""

    def make(
        rows: Iterable[object] | bytes = (), *, kind: str | None = "chat_template", ref: Any = None, **keys: Any
    ) -> Recipe:
        path = tmp_path / "rows.jsonl"
        if not isinstance(ref, tuple):
            path.write_bytes(rows if isinstance(rows, bytes) else as_jsonl(rows))
            ref = (DatasetRef(path="rows.jsonl", type=kind, line=3, **(ref or {})),)
        block = {key: keys.pop(key) for key in ("allow_drop", "trainer", "gpu_count") if key in keys}
        training = {"sequence_len": 64, **keys}
        return Recipe(tmp_path / "recipe.yaml", b"", "", training, TuneBlock(**{"trainer": "trl", **block}), ref)

    return make
