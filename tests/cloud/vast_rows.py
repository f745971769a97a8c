"""What the fake Vast.ai keeps of its market, and the JSON that it makes of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tests.cloud.machines import GOOD, Quirks
from tests.cloud.wire import Answer, Refusal

MONTH_H = 720
NEEDS = ("num_gpus", "gpu_ram", "disk_space", "cuda_max_good", "duration", "dph_total", "machine_id", "reliability2")
FILTERS = frozenset(
    {
        *NEEDS,
        "gpu_name",
        "verified",
        "external",
        "rentable",
        "rented",
        "ask_contract_id",
        "min_bid",
        "direct_port_count",
    }
)
OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": lambda has, wants: has == wants,
    "neq": lambda has, wants: has != wants,
    "gt": lambda has, wants: has > wants,
    "gte": lambda has, wants: has >= wants,
    "lt": lambda has, wants: has < wants,
    "lte": lambda has, wants: has <= wants,
    "in": lambda has, wants: has in wants,
    "notin": lambda has, wants: has not in wants,
}
_ids = itertools.count(11_000_001)


@dataclass
class Ask:
    """Something on the market. Its price may change, somebody may be bidding for it already, and its host may be bad."""

    gpu_name: str = "RTX 4090"
    gpu_ram: float = 24_564
    num_gpus: int = 1
    usd: float = 0.40  # on demand, without disk
    min_bid: float = 0.20
    storage_cost: float = 0.144  # $ per GB and month: 0.0002 by the hour
    inet_down_cost: float = 0.0
    inet_up_cost: float = 0.0
    machine_id: int = 0  # 0: one of its own
    score: float = 100.0
    top_bid: float = 0.0  # what somebody else has bid; the listed `min_bid` does not tell
    slots: int = 1  # how often it can be rented at once
    price_at_create: float | None = None  # it has become dearer since the search
    boot: str = "running"  # what becomes of it: running | loading | oci | exited | offline | unknown
    boot_s: float = 0.0
    quirks: Quirks = GOOD
    fields: dict[str, Any] = field(default_factory=dict)  # of its row, over everything else
    id: int = field(default_factory=lambda: next(_ids))

    def row(self, kind: str, disk_gb: float) -> dict[str, Any]:
        """As a search answers. Asked for bids, a market of 2026 repeats the floor as its `dph_base`."""
        base = self.min_bid if kind == "bid" else self.usd
        disk = disk_gb * self.storage_cost / MONTH_H
        return {
            "id": self.id, "ask_contract_id": self.id, "machine_id": self.machine_id or self.id + 1_000_000,
            "host_id": 125_418, "bundle_id": 1_598_539_855, "gpu_name": self.gpu_name, "gpu_ram": self.gpu_ram,
            "gpu_total_ram": self.gpu_ram * self.num_gpus, "num_gpus": self.num_gpus, "gpu_arch": "nvidia",
            "gpu_frac": 0.25, "cpu_arch": "amd64", "cpu_cores": 96, "cpu_cores_effective": 24.0, "cpu_ram": 257_572,
            "compute_cap": 890, "cuda_max_good": 12.8, "driver_version": "570.86.15", "direct_port_count": 249,
            "disk_space": 1607.875, "disk_bw": 2545.29, "dlperf": 106.6, "score": self.score,
            "dph_base": base, "dph_total": base + disk, "min_bid": self.min_bid, "is_bid": kind == "bid",
            "storage_cost": self.storage_cost, "storage_total_cost": disk, "inet_down": 805.9, "inet_up": 777.7,
            "inet_down_cost": self.inet_down_cost, "inet_up_cost": self.inet_up_cost, "duration": 13_356_528.56,
            "end_date": 1_735_707_781.0, "start_date": 1_722_348_655.847, "external": None, "verified": None,
            "verification": "verified", "vericode": 1, "geolocation": "Guangxi, CN", "hosting_type": 0,
            "hostname": None, "reliability": 0.9700835, "reliability2": 0.9700835, "rentable": True, "rented": False,
            "static_ip": False, "public_ipaddr": "203.0.113.191", "webpage": None, "time_remaining": "",
            **self.fields,
        }  # fmt: skip

    def matches(self, filters: Mapping[str, Mapping[str, Any]], kind: str, disk_gb: float) -> bool:
        row = {**self.row(kind, disk_gb), "verified": self.fields.get("verification", "verified") == "verified"}
        row["external"] = bool(row["external"])
        return all(
            OPERATORS[operator](row.get(name), wanted)
            for name, conditions in filters.items()
            for operator, wanted in conditions.items()
        )


@dataclass
class Contract:
    """Something rented."""

    id: int
    ask: Ask
    label: str | None
    image: str
    disk_gb: float
    onstart: str
    env: Mapping[str, str]
    api_key: str
    created_at: datetime
    is_bid: bool
    usd: float  # without disk
    wanted: str = "running"
    is_booted: bool = False
    is_offline: bool = False
    has_exited: bool = False
    gone_at: datetime | None = None
    keys: list[str] = field(default_factory=list)
    endpoint: tuple[str, int] | None = None

    def disk_usd(self) -> float:
        return self.disk_gb * self.ask.storage_cost / MONTH_H

    def row(self, now: datetime) -> dict[str, Any]:
        """As `show instance` answers: half of it null at first, the ports null, then a list, then a dict."""
        actual, message = self.status(now)
        age_s = (now - self.created_at).total_seconds()
        ports: Any = None if actual is None else []
        if self.endpoint:  # what was there once is told even while it is stopped
            ports = {"22/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(self.endpoint[1])}]}
        state = "running" if self.wanted == "running" else "stopped"
        total = self.usd + self.disk_usd()
        idle = {"gpuCostPerHour": 0, "diskHour": self.disk_usd(), "totalHour": self.disk_usd()}
        return {
            "id": self.id, "label": self.label, "actual_status": actual, "cur_state": state, "next_state": state,
            "intended_status": self.wanted, "status_msg": message, "machine_id": self.ask.row("bid", 0)["machine_id"],
            "host_id": 307_092, "machine_dir_ssh_port": 51_199, "image_uuid": self.image, "image_args": [],
            "image_runtype": "ssh_direc ssh_proxy", "onstart": self.onstart, "extra_env": None, "ports": ports,
            "ssh_host": None, "ssh_idx": None, "ssh_port": None, "start_date": self.created_at.timestamp(),
            "public_ipaddr": self.endpoint[0] if self.endpoint else None, "gpu_name": self.ask.gpu_name,
            "gpu_ram": self.ask.gpu_ram, "num_gpus": self.ask.num_gpus, "is_bid": self.is_bid,
            "min_bid": self.ask.min_bid, "dph_base": self.usd, "dph_total": total, "disk_space": self.disk_gb,
            "storage_cost": self.ask.storage_cost, "storage_total_cost": self.disk_usd(), "instance": idle,
            "search": {**idle, "gpuCostPerHour": self.usd, "totalHour": total}, "uptime_mins": None,
            "duration": None if age_s < 1 else age_s, "template_id": None, "jupyter_token": "0" * 64,
            "inet_down_cost": self.ask.inet_down_cost, "inet_up_cost": self.ask.inet_up_cost,
        }  # fmt: skip

    def status(self, now: datetime) -> tuple[str | None, str | None]:
        """`actual_status` and `status_msg`."""
        if self.is_offline:
            return "offline", None
        if self.wanted == "stopped" or self.has_exited:
            return ("exited" if self.is_booted else "created"), None
        if self.is_booted:
            return "running", f"success, running {self.image}"
        if (now - self.created_at).total_seconds() < self.ask.boot_s / 2:
            return None, None
        if self.ask.boot == "oci":
            said = "failed to create shim task: OCI runtime create failed: unresolvable CDI devices"
            return "created", f"Error response from daemon: {said}"
        return ("loading" if self.ask.boot in ("running", "loading") else self.ask.boot), f"Pulling {self.image}"


def strangers() -> list[dict[str, Any]]:
    """Other people's and half-made instances, such as break a careless listing."""
    return [
        {"id": 1, "label": None, "start_date": None, "extra_env": None, "actual_status": None, "ports": None},
        {"id": 2, "label": "tune-demo", "start_date": None, "actual_status": "hibernating", "dph_total": "?"},
        {"id": 3, "label": "", "extra_env": [["A", "b"]], "ports": [8080], "cur_state": None, "new_field": {"a": 1}},
        {"id": 4, "label": 17, "is_bid": "perhaps", "machine_id": None, "ssh_port": "none", "start_date": "soon"},
    ]


