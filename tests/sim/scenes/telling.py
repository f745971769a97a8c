"""What every story is told with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator.types import Outcome, Phase
from tests.sim.world import QUICK, Broken, Product, World

Scene = Callable[[Product], None]
SCENES: dict[str, Scene] = {}

LONG = replace(QUICK, total_steps=1000, checkpoint_steps=10)  # eight hours: it does not finish by itself


def scene(tell: Scene) -> Scene:
    """Collect a story under its name."""
    SCENES[tell.__name__] = tell
    return tell


def running(product: Product, **kwargs: Any) -> World:
    world = World(product, **kwargs)
    world.until(Phase.RUNNING)
    return world


def pass_for(world: World, seconds: float, *, every: float = 30.0) -> None:
    """Somebody looks every so often."""
    end = world.now_s + seconds
    while world.now_s < end:
        world.one_pass()
        world.advance(every)


def true(holds: object, otherwise: object = "") -> None:
    if not holds:
        raise Broken(str(otherwise))


def outcomes_of(world: World) -> list[Outcome | None]:
    return [a.outcome for a in world.run.attempts]
