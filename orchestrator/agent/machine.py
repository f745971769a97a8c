"""What the instance itself has to say: memory, disk, GPUs, and whether the kernel killed something for memory."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SMI_TIMEOUT_S = 10  # a driver in trouble makes nvidia-smi hang, which must not stop the heartbeat
_SMI_FIELDS = {
    "utilization.gpu": "utilization",
    "memory.used": "memory_used_mib",
    "memory.total": "memory_total_mib",
    "temperature.gpu": "temperature_c",
    "power.draw": "power_w",
}
_CGROUP = Path("/sys/fs/cgroup")


def disk_free_bytes(path: Path) -> int:
    """On the file system that really holds `path`, links followed."""
    return shutil.disk_usage(path.resolve()).free


def ram_used_gb() -> float | None:
    """What the container uses where it has a limit, else what the machine uses."""
    limit, used = _integer(_CGROUP / "memory.max"), _integer(_CGROUP / "memory.current")
    if limit is not None and used is not None:
        return round(used / 1e9, 2)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if len(line.split()) > 1}
        return round((kib["MemTotal"] - kib["MemAvailable"]) * 1024 / 1e9, 2)
    except (OSError, KeyError, ValueError):
        return None


def oom_kills() -> int:
    """How often the kernel has killed a process of this container for memory."""
    for name in ("memory.events", "memory/memory.oom_control"):
        try:
            lines = (_CGROUP / name).read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        for line in lines:
            word, _, count = line.partition(" ")
            if word == "oom_kill" and count.strip().isdigit():
                return int(count)
    return 0


def gpus() -> tuple[Mapping[str, float], ...]:
    """One reading per GPU; empty where there is none, or where the driver does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = [program, f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            query, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(_reading(line) for line in answer.stdout.splitlines() if line.strip())


def _reading(line: str) -> dict[str, float]:
    reading = {}
    for name, text in zip(_SMI_FIELDS.values(), line.split(","), strict=False):
        try:
            reading[name] = float(text)
        except ValueError:
            continue  # "[N/A]"
    return reading


def _integer(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
