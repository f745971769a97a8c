"""What a model says with and without its adapter: `python -m orchestrator.cli.answers FOLDER QUESTION`."""

from __future__ import annotations

import sys
from typing import Any

NEW_TOKENS = 80


def main(folder: str, question: str) -> None:
    """Print both answers, greedily decoded, so that they are the same each time."""
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

    torch.set_grad_enabled(False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoPeftModelForCausalLM.from_pretrained(folder)
    model.eval()
    with model.disable_adapter():
        before = _answer(model, tokenizer, question)
    after = _answer(model, tokenizer, question)
    sys.stdout.write(f"\n  question  {question}\n  before    {before}\n  after     {after}\n")


def _answer(model: Any, tokenizer: Any, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    made = model.generate(**prompt, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    text = tokenizer.decode(made[0][prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    return " ".join(str(text).split())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
