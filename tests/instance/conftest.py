from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.stage import Stage
from tests.instance.stand import Container
from tests.instance.web import Web


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    made = Container(tmp_path / "a container")
    yield made
    made.power_off()
    for child in made.children:
        child.communicate()


@pytest.fixture
def web() -> Iterator[Web]:
    """Stands for a marketplace, or for a bucket that takes signed requests."""
    made = Web()
    yield made
    made.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A bucket, and instances in strangely named folders."""
    under = tmp_path / 'stage données "$(touch p)" ;#'
    under.mkdir()
    made = Stage(under)
    yield made
    made.close()
