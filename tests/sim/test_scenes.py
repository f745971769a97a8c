"""Every story holds for the product as it is."""

from __future__ import annotations

import pytest

from tests.sim.scenes import SCENES
from tests.sim.world import Product


@pytest.mark.parametrize("name", sorted(SCENES))
def test_it_holds_that(name: str) -> None:
    SCENES[name](Product())
