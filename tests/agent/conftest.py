from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A bucket and instances; whatever a test starts is gone after it."""
    under = tmp_path / 'stage données 训练 "$(touch p)" ;#'
    under.mkdir()
    made = Stage(under)
    yield made
    made.close()
