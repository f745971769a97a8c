"""Requests and answers of RunPod's REST v2, held against the schemas of its own OpenAPI document."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema

_TOLD = json.loads((Path(__file__).parent / "runpod_schemas.json").read_text())
# Not in the document, and in use all the same: SkyPilot follows it since October 2026.
_BEYOND = {"list": {"cursor": {"type": "string", "minLength": 1}}}


@functools.cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": _TOLD["$defs"]})


def problems(name: str, plain: Any) -> list[str]:
    """As the API lists them: `$.gpu: additional properties 'x' not allowed`."""
    return [f"{error.json_path}: {error.message}" for error in _validator(name).iter_errors(plain)]


def check(name: str, plain: Any) -> Any:
    """What the fake is about to say. An answer that the real one could not give is the fake's own fault."""
    assert not (found := problems(name, plain)), found
    return plain


def query_problems(call: str, query: Mapping[str, list[str]]) -> list[str]:
    """The API passes over parameters that it does not know. Here they are refused: whoever sends one means something."""
    known = {**_TOLD["queries"].get(call, {}), **_BEYOND.get(call, {})}
    found = []
    for name, values in query.items():
        if name not in known or len(values) != 1:
            found.append(f"query: {name} is unknown, or not there once")
            continue
        schema = {**known[name], "$defs": _TOLD["$defs"]}
        plain = _typed(values[0], known[name].get("type", ""))
        errors = jsonschema.Draft202012Validator(schema).iter_errors(plain)
        found += [f"query.{name}: {error.message}" for error in errors]
    return found


def _typed(text: str, kind: str) -> Any:
    if kind == "array":
        return text.split(",")
    if kind == "integer" and text.isdigit():
        return int(text)
    return {"true": True, "false": False}.get(text, text) if kind == "boolean" else text
