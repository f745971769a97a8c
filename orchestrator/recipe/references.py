"""Entries of `datasets` as DatasetRef."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.recipe.model import DatasetRef
from orchestrator.recipe.shapes import Report

_SAME = (
    "name",
    "split",
    "revision",
    "ds_type",
    "shards",
    "chat_template",
    "field_messages",
    "field_system",
    "message_field_training",
    "message_field_training_detail",
    "train_on_eos",
)
_TAKEN = {*_SAME, "path", "type", "data_files", "field", "message_property_mappings", "roles", "roles_to_train"}
_OLD_MAPPINGS = {"message_field_role": "role", "message_field_content": "content"}


def references(training: Mapping[str, Any], report: Report) -> tuple[DatasetRef, ...]:
    """Every data set that the recipe names, in order; the held-out ones last."""
    found: list[DatasetRef] = []
    for key in ("datasets", "pretraining_dataset", "test_datasets"):
        for index, entry in enumerate(training.get(key) or ()):
            if isinstance(entry, Mapping):
                found.append(_reference(entry, key, index, report))
    return tuple(found)


def _reference(entry: Mapping[str, Any], key: str, index: int, report: Report) -> DatasetRef:
    where = f"{key}[{index}]"
    path = entry.get("path")
    if not path and entry.get("type") != "_synthetic":
        report.problem(where, "path is missing", "name a file, a folder, or a data set on the hub")
    mappings = dict(entry.get("message_property_mappings") or {})
    for old, ours in _OLD_MAPPINGS.items():
        if entry.get(old):
            if mappings.get(ours, entry[old]) != entry[old]:
                report.problem(f"{where}.{old}", f"says other than message_property_mappings.{ours}", f"remove {old}")
            mappings[ours] = entry[old]
    kind = entry.get("type")
    files = entry.get("data_files") or ()
    return DatasetRef(
        path=str(path or ""),
        type=kind if isinstance(kind, str) else None,
        format=dict(kind) if isinstance(kind, Mapping) else {},
        index=index,
        line=report.line_of(where),
        data_files=(files,) if isinstance(files, str) else tuple(files),
        text_field=entry.get("field"),
        message_property_mappings=mappings,
        roles={k: tuple(v or ()) for k, v in (entry.get("roles") or {}).items()},
        roles_to_train=tuple(entry.get("roles_to_train") or ()),
        held_out=key == "test_datasets",
        extra={k: v for k, v in entry.items() if k not in _TAKEN and k not in _OLD_MAPPINGS},
        **{k: entry[k] for k in _SAME if k in entry},
    )
