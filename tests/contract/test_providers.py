"""Every provider keeps the promises that every provider makes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.providers import registry
from tests.contract.provider_contract import ProviderContract
from tests.support.local import LocalWorld


class TestLocal(ProviderContract):
    """The machine at hand keeps them with real processes."""

    provider_name = "local"

    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[LocalWorld]:
        world = LocalWorld(tmp_path)
        yield world
        world.close()


def test_every_registered_provider_is_held_to_the_contract() -> None:
    module = sys.modules[__name__]
    suites = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, ProviderContract)]
    tested = {suite.provider_name for suite in suites if suite is not ProviderContract}
    assert tested == set(registry.names(plugins=()))
