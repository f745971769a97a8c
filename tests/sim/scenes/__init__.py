"""Promises as short stories. Each takes the product, so that a broken copy of it can be put through the same."""

from tests.sim.scenes import ending, many, renting, silence, starting
from tests.sim.scenes.telling import SCENES

__all__ = ["SCENES", "ending", "many", "renting", "silence", "starting"]
