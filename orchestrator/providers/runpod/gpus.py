"""RunPod's names of GPUs in our canonical spelling, what they can do, and how much memory they have.

Names and memory after RunPod's table of GPU types (docs.runpod.io/references/gpu-types, February 2026); compute
capability after gpuhunt 0.1.34.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """What we know of a type; 0 stands for unknown."""

    name: str
    vram_gib: float = 0.0
    compute_capability: float = 0.0


_VOLTA, _A100, _AMPERE, _ADA, _HOPPER, _B200, _BLACKWELL = 7.0, 8.0, 8.6, 8.9, 9.0, 10.0, 12.0

_KNOWN = {
    "NVIDIA GeForce RTX 3070": Gpu("RTX3070", 8, _AMPERE),
    "NVIDIA GeForce RTX 3080": Gpu("RTX3080", 10, _AMPERE),
    "NVIDIA GeForce RTX 3080 Ti": Gpu("RTX3080Ti", 12, _AMPERE),
    "NVIDIA GeForce RTX 3090": Gpu("RTX3090", 24, _AMPERE),
    "NVIDIA GeForce RTX 3090 Ti": Gpu("RTX3090Ti", 24, _AMPERE),
    "NVIDIA GeForce RTX 4070 Ti": Gpu("RTX4070Ti", 12, _ADA),
    "NVIDIA GeForce RTX 4080": Gpu("RTX4080", 16, _ADA),
    "NVIDIA GeForce RTX 4080 SUPER": Gpu("RTX4080SUPER", 16, _ADA),
    "NVIDIA GeForce RTX 4090": Gpu("RTX4090", 24, _ADA),
    "NVIDIA GeForce RTX 5080": Gpu("RTX5080", 16, _BLACKWELL),
    "NVIDIA GeForce RTX 5090": Gpu("RTX5090", 32, _BLACKWELL),
    "NVIDIA RTX A2000": Gpu("A2000", 6, _AMPERE),
    "NVIDIA RTX A4000": Gpu("A4000", 16, _AMPERE),
    "NVIDIA RTX A4500": Gpu("A4500", 20, _AMPERE),
    "NVIDIA RTX A5000": Gpu("A5000", 24, _AMPERE),
    "NVIDIA RTX A6000": Gpu("A6000", 48, _AMPERE),
    "NVIDIA RTX 2000 Ada Generation": Gpu("RTX2000Ada", 16, _ADA),
    "NVIDIA RTX 4000 Ada Generation": Gpu("RTX4000Ada", 20, _ADA),
    "NVIDIA RTX 4000 SFF Ada Generation": Gpu("RTX4000Ada", 20, _ADA),
    "NVIDIA RTX 5000 Ada Generation": Gpu("RTX5000Ada", 32, _ADA),
    "NVIDIA RTX 6000 Ada Generation": Gpu("RTX6000Ada", 48, _ADA),
    "NVIDIA RTX PRO 4500 Blackwell": Gpu("RTXPRO4500", 32, _BLACKWELL),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": Gpu("RTXPRO6000", 96, _BLACKWELL),
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": Gpu("RTXPRO6000", 96, _BLACKWELL),
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": Gpu("RTXPRO6000", 96, _BLACKWELL),
    "NVIDIA A30": Gpu("A30", 24, _A100),
    "NVIDIA A40": Gpu("A40", 48, _AMPERE),
    "NVIDIA L4": Gpu("L4", 24, _ADA),
    "NVIDIA L40": Gpu("L40", 48, _ADA),
    "NVIDIA L40S": Gpu("L40S", 48, _ADA),
    "Tesla V100-PCIE-16GB": Gpu("V100", 16, _VOLTA),
    "Tesla V100-FHHL-16GB": Gpu("V100", 16, _VOLTA),
    "Tesla V100-SXM2-16GB": Gpu("V100", 16, _VOLTA),
    "Tesla V100-SXM2-32GB": Gpu("V100", 32, _VOLTA),
    "NVIDIA A100 80GB PCIe": Gpu("A100-80GB", 80, _A100),
    "NVIDIA A100-SXM4-80GB": Gpu("A100-80GB", 80, _A100),
    "NVIDIA H100 PCIe": Gpu("H100", 80, _HOPPER),
    "NVIDIA H100 80GB HBM3": Gpu("H100-SXM", 80, _HOPPER),
    "NVIDIA H100 NVL": Gpu("H100NVL", 94, _HOPPER),
    "NVIDIA H200": Gpu("H200", 141, _HOPPER),
    "NVIDIA H200 NVL": Gpu("H200NVL", 143, _HOPPER),
    "NVIDIA B200": Gpu("B200", 180, _B200),
    "NVIDIA B300 SXM6 AC": Gpu("B300", 288, _B200),
}
_MAKER = re.compile(r"^(NVIDIA|Tesla|GeForce)\s+")


def known(gpu_id: str) -> Gpu:
    """What is known of a type. A slice of a GPU is never taken for the whole; a new type keeps RunPod's name."""
    if gpu_id in _KNOWN:
        return _KNOWN[gpu_id]
    if " MIG" in gpu_id:  # "NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb"
        whole = known(gpu_id.split(" MIG", 1)[0])
        return Gpu(f"{whole.name}-MIG", compute_capability=whole.compute_capability)
    name = gpu_id
    while _MAKER.match(name):
        name = _MAKER.sub("", name)
    return Gpu(name.replace(" ", ""))
