"""JSON Schema of recipes, for editors: completion and underlined typos while typing. `load` is the judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.recipe import axolotl, tune_block
from orchestrator.recipe.shapes import Shape

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DURATION = r"^([0-9]+(\.[0-9]+)? ?(s|m|h|d|sec|secs|seconds?|mins?|minutes?|hrs?|hours?|days?) ?)+$"
_SIZE = r"^[0-9]+(\.[0-9]+)? ?[kKmMgGtT][iI]?[bB]?$"
_MONEY = r"^([uU][sS][dD] ?|\$ ?)?([0-9]+(\.[0-9]*)?|\.[0-9]+)( ?([uU][sS][dD]|\$))?( ?(/|per) ?(h|hr|hour))?$"
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "str": {"type": "string"},
    "duration": {"type": "string", "pattern": _DURATION},
    "gb": {"type": "string", "pattern": _SIZE},
    "gib": {"type": "string", "pattern": _SIZE},
}
_TUNE_HELP = {
    "trainer": "What trains: axolotl (the default), trl or unsloth.",
    "provider": "Where to rent: one name, several, or any. Default: from your config.",
    "spot": "Interruptible instances: prefer (the default), require, or never.",
    "name": "The run's name. Launching the same name twice is one run.",
    "max_usd_per_hour": "Never rent above this price per hour, all included.",
    "budget_usd": "The run ends, saved, when it has cost this much.",
    "deadline": "The run ends, saved, after this much time, all attempts together.",
    "instance_deadline": "No instance lives longer than this; it ends itself. Default 24h.",
    "checkpoint_every": "How much work a preemption may cost. 15m to 30m is the useful range; default 20m.",
    "keep_checkpoints": "How many verified checkpoints to keep in storage. Default 2.",
    "hang_timeout": "No training step for this long is a hang. Default 30m.",
    "launch_timeout": "How long a rented instance may take to start. Default 15m.",
    "bootstrap_timeout": "How long a started instance may take to begin training. Default 30m.",
    "unreachable_grace": "How long a silent instance is given before it is replaced. Default 30m.",
    "upload_grace": "How long a finished instance keeps trying to store its result. Default 24h.",
    "max_attempts": "How many instances a run may use up. Default 10.",
    "storage": "Where runs are kept: s3://bucket/prefix or file:///folder. Default: from your config.",
    "publish": "Where to send the result as well: {hub: me/model}.",
    "env": "Plain environment variables for the trainer. Never a secret.",
    "environment": "Whose Python trains: auto (the default), image, pinned (a tested stack), or one by its path.",
    "image": "The container image to rent with. Default: the provider's.",
    "min_vram": "Memory that each GPU must have at least, like 24GB.",
    "gpu": "Acceptable GPU models, or {count, name, min_vram}. Default: any that fits.",
    "gpu_count": "How many GPUs in one instance; 0 for none. Default 1.",
    "disk": "Disk space to rent, like 100GiB.",
    "allow_drop": "The share of dataset rows that may be unusable before the run is refused. Default 0.1.",
    "files": "More files to send along, relative to the recipe.",
    "allow_optimizer_reset": "Resume from a checkpoint that lost its optimizer state.",
    "require_flash": "Refuse to train when the flash attention asked for is not there.",
}


def schema() -> dict[str, Any]:
    """The whole schema, draft 2020-12."""
    keys = {k: s for k, s in axolotl.keys().items() if k not in axolotl.GONE}
    properties = {k: _property(s) for k, s in keys.items()}
    properties |= {k: _property(s) for k, (_, s) in axolotl.plugin_keys().items() if k not in keys}
    properties |= {alias: _property(keys[k]) for alias, k in axolotl.aliases().items()}
    for old in (*axolotl.RENAMED, *axolotl.ATTENTION_FLAGS):
        properties[old]["deprecated"] = True
    properties["tune"] = {
        "description": "What the launcher needs beyond the training keys.",
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {k: {"description": _TUNE_HELP[k], **_property(s)} for k, s in tune_block.KEYS.items()},
    }
    return {
        "$schema": DIALECT,
        "title": "tune recipe",
        "description": "One training job: Axolotl's keys, and one `tune:` block.",
        "type": "object",
        "required": ["base_model"],
        "additionalProperties": False,
        "patternProperties": {"^x-": {"description": "Holds anchors; otherwise ignored."}},
        "properties": dict(sorted(properties.items())),
    }


def _property(shape: Shape) -> dict[str, Any]:
    """A shape as JSON Schema; a blank value is always fine and means: not set."""
    options = [_option(kind, shape) for kind in shape["is"]]
    if "any" in shape["is"]:
        return {}
    found: dict[str, Any] = {"anyOf": [*options, {"type": "null"}]}
    if shape.get("deprecated"):
        found["deprecated"] = True
    return found


def _option(kind: str, shape: Shape) -> dict[str, Any]:
    if kind == "map":
        option: dict[str, Any] = {"type": "object"}
        if "keys" in shape:
            option["additionalProperties"] = False
            option["properties"] = {k: _property(s) for k, s in shape["keys"].items()}
            option["properties"] |= {a: _property(s) for s in shape["keys"].values() for a in s.get("aliases", ())}
        elif "values" in shape:
            option["additionalProperties"] = _property(shape["values"])
        return option
    if kind == "list":
        return {"type": "array", "items": _property(shape["items"])} if "items" in shape else {"type": "array"}
    if kind == "usd":
        return {"anyOf": [{"type": "number", **_bounds(shape)}, {"type": "string", "pattern": _MONEY}]}
    option = {**_KINDS.get(kind, {})}
    if kind == "str" and "choices" in shape:
        words = {"enum": [*shape["choices"], ""]}
        return {"anyOf": [words, {**option, "pattern": shape["or_match"]}]} if "or_match" in shape else words
    return option | (_bounds(shape) if kind in {"int", "float"} else {})


def _bounds(shape: Shape) -> dict[str, Any]:
    names = {"min": "minimum", "above": "exclusiveMinimum", "max": "maximum", "below": "exclusiveMaximum"}
    return {theirs: shape[ours] for ours, theirs in names.items() if ours in shape}
