"""One spelling for every GPU, whoever writes it."""

from __future__ import annotations

import pytest

from orchestrator.providers.runpod import gpus as runpod
from orchestrator.providers.vastai import gpus as vastai
from orchestrator.recipe.gpus import KNOWN, canonical


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("RTX 4090", ("RTX4090",)),
        ("rtx_4090", ("RTX4090",)),
        ("4090", ("RTX4090",)),
        ("3080 ti", ("RTX3080Ti",)),
        ("NVIDIA GeForce RTX 4090", ("RTX4090",)),
        ("RTX A6000", ("A6000",)),
        ("RTX 6000 Ada Generation", ("RTX6000Ada",)),
        ("RTX PRO 6000", ("RTXPRO6000",)),
        ("A100", ("A100-40GB", "A100-80GB")),
        ("A100 80GB", ("A100-80GB",)),
        ("A100-SXM4-80GB", ("A100-80GB",)),
        ("H100 SXM", ("H100-SXM",)),
        ("h100", ("H100",)),
        ("Tesla T4", ("T4",)),
        ("L40S", ("L40S",)),
        ("Some New Card", ("SomeNewCard",)),
    ],
)
def test_people_write_it_as_they_like(written: str, means: tuple[str, ...]) -> None:
    assert canonical([written]) == means


def test_several_names_are_several_cards_each_once() -> None:
    assert canonical(["4090", "RTX 4090", "L4"]) == ("RTX4090", "L4")
    assert canonical([]) == ()


@pytest.mark.parametrize("name", KNOWN)
def test_the_one_spelling_means_itself(name: str) -> None:
    assert canonical([name]) == (name,)


def test_both_marketplaces_spell_every_card_they_know_in_this_way() -> None:
    """Otherwise a recipe that names it would find it at neither, or at one of them only."""
    theirs = {gpu.name for gpu in runpod._KNOWN.values()}
    theirs |= {vastai.canonical(name, ram) for name in vastai.LISTED for ram in (40_960, 81_920)}
    assert theirs <= set(KNOWN)
