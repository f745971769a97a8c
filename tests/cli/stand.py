"""Marketplaces whose shelves a test fills: `stand-a` and `stand-b`, plugged in as any other provider is.

A stand reads its shelf from a JSON file at every call and writes down what it was asked, so that it works in a process
of the real command line, too: put `plugged(folder)` into PYTHONPATH.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestrator import errors
from orchestrator.providers.base import Capabilities
from orchestrator.providers.registry import Bound, ProviderSettings
from orchestrator.types import Instance, InstanceId, LaunchSpec, Namespace, Offer, Requirements, Token

NAMES = ("stand-a", "stand-b")


def offer(provider: str, offer_id: str, usd: str, **more: Any) -> Offer:
    given = {"gpu_name": "RTX4090", "gpu_count": 1, "vram_gib": 24.0, "disk_gb": 500.0, "host_ram_gib": 64.0, **more}
    spot = bool(given.pop("spot", False))
    for key in ("idle_usd_per_hour", "download_usd_per_gb", "upload_usd_per_gb"):
        if key in given:
            given[key] = Decimal(given[key])
    return Offer(provider, offer_id, Decimal(usd), spot, **given)


class Stand:
    """Rents nothing: whoever tries is written down."""

    def __init__(self, name: str, shelf: Callable[[], Mapping[str, Any]], asked: Callable[[str], None]) -> None:
        self._name, self._shelf, self._asked = name, shelf, asked

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        reason = self._shelf().get("no_spot_reason", "")
        return Capabilities(not reason, 5, 60, True, 0, 100, False, no_spot_reason=reason)

    def offers(self, want: Requirements, *, timeout_s: float = 30) -> Sequence[Offer]:
        self._asked("offers")
        shelf = self._shelf()
        time.sleep(shelf.get("takes_s", 0))
        self._fail(shelf.get("trouble"))
        return [offer(self._name, **item) for item in shelf.get("offers", ())]

    def create(self, offer: Offer, spec: LaunchSpec, *, token: Token, timeout_s: float = 60) -> Instance:
        self._asked("create")
        raise errors.InsufficientCapacity("a stand rents nothing")

    def get(self, instance_id: InstanceId, *, timeout_s: float = 30) -> Instance:
        raise errors.InstanceNotFound(instance_id)

    def find(self, *, namespace: Namespace, timeout_s: float = 30) -> Sequence[Instance]:
        return []

    def terminate(self, instance_id: InstanceId, *, timeout_s: float = 30) -> None:
        raise errors.InstanceNotFound(instance_id)

    def balance_usd(self, *, timeout_s: float = 30) -> Decimal | None:
        shelf = self._shelf()
        self._fail(shelf.get("balance_trouble"))
        return None if shelf.get("balance") is None else Decimal(shelf["balance"])

    def billed(self, *_: object, **__: object) -> None:
        return None

    def rebid(self, *_: object, **__: object) -> None:
        raise errors.ProviderRejected("no bids here")

    def _fail(self, name: str | None) -> None:
        if name:
            raise getattr(errors, name)(f"{self._name} says {name}", hint=f"mend {self._name}")


def _build(name: str, settings: ProviderSettings) -> Bound:
    folder = Path(settings.options["folder"])

    def shelf() -> Mapping[str, Any]:
        path = folder / f"{name}.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def asked(what: str) -> None:
        with (folder / f"{name}.asked").open("a") as log:
            log.write(f"{what}\n")

    if shelf().get("no_key"):
        raise errors.CredentialsMissing(f"no key of {name}: tried $STAND_KEY, ~/.stand", hint="export STAND_KEY=…")
    stand = Stand(name, shelf, asked)
    return Bound(stand, connect=lambda instance: None, account=stand, is_elsewhere=True)  # type: ignore[arg-type,return-value]


def build_a(settings: ProviderSettings) -> Bound:
    return _build("stand-a", settings)


def build_b(settings: ProviderSettings) -> Bound:
    return _build("stand-b", settings)


def bound(name: str = "stand-a", **shelf: Any) -> Bound:
    """One for a test that stays within its own process."""
    stand = Stand(name, lambda: shelf, lambda what: None)
    return Bound(stand, connect=lambda instance: None, account=stand, is_elsewhere=True)  # type: ignore[arg-type,return-value]


def plugged(folder: Path) -> Path:
    """A folder for PYTHONPATH from which the stands are found as installed plugins are."""
    info = folder / "plugins" / "stands-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stands\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tune.providers]\nstand-a = tests.cli.stand:build_a\nstand-b = tests.cli.stand:build_b\n"
    )
    return info.parent
