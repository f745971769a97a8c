"""Names of GPUs as people and marketplaces write them, in one spelling: `NVIDIA GeForce RTX 4090` is `RTX4090`."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Spelt as gpuhunt 0.1.34 does; the adapters turn their marketplace's names into the same.
KNOWN = (
    *("RTX2060", "RTX2070", "RTX2080", "RTX2080Ti", "RTX3060", "RTX3060Ti", "RTX3070", "RTX3070Ti", "RTX3080"),
    *("RTX3080Ti", "RTX3090", "RTX3090Ti", "RTX4060", "RTX4060Ti", "RTX4070", "RTX4070SUPER", "RTX4070Ti"),
    *("RTX4070TiSUPER", "RTX4080", "RTX4080SUPER", "RTX4090", "RTX4090D", "RTX5060", "RTX5060Ti", "RTX5070"),
    *("RTX5070Ti", "RTX5080", "RTX5090", "A2000", "A4000", "A4500", "A5000", "A6000", "RTX2000Ada", "RTX4000Ada"),
    *("RTX4500Ada", "RTX5000Ada", "RTX5880Ada", "RTX6000Ada", "RTXPRO4500", "RTXPRO6000", "QuadroRTX6000"),
    *("QuadroRTX8000", "TitanV", "TitanRTX", "TitanXp", "T4", "P40", "P100", "V100", "A10", "A30", "A40", "L4", "L40"),
    *("L40S", "A100-40GB", "A100-80GB", "H100", "H100-SXM", "H100NVL", "H200", "H200NVL", "GH200", "B200", "B300"),
)
# One name for several cards, each of which is meant.
FAMILIES = {"a100": ("A100-40GB", "A100-80GB"), "a100x": ("A100-80GB",)}
_NOISE = re.compile(r"nvidia|geforce|tesla|generation|blackwell|sxm[456]?(?=80gb)")
_WORKSTATION = re.compile(r"^rtx(a\d{4})$")
_BARE = re.compile(r"^[2-5]0[5-9]0")  # 4090, 3080ti


def canonical(names: Iterable[str]) -> tuple[str, ...]:
    """Every card that the names mean. A name that is not known is kept, without its blanks."""
    return tuple(dict.fromkeys(one for name in names for one in _meant(name)))


def _meant(name: str) -> tuple[str, ...]:
    folded = _NOISE.sub("", _folded(name))
    folded = _WORKSTATION.sub(r"\1", folded)
    if _BARE.match(folded):
        folded = f"rtx{folded}"
    if folded in FAMILIES:
        return FAMILIES[folded]
    return (_BY_FOLDED.get(folded) or "".join(name.split()),)


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_BY_FOLDED = {_folded(name): name for name in KNOWN}
