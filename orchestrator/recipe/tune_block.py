"""The `tune:` block, from tree to TuneBlock."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal
from typing import Any

from orchestrator.recipe import axolotl
from orchestrator.recipe.ids import parse_model_id
from orchestrator.recipe.model import DEFAULT_TRAINER, SPOT, TRAINERS, TuneBlock
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
_PUBLISH: Shape = {"is": ["map"], "keys": {"hub": {"is": ["str"]}}}
KEYS: Mapping[str, Shape] = {
    "trainer": {"is": ["str"], "choices": TRAINERS},
    "provider": {"is": ["str"]},
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
    "environment": {"is": ["map"], "values": {"is": ["str"]}},
    "min_vram": {"is": ["gib"]},
    "gpu": {"is": ["str", "list"], "items": {"is": ["str"]}},
    "gpu_count": {"is": ["int"], "min": 1, "max": 64},
    "disk": {"is": ["gb"]},
    "allow_drop": {"is": ["float"], "min": 0, "max": 1},
    "files": {"is": ["str", "list"], "items": {"is": ["str"]}},
    "allow_optimizer_reset": {"is": ["bool"]},
    "require_flash": {"is": ["bool"]},
}
_SUFFIX = {"duration": "_s", "gib": "_gib", "gb": "_gb"}
SPECIALS = {"duration": parse_duration_s, "usd": parse_usd, "gib": parse_gib, "gb": parse_gb}
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
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
    for name in ("gpu", "files"):
        if name in named:
            named[name] = (named[name],) if isinstance(named[name], str) else tuple(named[name])
    _check(named, report)
    return TuneBlock(**named)


def _check(named: dict[str, Any], report: Report) -> None:
    for key, check in (("provider", _provider), ("name", _name), ("storage", _one_line)):
        if key in named:
            _try(report, f"tune.{key}", lambda check=check, key=key: check(named[key]))
    check_interval(named.get("checkpoint_every_s"), named.get("provider"), report)
    _environment(named.get("environment", {}), report)
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


def _provider(name: str) -> None:
    known = {*PROVIDERS, *_plugins()}
    if name not in known:
        near = nearest(name, sorted(known))
        hint = f"did you mean {near}?" if near else f"known: {', '.join(sorted(known))}"
        raise Unfit(f"no provider is called `{name}`", hint)


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


def check_interval(every: float | None, provider: str | None, report: Report) -> None:
    """Bounds of `checkpoint_every`: wide where nothing is billed, narrow where uploads and preemptions cost money."""
    if every is None:
        return
    where, said = "tune.checkpoint_every", show_duration(every)
    if provider in STEPPED:
        if every < 1:
            report.problem(where, f"{said} is shorter than a second", "write 1s or more")
    elif not MIN_CHECKPOINT_S <= every <= MAX_CHECKPOINT_S:
        report.problem(
            where, f"{said} is outside 5m to 60m", "15m to 30m is the useful range; seconds need `provider: local`"
        )
    elif not USEFUL_S[0] <= every <= USEFUL_S[1]:
        report.notice(where, f"{said} is outside the useful range of 15m to 30m")


def _environment(variables: Mapping[str, str], report: Report) -> None:
    for name, value in variables.items():
        where = f"tune.environment.{name}"
        if not _VARIABLE.fullmatch(name):
            report.problem(where, "not a name for an environment variable", "letters, digits and underscores")
        elif name.startswith("TUNE_"):
            report.problem(where, "names that start with TUNE_ are tune's own", "choose another name")
        elif _SECRET_NAME.search(name) or _SECRET_VALUE.match(value or ""):
            hint = "set it in your own environment; a recipe is stored and shared"
            report.problem(where, "looks like a secret", hint)
        elif "\0" in (value or ""):
            report.problem(where, "holds a NUL byte", "remove it")
