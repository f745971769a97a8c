"""Reading Vast.ai's rows: what must be there is insisted on; what may be absent, null or odd is None.

Half-made instances have null in many places (vastai 1.9.1's own `show_instance` raises TypeError over them), `ports`
has been seen as a list, a dict and null, and one strange row must not hide the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def _or_none(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError:
        return None


Maybe = Annotated[T | None, WrapValidator(_or_none)]
"""A field that nothing depends on: a surprise in it must not hide an instance that costs money."""
_Amount = Maybe[Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]]


class _Row(BaseModel):
    """Unknown fields are passed over: the API grows."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Ask(_Row):
    """What can be rented: a row of `POST /api/v0/bundles/`."""

    id: int
    machine_id: Maybe[int] = None
    gpu_name: Maybe[str] = None
    gpu_arch: Maybe[str] = None
    cpu_arch: Maybe[str] = None
    num_gpus: Maybe[int] = None
    gpu_ram: Maybe[float] = None  # MB per GPU
    dph_base: _Amount = None  # $/h without disk; in answers to a bid search of 2026 it repeats `min_bid`
    dph_total: _Amount = None
    min_bid: _Amount = None  # $/h per machine, without disk
    storage_cost: _Amount = None  # $ per GB and month
    inet_down_cost: _Amount = None  # $ per GB
    inet_up_cost: _Amount = None
    inet_down: Maybe[float] = None  # Mb/s
    inet_up: Maybe[float] = None
    disk_space: Maybe[float] = None  # GB free
    cpu_ram: Maybe[float] = None  # MB of the whole machine
    cpu_cores: Maybe[float] = None
    cpu_cores_effective: Maybe[float] = None
    compute_cap: Maybe[int] = None  # 890 is 8.9
    cuda_max_good: Maybe[float] = None
    reliability2: Maybe[float] = None
    geolocation: Maybe[str] = None  # "Guangxi, CN"
    duration: Maybe[float] = None  # seconds until the host's own contract ends
    verification: Maybe[str] = None
    rentable: Maybe[bool] = None
    rented: Maybe[bool] = None
    external: Maybe[bool] = None


class Contract(_Row):
    """What is rented: a row of `GET /api/v1/instances/`."""

    id: int
    label: Maybe[str] = None
    actual_status: Maybe[str] = None
    cur_state: Maybe[str] = None
    next_state: Maybe[str] = None
    intended_status: Maybe[str] = None
    status_msg: Maybe[str] = None
    machine_id: Maybe[int] = None
    num_gpus: Maybe[int] = None
    is_bid: Maybe[bool] = None
    dph_total: _Amount = None
    start_date: Maybe[float] = None
    public_ipaddr: Maybe[str] = None
    ports: Any = None
    ssh_host: Maybe[str] = None
    ssh_port: Maybe[int] = None


class ChargeItem(_Row):
    """A part of a charge: `gpu`, `disk`, `bwd` and `bwu` (bandwidth down and up)."""

    type: Maybe[str] = None
    amount: Decimal


class Charge(_Row):
    """What one contract cost within the asked days: a row of `GET /api/v0/charges/`."""

    source: str  # "instance-12345678"
    amount: Decimal
    items: Maybe[list[ChargeItem]] = None


def read(model: type[M], row: Any) -> M | None:
    """None for what is no such row."""
    try:
        return model.model_validate(row)
    except ValidationError:
        return None


def read_all(model: type[M], rows: Iterable[Any]) -> list[M]:
    """Those that are such rows."""
    return [found for row in rows if (found := read(model, row)) is not None]
