"""The pods of the fake RunPod: what each of them is, and what the marketplace says of it from one moment to the next."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

DISK_USD_PER_GB_HOUR = Decimal("0.10") / 720  # docs.runpod.io/pods/pricing: per GB and month, while it runs
INNER_ADDRESS = "100.65.0.101"  # of RunPod's own network; nothing outside reaches it

# What a pod shows while it comes up, in this order, before its SSH can be reached from outside.
STAGES = ("provisioning", "starting", "no runtime", "no ports", "empty ports", "web only", "private ssh")


@dataclass
class Pod:
    """One pod."""

    pod_id: str
    body: Mapping[str, Any]  # of the request that made it
    created_at: datetime
    cost: Decimal  # of its GPUs per hour
    gpu_count: int
    name: str
    endpoint: tuple[str, int]  # where its SSH really listens
    key: str = field(default_factory=lambda: f"rpa_pod{secrets.token_hex(12)}")  # opens this pod alone
    is_stopped: bool = False
    is_broken: bool = False  # its container cannot be started
    dies_at: datetime | None = None  # it is being destroyed, and still shown until then

    @property
    def disk_gb(self) -> int:
        return int(self.body.get("disk", 10))

    def environment(self, *, datacenter: str) -> dict[str, str]:
        """Of its container's first process."""
        return {
            **self.body.get("env", {}),
            "RUNPOD_POD_ID": self.pod_id,
            "RUNPOD_API_KEY": self.key,
            "RUNPOD_POD_HOSTNAME": f"{self.pod_id}-64410065",
            "RUNPOD_DC_ID": datacenter,
            "RUNPOD_GPU_COUNT": str(self.gpu_count),
            "RUNPOD_PUBLIC_IP": self.endpoint[0],
            "RUNPOD_TCP_PORT_22": str(self.endpoint[1]),
        }

    def told(self, now: datetime, *, stage_s: float, datacenter: str) -> dict[str, Any]:
        """The `Pod` of the API. An exited pod keeps showing the ports it had."""
        stage = self._stage(now, stage_s)
        status = self._status(stage)
        machine_known = stage != "provisioning"
        is_up = status == "RUNNING" and stage == ""
        host, port = self.endpoint
        direct = {"host": host, "port": port, "username": "root", "command": f"ssh root@{host} -p {port}"}
        proxy_user = f"{self.pod_id}-64411eb2"
        proxy = {
            "host": "ssh.runpod.io",
            "port": 22,
            "username": proxy_user,
            "command": f"ssh {proxy_user}@ssh.runpod.io",
        }
        return {
            "id": self.pod_id,
            "name": self.name,
            "image": self.body["image"],
            "args": self.body.get("args", ""),
            "disk": self.disk_gb,
            "ports": self.body.get("ports", []),
            "env": self.body.get("env", {}),
            "registry": None,
            "status": status,
            "actions": ["start", "terminate"] if status != "RUNNING" else ["stop", "restart", "terminate"],
            "mounts": {},
            "gpu": {"id": self.body["gpu"]["id"], "count": self.gpu_count},
            "cloud": self.body.get("cloud", "SECURE"),
            "dataCenterId": datacenter if machine_known else None,
            "cudaVersion": "12.8" if machine_known else None,
            "ssh": {"proxy": proxy if machine_known else None, "direct": direct if is_up else None},
            "template": None,
            "cost": 0.0 if status in ("EXITED", "TERMINATED") else float(self.cost),
            "locked": False,
            "globalNetworking": {"enabled": False},
            "runtime": self._runtime(stage, status),
            "createdAt": self.created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "startedAt": None if stage else self.created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def _stage(self, now: datetime, stage_s: float) -> str:
        age_s = (now - self.created_at).total_seconds()
        number = int(age_s / stage_s) if stage_s > 0 else len(STAGES)
        return STAGES[number] if number < len(STAGES) else ""

    def _status(self, stage: str) -> str:
        if self.dies_at is not None:
            return "TERMINATED"
        if self.is_stopped:
            return "EXITED"
        if self.is_broken:
            return "ERROR"
        return {"provisioning": "PROVISIONING", "starting": "STARTING"}.get(stage, "RUNNING")

    def _runtime(self, stage: str, status: str) -> Any:
        if stage in ("provisioning", "starting", "no runtime") or status == "TERMINATED":
            return None
        web = {"private": 8888, "public": 60141, "type": "http", "ip": INNER_ADDRESS}
        inner = {"private": 22, "public": 60142, "type": "tcp", "ip": INNER_ADDRESS}
        public = {"private": 22, "public": self.endpoint[1], "type": "tcp", "ip": self.endpoint[0]}
        ports: Mapping[str, Sequence[Any]] = {"empty ports": [], "web only": [web], "private ssh": [web, inner]}
        if stage == "no ports":
            return {"uptime": 1}
        return {"uptime": 60, "gpus": [], "ports": list(ports.get(stage, [web, inner, public]))}


def gpu(
    gpu_id: str,
    memory: int,
    secure: float | None,
    community: float | None,
    *,
    stock: str = "HIGH",
    most: int = 8,
    manufacturer: str = "NVIDIA",
    cuda: Sequence[str] = ("12.4", "12.8"),
) -> dict[str, Any]:
    """A row of the catalogue, as it is told when availability is asked for."""
    row: dict[str, Any] = {
        "id": gpu_id,
        "name": gpu_id.removeprefix("NVIDIA ").removeprefix("GeForce "),
        "pool": None,
        "manufacturer": manufacturer,
        "memory": memory,
        "secure": secure is not None,
        "community": community is not None,
        "price": {"secure": secure, "community": community},
        "maxCount": {"secure": most if secure else 0, "community": most if community else 0},
        "availability": stock,
    }
    if stock != "NONE":
        row["dataCenters"] = [{"id": "US-KS-2", "name": "US Kansas 2", "availability": stock}]
        if cuda:
            row["cudaVersions"] = [{"version": version, "available": True} for version in cuda]
    return row


def usual_catalog() -> list[dict[str, Any]]:
    """In no order, as the real one. Prices are those of August 2026."""
    return [
        gpu("NVIDIA A100 80GB PCIe", 80, 1.64, 1.19, stock="LOW"),
        gpu("NVIDIA GeForce RTX 4090", 24, 0.69, 0.34),
        gpu("NVIDIA L4", 24, 0.43, None),
        gpu("AMD Instinct MI300X OAM", 192, 2.49, 2.49, manufacturer="AMD", cuda=()),
        gpu("NVIDIA RTX A4000", 16, 0.25, 0.17, most=4),
        gpu("NVIDIA H100 PCIe", 80, 2.39, 1.99, stock="NONE"),
        gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb", 24, 0.58, None),
    ]


def big_catalog(rows: int) -> list[dict[str, Any]]:
    """So many types, each sold in both clouds: twice as many offers."""
    return [gpu(f"NVIDIA Imaginary {n}", 24, 0.5 + n / 1000, 0.3 + n / 1000) for n in range(rows)]
