from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.assets import tiny
from tests.e2e.desk import Desk


@pytest.fixture(scope="session")
def tiny_assets(tmp_path_factory: pytest.TempPathFactory) -> tiny.Tiny:
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if root.name.startswith("popen-") else root  # one for all workers
    return tiny.cached(shared)


@pytest.fixture
def desk(tmp_path: Path, tiny_assets: tiny.Tiny) -> Iterator[Desk]:
    made = Desk(tmp_path / "desk", tiny_assets)
    try:
        yield made
    finally:
        made.close()
    assert made.instances() == [], "something would still be billing"
