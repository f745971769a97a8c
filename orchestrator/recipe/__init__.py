"""YAML to Recipe: `load` reads a file strictly and says everything that is wrong with it at once."""

from __future__ import annotations

from orchestrator.recipe.load import check_provider, load, loads
from orchestrator.recipe.model import DatasetRef, Recipe, TuneBlock

__all__ = ["DatasetRef", "Recipe", "TuneBlock", "check_provider", "load", "loads"]
