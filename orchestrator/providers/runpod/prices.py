"""What RunPod charges beside the GPU, after docs.runpod.io/pods/pricing (2026): disk by the hour, traffic free."""

from __future__ import annotations

from decimal import Decimal

_HOURS_PER_MONTH = 720  # thirty days: of two readings of "per month", the dearer one
_RUNNING_USD_PER_GB_MONTH = Decimal("0.10")  # container disk and volume alike; container disk is free while stopped
_MICRO = Decimal("0.000001")
DEFAULT_DISK_GB = 20  # container disk where nobody says: room for the trainer's packages and a small model


def disk_gb(wanted: float) -> int:
    """The container disk to rent, in whole GB."""
    return -int(-wanted // 1) if wanted > 0 else DEFAULT_DISK_GB


def with_disk(gpu_usd_per_hour: Decimal, disk: int) -> Decimal:
    """Everything that runs by the hour while a pod runs."""
    return (gpu_usd_per_hour + disk * _RUNNING_USD_PER_GB_MONTH / _HOURS_PER_MONTH).quantize(_MICRO)
