"""The schema for editors, and the recipe to start from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from orchestrator.recipe import load, loads
from orchestrator.recipe.init import template
from orchestrator.recipe.model import TRAINERS
from orchestrator.recipe.scalars import parse_any
from orchestrator.recipe.schema import schema
from orchestrator.recipe.tree import Leaf, Seq, Tree, read


def plain(tree: Tree) -> Any:
    """As a YAML 1.2 editor sees it."""
    if isinstance(tree, Leaf):
        return parse_any(tree.text, quoted=tree.quoted)
    if isinstance(tree, Seq):
        return [plain(i) for i in tree.items]
    return {k: plain(v) for k, v in tree.entries.items()}


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    made = schema()
    jsonschema.Draft202012Validator.check_schema(made)
    return jsonschema.Draft202012Validator(json.loads(json.dumps(made)))


def accepts(validator: jsonschema.Draft202012Validator, text: str) -> bool:
    return bool(validator.is_valid(plain(read(text.encode())[0])))


def test_every_recipe_of_ours_loads_and_fits_the_schema(validator: jsonschema.Draft202012Validator) -> None:
    recipes = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
    assert "tiny-local.yaml" in [p.name for p in recipes]
    for path in recipes:
        assert load(path).notices == ()
        assert accepts(validator, path.read_text())


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_recipe_to_start_from_is_valid_as_it_is(validator: jsonschema.Draft202012Validator, trainer: str) -> None:
    text = template(trainer=trainer, base_model="acme/x@v1", dataset="my data: 1.jsonl", dataset_type="chat_template")
    recipe = loads(text.encode())
    assert recipe.tune.trainer == trainer
    assert (recipe.training["base_model"], recipe.training["revision_of_model"]) == ("acme/x", "v1")
    assert recipe.datasets[0].path == "my data: 1.jsonl"
    assert recipe.notices == ()
    assert accepts(validator, text)
    assert len(text.splitlines()) < 60


@pytest.mark.parametrize(
    "text",
    [
        "base_model: a/b\nx-anything: {a: 1}\n",
        "base_model: a/b\nwandb_project:\nbf16: auto\ngradient_checkpointing: true\nsave_steps: 0.1\neval_strategy: no\n",
        "base_model: a/b\ndatasets: [{path: a, type: {field_output: x}}]\nattn_implementation: org/kernel\n",
        "base_model: a/b\ntune: {deadline: 1h 30m, disk: 100Gi, max_usd_per_hour: $0.40, budget_usd: 6}\n",
        "base_model: a/b\ntune:\n",
        "base_model: a/b\ntune: {gpu: {count: 0}, provider: [vastai, runpod], environment: pinned, image: a/b, env: {A: x}}\n",
        "base_model: a/b\ntune: {gpu: {name: [L4], min_vram: 24GB}, environment: {A: x}}\n",
    ],
)
def test_editors_accept_what_loads(validator: jsonschema.Draft202012Validator, text: str) -> None:
    loads(text.encode())
    assert accepts(validator, text)


@pytest.mark.parametrize(
    "text",
    [
        "seed: 1\n",
        "base_model: a/b\nlerning_rate: 1\n",
        "base_model: a/b\nlora_r: 0\n",
        "base_model: a/b\nsave_strategy: sometimes\n",
        "base_model: a/b\ndatasets: [{pth: a}]\n",
        "base_model: a/b\nfsdp: [full_shard]\n",
        "base_model: a/b\ntune: {trainr: trl}\n",
        "base_model: a/b\ntune: {deadline: 15}\n",
        "base_model: a/b\ntune: {disk: 100}\n",
        "base_model: a/b\ntune: {budget_usd: 0}\n",
        "base_model: a/b\ntune: {gpu: {cuont: 0}}\n",
        "base_model: a/b\ntune: {gpu: {count: -1}}\n",
    ],
)
def test_editors_underline_what_does_not_load(validator: jsonschema.Draft202012Validator, text: str) -> None:
    assert not accepts(validator, text)


def test_deprecated_keys_are_marked_and_tune_keys_explained() -> None:
    properties = schema()["properties"]
    assert properties["flash_attention"]["deprecated"] is True
    assert properties["dpo_beta"]["deprecated"] is True
    assert all(p["description"] for p in properties["tune"]["properties"].values())
