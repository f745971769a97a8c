from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.trainers import trl
from tests.assets import tiny


@pytest.fixture(scope="session")
def tiny_assets(tmp_path_factory: pytest.TempPathFactory) -> tiny.Tiny:
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if root.name.startswith("popen-") else root  # one for all workers
    return tiny.cached(shared)


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job's programs, importable as they are on an instance."""
    folder = tmp_path_factory.mktemp("scripts")
    for name, content in trl.scripts():
        (folder / Path(name).name).write_bytes(content)
    sys.path.insert(0, str(folder))
    return folder
