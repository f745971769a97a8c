"""Planting a bug: a copy of the modules under test with some of their text changed.

The copy lives under a name of its own, so that nothing else in the process ever sees it.
"""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import orchestrator
from orchestrator.storage.base import ObjectInfo
from orchestrator.storage.memory import MemoryStore
from tests.sim.world import Product

ROOT = Path(orchestrator.__file__).parent
# In the order in which they import one another.
MODULES = (
    "absence",
    "outcomes",
    "states",
    "money",
    "offers",
    "policy",
    "bootstrap",
    "observe",
    "acts",
    "reconcile",
    "sweep",
)
_IMPORT = re.compile(rf"\borchestrator\.({'|'.join(MODULES)})\b")
_FROM_PACKAGE = re.compile(r"^from orchestrator import (.+)$", re.MULTILINE)
_serial = itertools.count(1)


class BlindStore(MemoryStore):
    """Put-if-unchanged does not look whether anything has changed."""

    def put_if(self, key: str, data: bytes, *, version: str) -> ObjectInfo:
        return self.put(key, data)


@dataclass(frozen=True)
class Mutant:
    """One planted bug: `edits` are (module, text as it is, text as it must not be).

    Several edits together take away safeguards that cover each other. `scene` is the story tried first.
    """

    name: str
    edits: tuple[tuple[str, str, str], ...] = ()
    store: type[MemoryStore] = MemoryStore
    declared_list_lag_s: float | None = None
    scene: str = ""

    def product(self) -> Product:
        """The broken product. An edit that no longer finds its text is an error: the mutant would be no mutant."""
        copies = _copy(self.edits) if self.edits else {}
        names = {name: copies[name] for name in ("reconcile", "acts", "observe", "sweep", "money") if name in copies}
        return Product(**names, store=self.store, declared_list_lag_s=self.declared_list_lag_s)


def _copy(edits: tuple[tuple[str, str, str], ...]) -> dict[str, Any]:
    package = f"mutant_{next(_serial)}"
    sys.modules[package] = ModuleType(package)
    copies: dict[str, Any] = {}
    try:
        for name in MODULES:
            source = (ROOT / f"{name}.py").read_text()
            source = _edited(name, source, [e for e in edits if e[0] == name])
            source = _IMPORT.sub(rf"{package}.\1", source)
            source = _FROM_PACKAGE.sub(lambda m: _split(m[1], package), source)
            module = ModuleType(f"{package}.{name}")
            sys.modules[module.__name__] = module
            setattr(sys.modules[package], name, module)
            exec(compile(source, f"<{package}.{name}>", "exec"), module.__dict__)
            copies[name] = module
    except BaseException:
        forget(package)
        raise
    return copies


def _edited(name: str, source: str, edits: list[tuple[str, str, str]]) -> str:
    for _, old, new in edits:
        if source.count(old) != 1:
            raise LookupError(f"{name}.py has this text {source.count(old)} times, not once: {old!r}")
        source = source.replace(old, new)
    return source


def _split(names: str, package: str) -> str:
    """`from orchestrator import keys, money`: what is copied comes from the copy, the rest from the product."""
    listed = (name.strip() for name in names.split(","))
    return "\n".join(f"from {package if name in MODULES else 'orchestrator'} import {name}" for name in listed)


def forget(package: str) -> None:
    """Take a copy out of the process again."""
    for name in [n for n in sys.modules if n == package or n.startswith(f"{package}.")]:
        del sys.modules[name]


def package_of(product: Product) -> str:
    """The name under which a product's copy lives; empty for the real one."""
    name: str = product.reconcile.__name__
    return name.partition(".")[0] if name.startswith("mutant_") else ""