def market(count: int, **fields: Any) -> list[Ask]:
    """So many asks, the cheapest of which has the lowest score: whoever reads one page by score does not see it."""
    usual = Ask(**fields)
    return [
        replace(usual, id=usual.id + n, usd=usual.usd + n * 0.001, min_bid=usual.min_bid + n * 0.001, score=100.0 + n)
        for n in range(count)
    ]


def bad(what: str) -> Refusal:
    return Refusal(
        Answer.json({"success": False, "error": "invalid_args", "msg": f"error 400: Invalid args: {what}"}, 400)
    )


def no_ask(ask_id: object, status: int) -> Refusal:
    if status == 404:
        text = f"error 404/3603: no_such_ask Instance type by id {ask_id} is not available."
        return Refusal(Answer.json({"success": False, "error": "invalid_args", "msg": text, "ask_id": ask_id}, 404))
    text = f"error 410/3907: no_such_ask Instance type {ask_id} is no longer available."
    return Refusal(Answer.json({"success": False, "error": "no_such_ask", "msg": text, "ask_id": ask_id}, 410))


def no_instance(contract_id: str) -> Refusal:
    text = f"error 404: Instance {contract_id} not found"
    return Refusal(Answer.json({"success": False, "error": "no_such_instance", "msg": text}, 404))
