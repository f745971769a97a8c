"""Vast.ai's names of GPUs in our canonical spelling, and how much memory they really have.

Names after the cache of the official CLI and gpuhunt 0.1.34; where one name stands for two cards, memory decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

HELD_BACK = (
    0.01  # of the memory on the box, by the driver: 24564 MB of 24 GiB, 81559 of 80; 46068 of 48 is ECC, and real
)

_KNOWN = {
    "A100 PCIE": "A100",
    "A100 SXM4": "A100",
    "A100X": "A100",
    "H100 PCIE": "H100",
    "H100 SXM": "H100-SXM",
    "H100 NVL": "H100NVL",
    "H200 NVL": "H200NVL",
    "GH200 SXM": "GH200",
    "B300 PC": "B300",
    "Titan V": "TitanV",
    "Titan RTX": "TitanRTX",
    "Titan Xp": "TitanXp",
    "RTX 2000Ada": "RTX2000Ada",
    "RTX 4000Ada": "RTX4000Ada",
    "RTX 4500Ada": "RTX4500Ada",
    "RTX 5000Ada": "RTX5000Ada",
    "RTX 5880Ada": "RTX5880Ada",
    "RTX 6000Ada": "RTX6000Ada",
}
_SUPER = re.compile(r"^RTX (\d{4})( Ti)?S$|^RTX (\d{4})S( Ti)?$|^RTX (\d{4})S$")
_WORKSTATION = re.compile(r"^RTX (A\d{4})$")  # RTX A6000, which others call A6000
_QUADRO = re.compile(r"^Q(?:uadro)? (RTX \d{4})$")
_PRO = re.compile(r"^RTX PRO (\d{4})\b.*$")  # RTX PRO 6000 S, RTX PRO 6000 WS: one chip, two boxes
_EIGHTY_GB_MB = 61_440  # half way between the two sizes of an A100


def canonical(name: str, ram_mb: float = 0) -> str:
    """As we spell it. A card that is not known here keeps Vast.ai's name, without blanks."""
    name = " ".join(name.split())
    found = _KNOWN.get(name) or _by_rule(name) or name.removeprefix("Tesla ").replace(" ", "")
    if found == "A100" and ram_mb:
        return "A100-80GB" if ram_mb > _EIGHTY_GB_MB else "A100-40GB"
    return found


def spellings(names: Iterable[str]) -> list[str] | None:
    """Every name under which Vast.ai may list the wanted cards; None when one of them is not known here."""
    found: set[str] = set()
    for name in names:
        theirs = {listed for listed in LISTED if name in (canonical(listed), canonical(listed, 40_960))}
        theirs |= {listed for listed in LISTED if name == canonical(listed, 81_920)}
        if not theirs:
            return None
        found |= theirs
    return sorted(found)


def vram_gib(ram_mb: float) -> float:
    """Memory per GPU: what the host reports, or the whole number of GiB on the box where the driver keeps the rest.

    So "24 GiB" finds a 4090 that reports 24564 MB, and does not find an A10 that reports 23028.
    """
    gib = ram_mb / 1024
    whole = math.ceil(gib - 1e-9)
    return float(whole) if gib >= whole * (1 - HELD_BACK) else round(gib, 2)


def least_ram_mb(wanted_gib: float) -> int:
    """The smallest report that may still be of a card with so much memory."""
    return math.floor(wanted_gib * 1024 * (1 - HELD_BACK))


def _by_rule(name: str) -> str | None:
    if match := _SUPER.match(name):
        number, titan = match[1] or match[3] or match[5], match[2] or match[4] or ""
        return f"RTX{number}{titan.strip()}SUPER"
    for pattern, form in ((_WORKSTATION, "{}"), (_QUADRO, "Quadro{}"), (_PRO, "RTXPRO{}")):
        if match := pattern.match(name):
            return form.format(match[1].replace(" ", ""))
    return None


LISTED = (
    *_KNOWN,
    *("RTX 2060", "RTX 2070", "RTX 2080", "RTX 2080 Ti"),
    *("RTX 3060", "RTX 3060 Ti", "RTX 3070", "RTX 3070 Ti", "RTX 3080", "RTX 3080 Ti", "RTX 3090", "RTX 3090 Ti"),
    *("RTX 4060", "RTX 4060 Ti", "RTX 4070", "RTX 4070S", "RTX 4070 Ti", "RTX 4070S Ti", "RTX 4080", "RTX 4080S"),
    *("RTX 4090", "RTX 4090D", "RTX 5060", "RTX 5060 Ti", "RTX 5070", "RTX 5070 Ti", "RTX 5080", "RTX 5090"),
    *("RTX A2000", "RTX A4000", "RTX A4500", "RTX A5000", "RTX A6000", "RTX PRO 4500", "RTX PRO 6000"),
    *("RTX PRO 6000 S", "RTX PRO 6000 WS", "Q RTX 6000", "Q RTX 8000", "Tesla T4", "Tesla P40", "Tesla P100"),
    *("Tesla V100", "A10", "A30", "A40", "L4", "L40", "L40S", "H200", "B200", "B300"),
)
"""Names that Vast.ai is known to list: only those can be asked for."""
