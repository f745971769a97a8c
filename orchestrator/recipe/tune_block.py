"""The `tune:` block, from tree to TuneBlock."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Any

from orchestrator.recipe import axolotl
from orchestrator.recipe.ids import parse_model_id
from orchestrator.recipe.model import (
    ANY_PROVIDER,
    DEFAULT_TRAINER,
    ENVIRONMENTS,
    PROVIDER_SEPARATOR,
    SPOT,
    TRAINERS,
    TuneBlock,
)
from orchestrator.recipe.scalars import Unfit, nearest
from orchestrator.recipe.shapes import Reader, Report, Shape
from orchestrator.recipe.tree import Map
from orchestrator.recipe.units import parse_duration_s, parse_gb, parse_gib, parse_usd, show_duration

PROVIDERS = ("local", "runpod", "sim", "vastai")
STEPPED = ("local", "sim")  # nothing is billed there, so intervals may be as short as a demo needs
MIN_CHECKPOINT_S, MAX_CHECKPOINT_S = (
    300.0,
    3600.0,
)  # below, uploads compete with training; above, a preemption costs too much
USEFUL_S = (900.0, 1800.0)
_DURATION: Shape = {"is": ["duration"]}
_GPU_COUNT: Shape = {"is": ["int"], "min": 0, "max": 64}
_GPU_NAMES: Shape = {"is": ["str", "list"], "items": {"is": ["str"]}}
_GPU: Mapping[str, Shape] = {"count": _GPU_COUNT, "name": _GPU_NAMES, "min_vram": {"is": ["gib"]}}
_PUBLISH: Shape = {"is": ["map"], "keys": {"hub": {"is": ["str"]}}}
KEYS: Mapping[str, Shape] = {
    "trainer": {"is": ["str"], "choices": TRAINERS},
    "provider": {"is": ["str", "list"], "items": {"is": ["str"]}},
    "spot": {"is": ["str"], "choices": SPOT},
    "name": {"is": ["str"]},
    "max_usd_per_hour": {"is": ["usd"], "above": 0},
    "budget_usd": {"is": ["usd"], "above": 0},
    "deadline": _DURATION,
    "instance_deadline": _DURATION,
    "checkpoint_every": _DURATION,
    "keep_checkpoints": {
        "is": ["int"],
        "min": 1,
        "max": 1000,
        "why": "at least one verified checkpoint is always kept",
    },
    "hang_timeout": _DURATION,
    "launch_timeout": _DURATION,
    "bootstrap_timeout": _DURATION,
    "unreachable_grace": _DURATION,
    "upload_grace": _DURATION,
    "max_attempts": {"is": ["int"], "min": 1, "max": 1000},
    "storage": {"is": ["str"]},
    "publish": _PUBLISH,
    "env": {"is": ["map"], "values": {"is": ["str"]}},
    "environment": {"is": ["str", "map"], "values": {"is": ["str"]}},
    "image": {"is": ["str"]},
    "min_vram": {"is": ["gib"]},
    "gpu": {"is": ["str", "list", "map"], "items": {"is": ["str"]}, "keys": _GPU},
    "gpu_count": _GPU_COUNT,
    "disk": {"is": ["gb"]},
    "allow_drop": {"is": ["float"], "min": 0, "max": 1},
    "files": {"is": ["str", "list"], "items": {"is": ["str"]}},
    "allow_optimizer_reset": {"is": ["bool"]},
    "require_flash": {"is": ["bool"]},
}
_SUFFIX = {"duration": "_s", "gib": "_gib", "gb": "_gb"}
SPECIALS = {"duration": parse_duration_s, "usd": parse_usd, "gib": parse_gib, "gb": parse_gb}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_IMAGE = re.compile(  # [registry[:port]/]name[/name...][:tag][@digest], as Docker's reference grammar has it
    r"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"^(?:hf_|sk-|rpa_|ghp_|github_pat_|AKIA|xox[bap]-)[A-Za-z0-9_-]{12,}")


class _BlockReader(Reader):
    """Knows a training key that has slipped under `tune:`."""

    def unknown(self, key: str, keys: tuple[str, ...], where: str) -> None:
        training = axolotl.keys()
        if where == "tune" and axolotl.aliases().get(key, key) in training:
            hint = f"{key} is a training key: put it at the top level, not under `tune:`"
            self.report.problem(f"tune.{key}", "unknown key", hint)
        else:
            Reader.unknown(self, key, keys, where)


def read(tree: Map | None, report: Report) -> TuneBlock:
    """The block with its defaults; problems go to the report."""
    if tree is None:
        return TuneBlock(trainer=DEFAULT_TRAINER)
    values = _BlockReader(report, SPECIALS).mapping(tree, {"is": ["map"], "keys": KEYS}, "tune")
    known = {f.name for f in fields(TuneBlock)}
    named: dict[str, Any] = {}
    for key, value in values.items():
        name = key + _SUFFIX.get(KEYS[key]["is"][0], "")
        assert name in known, name
        named[name] = value
    _spread_gpu(named, report)
    _spread_environment(named, report)
    for name in ("gpu", "files"):
        if name in named:
            named[name] = _several(named[name])
    if "provider" in named:
        named["provider"] = PROVIDER_SEPARATOR.join(providers_of(named["provider"]))
    _check(named, report)
    return TuneBlock(**named)


def _several(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def providers_of(value: str | list[str]) -> tuple[str, ...]:
    """The providers that are meant, in one order however they were written: `vastai, runpod` is two."""
    parts = (part.strip() for text in _several(value) for part in text.split(PROVIDER_SEPARATOR))
    return tuple(sorted({part for part in parts if part}))


def _spread_gpu(named: dict[str, Any], report: Report) -> None:
    """`gpu: {count: 1, name: RTX 4090, min_vram: 24GB}` is another way to write three keys."""
    if not isinstance(named.get("gpu"), dict):
        return
    inside = named.pop("gpu")
    for ours, theirs in (("gpu_count", "count"), ("gpu", "name"), ("min_vram_gib", "min_vram")):
        if theirs not in inside:
            continue
        if ours in named:
            key = ours.removesuffix("_gib")
            report.problem(f"tune.gpu.{theirs}", f"the same as tune.{key}, which is set too", "keep one")
        named[ours] = inside[theirs]


def _spread_environment(named: dict[str, Any], report: Report) -> None:
    """`environment` as a mapping is the older way to write `env`."""
    _variables(named.get("env", {}), "tune.env", report)
    if not isinstance(named.get("environment"), dict):
        return
    variables = named.pop("environment")
    _variables(variables, "tune.environment", report)
    for name in variables.keys() & named.get("env", {}).keys():
        report.problem(f"tune.environment.{name}", f"the same as tune.env.{name}, which is set too", "keep one")
    named["env"] = {**variables, **named.get("env", {})}


def _check(named: dict[str, Any], report: Report) -> None:
    for key, check in (
        ("provider", _provider),
        ("name", _name),
        ("storage", _one_line),
        ("environment", _environment),
        ("image", _image),
    ):
        if key in named:
            _try(report, f"tune.{key}", lambda check=check, key=key: check(named[key]))
    check_interval(named.get("checkpoint_every_s"), named.get("provider"), report, gpu_count=named.get("gpu_count"))
    if named.get("gpu_count") == 0 and (named.get("gpu") or named.get("min_vram_gib")):
        report.problem("tune.gpu", "asks for no GPU and for a kind of it", "remove the count of 0, or the kind")
    for index, file in enumerate(named.get("files", ())):
        _try(report, f"tune.files[{index}]", lambda file=file: _file(file))
    if hub := named.get("publish", {}).get("hub"):
        _try(report, "tune.publish.hub", lambda: parse_model_id(hub, remote=True))
    rate, budget = named.get("max_usd_per_hour"), named.get("budget_usd")
    if isinstance(rate, Decimal) and isinstance(budget, Decimal) and budget < rate / 10:
        report.notice("tune.budget_usd", f"pays for less than six minutes at {rate} USD per hour")
    deadline, instance = named.get("deadline_s"), named.get("instance_deadline_s")
    if deadline is not None and instance is not None and instance > deadline:
        report.notice("tune.instance_deadline", "is later than the run's own deadline, which comes first")


def _try(report: Report, where: str, check: Any) -> None:
    try:
        check()
    except Unfit as e:
        report.problem(where, e.message, e.hint)


def _provider(names: str) -> None:
    known = {*PROVIDERS, *_plugins()}
    several = names.split(PROVIDER_SEPARATOR)
    for name in several:
        if name not in known and names != ANY_PROVIDER:
            near = nearest(name, sorted(known))
            hint = f"did you mean {near}?" if near else f"known: {', '.join(sorted(known))}"
            raise Unfit(f"no provider is called `{name}`", hint)
    embedded = [name for name in several if name in STEPPED]
    if embedded and len(several) > 1:
        raise Unfit(f"`{embedded[0]}` cannot stand in for others", "name it alone, or marketplaces only")


def _plugins() -> set[str]:
    from importlib.metadata import entry_points

    return {e.name for e in entry_points(group="tune.providers")}


def _name(name: str) -> None:
    if len(name) > 100 or not name.isprintable() or name != name.strip():
        raise Unfit("a run's name is one line of at most 100 visible characters", "shorten it")
    if name.startswith("-"):
        raise Unfit(f"`{name}` reads like an option on the command line", "start it with a letter")


def _one_line(text: str) -> None:
    if not text.isprintable():
        raise Unfit("more than one line, or invisible characters", "write it on one line")


def _file(name: str) -> None:
    from pathlib import PurePosixPath

    parts = PurePosixPath(name).parts
    if name.startswith(("/", "~")) or ".." in parts or "\\" in name or not name.isprintable() or name in {".", ""}:
        raise Unfit(f"`{name}` is not below the recipe's folder", "copy it there and name it relative to the recipe")


def check_interval(every: float | None, provider: str | None, report: Report, *, gpu_count: int | None = None) -> None:
    """Bounds of `checkpoint_every`: wide where nothing is billed, or without a GPU, where models are tiny; narrow where
    uploads and preemptions cost money.
    """
    if every is None:
        return
    where, said = "tune.checkpoint_every", show_duration(every)
    if provider in STEPPED or gpu_count == 0:
        if every < 1:
            report.problem(where, f"{said} is shorter than a second", "write 1s or more")
    elif not MIN_CHECKPOINT_S <= every <= MAX_CHECKPOINT_S:
        report.problem(
            where, f"{said} is outside 5m to 60m", "15m to 30m is the useful range; seconds need `provider: local`"
        )
    elif not USEFUL_S[0] <= every <= USEFUL_S[1]:
        report.notice(where, f"{said} is outside the useful range of 15m to 30m")


def _environment(word: str) -> None:
    if word in ENVIRONMENTS or (word.startswith("/") and word.isprintable()):
        return
    near = nearest(word, ENVIRONMENTS)
    hint = f"did you mean {near}?" if near else f"one of {', '.join(ENVIRONMENTS)}, or an absolute path"
    raise Unfit(f"`{word}` is no environment", f"{hint}; variables go under `tune.env`")


def _image(name: str) -> None:
    if not _IMAGE.fullmatch(name) or len(name) > 255:
        raise Unfit(f"`{name}` is not the name of a container image", "write it like pytorch/pytorch:2.9-cuda12.8")


def _variables(variables: Mapping[str, str], block: str, report: Report) -> None:
    for name, value in variables.items():
        where = f"{block}.{name}"
        if not _VARIABLE.fullmatch(name):
            report.problem(where, "not a name for an environment variable", "letters, digits and underscores")
        elif name.startswith("TUNE_"):
            report.problem(where, "names that start with TUNE_ are tune's own", "choose another name")
        elif _SECRET_NAME.search(name) or _SECRET_VALUE.match(value or ""):
            hint = "set it in your own environment; a recipe is stored and shared"
            report.problem(where, "looks like a secret", hint)
        elif "\0" in (value or ""):
            report.problem(where, "holds a NUL byte", "remove it")
