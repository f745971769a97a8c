from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.assets import tiny
from tests.cli.simdesk import SimDesk
from tests.e2e.desk import Desk


@pytest.fixture(scope="session")
def tiny_assets(tmp_path_factory: pytest.TempPathFactory) -> tiny.Tiny:
    root = tmp_path_factory.getbasetemp()
    return tiny.cached(root.parent if root.name.startswith("popen-") else root)  # one for all workers


@pytest.fixture
def desk(tmp_path: Path, tiny_assets: tiny.Tiny) -> Iterator[Desk]:
    """A user's desk with a config, a bucket in a folder and the real command line; nothing may bill when it is left."""
    made = Desk(tmp_path / "desk", tiny_assets)
    try:
        yield made
    finally:
        made.close()
    assert made.instances() == [], "something would still be billing"


@pytest.fixture
def sim(tmp_path: Path, tiny_assets: tiny.Tiny) -> Iterator[SimDesk]:
    """The same on the simulated cloud."""
    made = SimDesk(tmp_path / "desk", tiny_assets)
    try:
        yield made
    finally:
        made.close()
    assert made.instances() == [], "something would still be billing"
