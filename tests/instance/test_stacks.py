"""What is installed on rented instances is what the tests train with, down to what the pinned packages need."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from orchestrator.agent import pins

ROOT = Path(__file__).parents[2]
STACKS = ROOT / "configs" / "stacks"
PYTHONS = ("3.11", "3.12", "3.13")
ELSEWHERE = {"gguf"}  # only unpacks the model that the tests train with


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(roots: list[str]) -> set[str]:
    """Everything that these packages need in turn on Linux, by what is installed here."""
    seen: set[str] = set()
    waiting = [(name, "") for name in roots]
    while waiting:
        name, extra = waiting.pop()
        if (key := f"{normal(name)}[{extra}]") in seen:
            continue
        seen.add(key)
        for text in distribution(name).requires or []:
            wanted = Requirement(text)
            linux = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "extra": extra}
            places = [{**linux, "python_version": v, "python_full_version": f"{v}.0"} for v in PYTHONS]
            if wanted.marker is None or any(wanted.marker.evaluate(place) for place in places):
                waiting += [(wanted.name, ""), *((wanted.name, e) for e in wanted.extras)]
    return {key.partition("[")[0] for key in seen}


def test_the_trl_stack_is_the_local_extra() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["local"]
    wanted = {name: version for name, _, version in (line.partition("==") for line in extra)}
    assert pins.read(STACKS / "trl.txt") == {n: v for n, v in wanted.items() if n not in ELSEWHERE}


@pytest.mark.train
def test_nothing_that_it_needs_is_left_open() -> None:
    stack, rest = pins.read(STACKS / "trl.txt"), pins.read(STACKS / "trl.rest.txt")
    try:
        names = needed(list(stack))
    except PackageNotFoundError as e:
        pytest.skip(f"{e} is not installed")
    pinned = {normal(name) for name in (*stack, *rest)}
    by_torch = {name for name in names if name.startswith(("nvidia-", "cuda-")) or name == "triton"}
    assert names - by_torch - pinned == set()


def test_the_agent_s_own_packages_are_whole() -> None:
    agent = pins.read(STACKS / "agent.txt")
    assert needed(["boto3", "pydantic"]) <= {normal(name) for name in agent}
