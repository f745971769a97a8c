"""`nvidia-smi` of a fake machine: answers what its marketplace says is plugged in.

    python nvidia_smi.py GPUS.json --query-gpu=name,memory.total --format=csv,noheader,nounits
    python nvidia_smi.py GPUS.json --query-compute-apps=pid,used_memory --format=csv,noheader
    python nvidia_smi.py GPUS.json -L

Needs the standard library only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_UNITS = {"memory.total": "MiB", "memory.used": "MiB", "memory.free": "MiB", "utilization.gpu": "%"}
_UNKNOWN_FIELD = 2  # as the real one exits


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    name: str = "NVIDIA GeForce RTX 4090"
    memory_mib: int = 24564
    used_mib: int = 1
    driver: str = "570.86.15"
    cuda: str = "12.8"
    compute_capability: str = "8.9"
    apps_mib: tuple[int, ...] = ()  # what programs of other people use


def main(argv: Sequence[str]) -> int:
    told = json.loads(Path(argv[0]).read_text())
    gpus = told["gpus"]
    options = {key: value for key, _, value in (word.partition("=") for word in argv[1:])}
    wants = [word.strip() for word in options.get("--format", "csv").split(",")]
    if told["fails"]:
        print(told["fails"])
        return 9
    if not gpus:
        print("No devices were found")
        return 6
    if "-L" in options or "--list-gpus" in options:
        print("\n".join(f"GPU {n}: {gpu['name']} (UUID: {_uuid(n)})" for n, gpu in enumerate(gpus)))
        return 0
    if query := options.get("--query-gpu"):
        return _table([_row(n, gpus) for n in range(len(gpus))], query, wants)
    if query := options.get("--query-compute-apps"):
        apps = [(n, mib) for n, gpu in enumerate(gpus) for mib in gpu["apps_mib"]]
        rows = [
            {"pid": str(4000 + i), "process_name": "xmrig", "used_memory": str(mib), "used_gpu_memory": str(mib), "gpu_uuid": _uuid(n)}
            for i, (n, mib) in enumerate(apps)
        ]  # fmt: skip
        return _table(rows, query, wants)
    print(
        f"| NVIDIA-SMI {gpus[0]['driver']}   Driver Version: {gpus[0]['driver']}   CUDA Version: {gpus[0]['cuda']}  |"
    )
    return 0


def _row(n: int, gpus: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    gpu = gpus[n]
    return {
        "index": str(n),
        "count": str(len(gpus)),
        "name": gpu["name"],
        "gpu_name": gpu["name"],
        "uuid": _uuid(n),
        "gpu_uuid": _uuid(n),
        "memory.total": str(gpu["memory_mib"]),
        "memory.used": str(gpu["used_mib"]),
        "memory.free": str(gpu["memory_mib"] - gpu["used_mib"]),
        "driver_version": gpu["driver"],
        "compute_cap": gpu["compute_capability"],
        "utilization.gpu": "0",
        "temperature.gpu": "35",
        "power.draw": "[N/A]",
    }


def _table(rows: Sequence[Mapping[str, str]], query: str, wants: Sequence[str]) -> int:
    fields = [name.strip() for name in query.split(",")]
    known = set(rows[0]) if rows else set(fields)
    for name in fields:
        if name not in known:
            print(f'Field "{name}" is not a valid field to query.')
            return _UNKNOWN_FIELD
    units = {} if "nounits" in wants else _UNITS | {"used_memory": "MiB", "used_gpu_memory": "MiB"}
    if "noheader" not in wants:
        print(", ".join(f"{name} [{units[name]}]" if name in units else name for name in fields))
    for row in rows:
        print(", ".join(f"{row[name]} {units[name]}" if name in units else row[name] for name in fields))
    return 0


def _uuid(n: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{n:012d}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
