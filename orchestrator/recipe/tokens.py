"""The tokenizer of a recipe's model where it can be had without a network, else an honest estimate."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import Problem
from orchestrator.recipe.model import Recipe

APPROXIMATE = "approximate"
_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
    "+ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_FALLBACK = "tokenizer_default_fallback_"


@dataclass(frozen=True, slots=True)
class Tokens:
    """A tokenizer, what to call it, and what the user should know about it."""

    tokenizer: Any
    name: str
    notices: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def load(recipe: Recipe, given: Any = None) -> Tokens:
    """The model's own tokenizer from a local folder or the hub's cache; never the network, never remote code.

    With `given`, that one. Either gets the special tokens and the chat template that the recipe asks for.
    """
    name = str(recipe.training.get("tokenizer_config") or recipe.training.get("base_model") or "")
    tokenizer = given
    if tokenizer is None:
        try:
            tokenizer = _from_disk(name, recipe)
        except (
            Exception
        ) as error:  # a missing library, file or vocabulary, or code we will not run: all mean "not here"
            why = str(error).strip().partition("\n")[0][:200] or type(error).__name__
            said = f"token counts are estimates: no tokenizer for {name!r} here ({why})"
            return Tokens(Estimate(), APPROXIMATE, (said,))
    problems = tuple(_special_tokens(tokenizer, recipe))
    return Tokens(tokenizer, name or "given", _choose_template(tokenizer, recipe), problems)


def _from_disk(name: str, recipe: Recipe) -> Any:
    from transformers import AutoTokenizer

    folder = recipe.path.parent / Path(name).expanduser()
    local = bool(name) and folder.is_dir()
    revision = recipe.training.get("revision_of_model")
    more = {"revision": revision} if revision and not local else {}
    return AutoTokenizer.from_pretrained(
        str(folder) if local else name, local_files_only=True, trust_remote_code=False, **more
    )


def _special_tokens(tokenizer: Any, recipe: Recipe) -> Iterator[Problem]:
    for key, token in (recipe.training.get("special_tokens") or {}).items():
        if token in tokenizer.get_vocab():
            setattr(tokenizer, key, token)
        elif recipe.tune.trainer == "axolotl":
            tokenizer.add_special_tokens({key: token})
        else:
            where = f"special_tokens.{key}"
            message = f"{token!r} is not in the tokenizer's vocabulary, and the trainer {recipe.tune.trainer} adds none"
            yield Problem(where, message, path=str(recipe.path), line=recipe.place(where))


def _choose_template(tokenizer: Any, recipe: Recipe) -> tuple[str, ...]:
    choice = str(recipe.training.get("chat_template") or "tokenizer_default")
    jinja = recipe.training.get("chat_template_jinja")
    if choice == "jinja" or (jinja and choice == "tokenizer_default"):
        tokenizer.chat_template = _jinja(str(jinja or ""), recipe.path.parent)
        return ()
    if choice.startswith(_FALLBACK):
        if tokenizer.chat_template:
            return ()
        choice = choice.removeprefix(_FALLBACK)
    if choice == "chatml":
        tokenizer.chat_template = _CHATML
    elif choice != "tokenizer_default":
        return (f"rows are checked with the tokenizer's own chat template, not with {choice!r}",)
    return ()


def _jinja(given: str, base: Path) -> str:
    """The template itself, or the file that holds it."""
    if "{" in given or "\n" in given or not (base / given).is_file():
        return given
    return (base / given).read_text(encoding="utf-8")


def fingerprint(tokenizer: Any) -> str:
    """Changes with anything that could change a token: vocabulary, merges, special tokens, chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    vocabulary = backend.to_str() if backend is not None else _listed(tokenizer)
    parts = [
        type(tokenizer).__name__,
        vocabulary,
        json.dumps(getattr(tokenizer, "chat_template", None), sort_keys=True),
        repr([getattr(tokenizer, key, None) for key in ("bos_token", "eos_token", "add_bos_token", "add_eos_token")]),
    ]
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()


def _listed(tokenizer: Any) -> str:
    get = getattr(tokenizer, "get_vocab", None)
    return json.dumps(sorted(get().items())) if get else ""


class Estimate:
    """Stands in for a tokenizer that is not here. Good to some ten percent on English, worse elsewhere."""

    is_fast = True
    bos_token_id = None
    eos_token_id = 0
    eos_token = "<|im_end|>"  # noqa: S105 - a word of a chat template
    chat_template = "approximate"

    # A marker, up to six letters or three digits with the blank before them, other blanks, or any other character.
    _PIECE = re.compile(r"<\|im_(?:start|end)\|>| ?[A-Za-z]{1,6}| ?[0-9]{1,3}|\s+|.", re.DOTALL)

    def __call__(self, texts: Sequence[str], **_ignored: object) -> Mapping[str, list[Any]]:
        spans = [[match.span() for match in self._PIECE.finditer(text)] for text in texts]
        return {"input_ids": [[1] * len(row) for row in spans], "offset_mapping": spans}

    def apply_chat_template(
        self, turns: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = False, **_ignored: object
    ) -> str:
        """ChatML, which is about as long as any other template."""
        said = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in turns)
        return said + ("<|im_start|>assistant\n" if add_generation_prompt else "")
