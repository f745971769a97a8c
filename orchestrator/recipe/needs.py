"""What a recipe reaches for outside: models and data on the hub, and the secrets that an instance needs for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.recipe.ids import is_local
from orchestrator.recipe.model import Recipe

HUB_TOKEN = "HF_TOKEN"  # noqa: S105 - the name of a variable
PACKAGE = "package:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
_DATA_SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet", ".csv", ".arrow", ".txt", ".gz")


@dataclass(frozen=True, slots=True)
class HubRepo:
    """A repository on the hub that a recipe reads from."""

    kind: str  # model | dataset
    name: str
    revision: str = ""  # empty: the newest
    where: str = ""  # the recipe's key that names it


@dataclass(frozen=True, slots=True)
class Tracker:
    """A service that a recipe reports its metrics to, and the variable with the key to it."""

    name: str
    key: str  # of the recipe, which asks for it
    variable: str
    offline: str = ""  # what to write in the recipe instead


def hub_repos(recipe: Recipe) -> tuple[HubRepo, ...]:
    """Every model and data set that an instance would fetch from the hub."""
    training, found = recipe.training, []
    for key in ("base_model", "tokenizer_config"):
        name = training.get(key)
        if isinstance(name, str) and _is_on_the_hub(name, recipe):
            revision = str(training.get("revision_of_model") or "") if key == "base_model" else ""
            found.append(HubRepo("model", name, revision, key))
    for ref in recipe.datasets:
        named_file = ref.path.lower().endswith(_DATA_SUFFIXES)
        if not named_file and _is_on_the_hub(ref.path, recipe):
            where = f"{'test_datasets' if ref.held_out else 'datasets'}[{ref.index}]"
            found.append(HubRepo("dataset", ref.path, ref.revision or "", where))
    return tuple(dict.fromkeys(found))


def _is_on_the_hub(name: str, recipe: Recipe) -> bool:
    if is_local(name) or name.startswith(PACKAGE) or not _HUB_ID.fullmatch(name):
        return False
    return not (recipe.path.parent / name).exists()


def trackers(training: Mapping[str, Any]) -> tuple[Tracker, ...]:
    """The services that a recipe reports to over the network, by Axolotl's own keys for them."""
    found = []
    wandb = _asking(training, "use_wandb", "wandb_project")
    if wandb and training.get("wandb_mode") not in ("offline", "disabled") and training.get("use_wandb") is not False:
        found.append(Tracker("Weights & Biases", wandb, "WANDB_API_KEY", "wandb_mode: offline"))
    comet = _asking(training, "use_comet", "comet_project_name")
    if comet and training.get("use_comet") is not False and training.get("comet_online") is not False:
        found.append(Tracker("Comet", comet, "COMET_API_KEY", "comet_online: false"))
    swanlab = _asking(training, "use_swanlab", "swanlab_project")
    if swanlab and training.get("swanlab_mode") not in ("local", "offline", "disabled"):
        found.append(Tracker("SwanLab", swanlab, "SWANLAB_API_KEY", "swanlab_mode: local"))
    if training.get("use_trackio") and training.get("trackio_space_id"):
        found.append(Tracker("Trackio", "trackio_space_id", HUB_TOKEN))
    return tuple(found)


def _asking(training: Mapping[str, Any], *keys: str) -> str:
    return next((key for key in keys if training.get(key)), "")


def secrets(recipe: Recipe) -> tuple[str, ...]:
    """Names of the variables that an instance needs: none that the recipe does not ask for."""
    hub = bool(hub_repos(recipe)) or bool(recipe.tune.publish.get("hub")) or bool(recipe.training.get("hub_model_id"))
    return tuple(dict.fromkeys([*([HUB_TOKEN] if hub else []), *(t.variable for t in trackers(recipe.training))]))
