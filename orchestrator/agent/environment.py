"""The environment a trainer gets: UTF-8 whatever the image says, and everything it caches on the big disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from orchestrator.agent.home import Home

_CACHES = {
    "HF_HOME": "huggingface",
    "TMPDIR": "tmp",
    "PIP_CACHE_DIR": "pip",
    "XDG_CACHE_HOME": "xdg",
    "TORCH_HOME": "torch",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "MPLCONFIGDIR": "matplotlib",
    "WANDB_DIR": "wandb",
}
# Images set these to places on the small root disk, and each would win over HF_HOME or TMPDIR.
_DROPPED = (
    "HF_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "HF_ASSETS_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "TRANSFORMERS_CACHE",
    "TEMP",
    "TMP",
    "LC_CTYPE",
    "LANGUAGE",
    "PYTHONPATH",  # the agent's own packages
    "PYTHONHOME",
    "TUNE_FAREWELL",
)
# Keys to the bucket and to the instance: the agent's, and nobody else's.
_DROPPED_KEYS = ("RUNPOD_API_KEY", "CONTAINER_API_KEY", "VAST_API_KEY", "RUNPOD_SECRET_", "TUNE_WORKER_")
_FIXED = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONHASHSEED": "0",
}


def trainer_environment(
    home: Home, base: Mapping[str, str], extra: Mapping[str, str], *, note: Callable[[str], None]
) -> dict[str, str]:
    """The agent's own environment, made safe, then what the job asks for. Makes the cache folders."""
    dropped = (*_DROPPED_KEYS, *(("AWS_",) if home.storage_keys.exists() else ()))
    env = {name: value for name, value in base.items() if name not in _DROPPED and not name.startswith(dropped)}
    env.update(_FIXED)
    for name, folder in _CACHES.items():
        env[name] = str(_own_folder(home, folder, note))
    env.update(extra)
    return env


def _own_folder(home: Home, name: str, note: Callable[[str], None]) -> Path:
    """`cache/<name>`, really below the tune home: a link that leads back to the small disk is replaced."""
    root = home.root.resolve()
    for path in (home.cache, home.cache / name):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            note(f"{path.relative_to(home.root)} was a link to {path.resolve()}, on another disk; replaced by a folder")
            path.unlink()
        elif path.exists() and not path.is_dir():
            path.unlink()
        path.mkdir(parents=True, exist_ok=True)
    return home.cache / name


def empty_temporary(home: Home) -> None:
    """What a dead trainer left in its TMPDIR belongs to nobody."""
    shutil.rmtree(home.cache / "tmp", ignore_errors=True)
