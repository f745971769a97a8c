"""Models that lie on this computer, sent along to instances that are elsewhere.

A folder is named, but not everything in it is sent: only what transformers reads when it loads a model. Training
leftovers, data sets, hidden files and whatever else lies there stay here.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "model"  # where they lie below the job folder
TOKENIZER = "tokenizer"

# What `from_pretrained` looks for (transformers 5: utils/__init__.py and tokenization_utils_base.py name them).
_SMALL = (
    "config.json",
    "generation_config.json",
    "quantize_config.json",
    "quantization_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "processor_config.json",
    "preprocessor_config.json",
    "chat_template.json",
    "*.jinja",
    "*.model",
    "*.tiktoken",
)
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_OLD_WEIGHTS = ("pytorch_model*.bin", "pytorch_model*.bin.index.json")  # read only where there are no others
_CODE = ("*.py",)


def files(folder: Path, below: str, *, with_code: bool = False, with_weights: bool = True) -> dict[str, Path]:
    """The files of a model or tokenizer folder that an instance needs, by their names below the job folder.

    `with_code`: the recipe trusts the model's own Python files.
    """
    weights = (_WEIGHTS if any(_matching(folder, _WEIGHTS[:1])) else _OLD_WEIGHTS) if with_weights else ()
    wanted = (*_SMALL, *weights, *(_CODE if with_code else ()))
    return {f"{below}/{path.name}": path for path in sorted(_matching(folder, wanted))}


def _matching(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for path in folder.iterdir():
        hidden = path.name.startswith(".")
        if not hidden and any(fnmatchcase(path.name, pattern) for pattern in patterns) and path.is_file():
            yield path
