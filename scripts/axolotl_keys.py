"""Write configs/axolotl_keys.json from an installed Axolotl.

Run with the interpreter of an environment that has the version to read (it needs torch and transformers, no GPU):

    python scripts/axolotl_keys.py configs/axolotl_keys.json

A shape says what a key may hold: "is" (bool int float str list map any), "choices" of a text, "or_match" (a pattern it
may follow instead), "min"/"above"/"max", "items" of a list, "keys" of a map with known keys, "values" of any other map.
"""

import enum
import importlib
import json
import sys
import types
import typing
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel

# What Axolotl declares as plain text, but documents or looks up as one of a few words.
CHOICES = {
    "eval_strategy": ["no", "steps", "epoch"],
    "save_strategy": ["no", "steps", "epoch", "best"],
    "hub_strategy": ["end", "every_save", "checkpoint", "all_checkpoints"],
    "sample_packing_mp_start_method": ["fork", "spawn", "forkserver"],
    "wandb_mode": ["online", "offline", "disabled", "shared"],
    "wandb_watch": ["gradients", "parameters", "all", "false"],
    "wandb_log_model": ["checkpoint", "end", "false"],
    "qgalore_proj_type": ["std", "reverse_std", "right", "left", "full"],
}
NUMBERS = {"learning_rate": {"is": ["float"]}}  # declared as text or number, used as a number


def merge(shapes: list[dict]) -> dict:
    """One shape that admits what any of `shapes` admits."""
    merged: dict = {"is": []}
    for shape in shapes:
        merged["is"] += [kind for kind in shape["is"] if kind not in merged["is"]]
        for name in ("min", "above", "max", "or_match"):
            if name in shape:
                merged[name] = shape[name]
        if "choices" in shape:
            merged["choices"] = merged.get("choices", []) + [
                c for c in shape["choices"] if c not in merged.get("choices", [])
            ]
        if "items" in shape:
            merged["items"] = merge([merged["items"], shape["items"]]) if "items" in merged else shape["items"]
        if "keys" in shape:
            known = merged.setdefault("keys", {})
            for key, value in shape["keys"].items():
                known[key] = merge([known[key], value]) if key in known else value
        if "values" in shape:
            merged["values"] = shape["values"]
    if any("str" in s["is"] and not {"choices", "or_match"} & set(s) for s in shapes):
        merged.pop("choices", None)  # any text will do
    if not merged["is"]:
        merged["is"] = ["any"]
    return merged


def constraints(field_metadata: typing.Iterable[object]) -> dict:
    found = {}
    for item in field_metadata:
        for name, ours in (("ge", "min"), ("gt", "above"), ("le", "max")):
            if getattr(item, name, None) is not None:
                found[ours] = getattr(item, name)
        if getattr(item, "pattern", None):
            found["or_match"] = item.pattern
    return found


def shape(kind: object) -> dict:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return shape(args[0]) | constraints(args[1:])
    if origin in (typing.Union, types.UnionType):
        return merge([shape(a) for a in args if a is not type(None)])
    if origin is typing.Literal:
        return {"is": ["str"], "choices": list(args)}
    if kind in (bool, int, float, str):
        return {"is": [kind.__name__]}
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {"is": ["map"], "keys": keys(kind)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        words = [m.value if isinstance(m.value, str) else m.name for m in kind]
        return {"is": ["str"], "choices": words} if all(isinstance(w, str) for w in words) else {"is": ["any"]}
    if origin is list or kind is list:
        return {"is": ["list"]} | ({"items": shape(args[0])} if args else {})
    if origin is tuple:
        return {"is": ["list"], "items": merge([shape(a) for a in args if a is not Ellipsis])}
    if origin is dict or kind is dict:
        inner = shape(args[1]) if args else {"is": ["any"]}
        return {"is": ["map"]} | ({} if inner["is"] == ["any"] else {"values": inner})
    return {"is": ["any"]}


def keys(model: type[BaseModel]) -> dict:
    found = {}
    for name, info in sorted(model.model_fields.items()):
        found[name] = shape(info.annotation) | constraints(info.metadata)
        others = [info.alias] if isinstance(info.alias, str) else [*getattr(info.validation_alias, "choices", [])]
        if others := [o for o in others if o and o != name]:
            found[name]["aliases"] = others
        if isinstance(info.deprecated, str):
            found[name]["deprecated"] = True
    return found


def plugins() -> dict:
    """Keys that exist only while a plugin is listed under `plugins:`."""
    from axolotl import integrations

    found = {}
    for folder in sorted(Path(integrations.__file__).parent.iterdir()):
        if not (folder / "args.py").exists():
            continue
        try:
            module = importlib.import_module(f"axolotl.integrations.{folder.name}.args")
        except ImportError as e:
            print(f"left out {folder.name}: {e}", file=sys.stderr)
            continue
        names = {}
        for value in vars(module).values():
            # the arguments are the one class that `get_input_args` names; what it holds is reached through it
            is_model = isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == module.__name__
            if is_model and any(f'.{value.__name__}"' in f.read_text() for f in folder.rglob("*.py")):
                names |= keys(value)
        if names:
            found[f"axolotl.integrations.{folder.name}."] = names
    return found


def main(target: str) -> None:
    from axolotl.utils.schemas import enums
    from axolotl.utils.schemas.config import AxolotlInputConfig
    from transformers import SchedulerType
    from transformers.training_args import OptimizerNames

    table = keys(AxolotlInputConfig)
    for name, words in CHOICES.items():
        table[name]["choices"] = words
    table |= NUMBERS
    optimizers = {o.value for o in (*OptimizerNames, *enums.CustomSupportedOptimizers)}
    table["optimizer"] = {"is": ["str"], "choices": sorted(optimizers)}
    table["lr_scheduler"] = {"is": ["str"], "choices": sorted({s.value for s in SchedulerType} | {"one_cycle", "rex"})}
    table["attn_implementation"] = {"is": ["str"], "choices": sorted(enums.CANONICAL_ATTN_IMPLS), "or_match": "/"}
    version = metadata.version("axolotl")
    document = {
        "comment": f"The keys of Axolotl {version} (AxolotlInputConfig; axolotl on PyPI, Apache-2.0) with the names of "
        f"optimizers and schedulers in transformers {metadata.version('transformers')} (Apache-2.0). Names and types "
        "only. Written by: python scripts/axolotl_keys.py configs/axolotl_keys.json",
        "axolotl": version,
        "keys": table,
        "plugins": plugins(),
    }
    lines = ["{", *(f" {json.dumps(name)}: {json.dumps(document[name])}," for name in ("comment", "axolotl"))]
    for section in ("keys", "plugins"):
        lines.append(f" {json.dumps(section)}: {{")
        rows = [f"  {json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in sorted(document[section].items())]
        lines.append(",\n".join(rows))
        lines.append(" }" + ("," if section == "keys" else ""))
    Path(target).write_text("\n".join([*lines, "}"]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
