"""Would we notice? Every known way to break the product is planted, and some story must fail."""

from __future__ import annotations

import pytest

from orchestrator.errors import TuneError
from tests.sim.enumeration import try_all
from tests.sim.mutants import MUTANTS
from tests.sim.planting import Mutant, forget, package_of
from tests.sim.scenes import SCENES
from tests.sim.world import Broken, Product


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_is_noticed_when(mutant: Mutant) -> None:
    product = mutant.product()
    try:
        assert _caught_by(mutant, product), "nothing in the suite notices"
    finally:
        if package_of(product):
            forget(package_of(product))


def _caught_by(mutant: Mutant, product: Product) -> str:
    """What the story written for this very bug says; without one, what the crash enumeration finds."""
    try:
        if mutant.scene:
            SCENES[mutant.scene](product)
        else:
            try_all(product, every=3)
    except (Broken, TuneError) as e:
        return str(e) or repr(e)
    return ""


def test_a_planted_bug_stays_in_its_copy() -> None:
    product = next(m for m in MUTANTS if m.edits).product()
    assert product.reconcile is not Product().reconcile
    assert product.observe.Context is not Product().observe.Context
    forget(package_of(product))


def test_there_are_as_many_bugs_as_stories_were_promised_for() -> None:
    assert len(MUTANTS) >= 19
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    assert {m.scene for m in MUTANTS if m.scene} <= set(SCENES)
