"""A pod as RunPod tells it, and as an instance of ours."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime
from decimal import Decimal

from orchestrator.providers.runpod import prices
from orchestrator.providers.runpod.lenient import Answer, Maybe
from orchestrator.types import Instance, InstanceId, InstanceState

CONSOLE_URL = "https://console.runpod.io/pods"
SSH_PORT = 22
_STATES = {
    "PROVISIONING": InstanceState.STARTING,
    "STARTING": InstanceState.STARTING,
    "RUNNING": InstanceState.RUNNING,
    "EXITED": InstanceState.STOPPED,
    "ERROR": InstanceState.STOPPED,  # "container is in an unrecoverable error state"
    "TERMINATED": InstanceState.STOPPED,  # dying: only a 404 is gone
}


class _Port(Answer):
    private: Maybe[int] = None
    public: Maybe[int] = None
    type: Maybe[str] = None
    ip: Maybe[str] = None


class _Runtime(Answer):
    ports: Maybe[list[_Port]] = None


class _Endpoint(Answer):
    host: str
    port: int
    username: Maybe[str] = None


class _Ssh(Answer):
    direct: Maybe[_Endpoint] = None


class _Gpu(Answer):
    id: Maybe[str] = None
    count: Maybe[int] = None


class Pod(Answer):
    """`Pod` of OpenAPI 2.0.0. Only the id is insisted on: what has one may cost money."""

    id: str
    name: Maybe[str] = None
    status: Maybe[str] = None
    gpu: Maybe[_Gpu] = None
    cost: Maybe[Decimal] = None  # of its GPUs per hour; 0 when EXITED or TERMINATED
    disk: Maybe[int] = None
    runtime: Maybe[_Runtime] = None
    ssh: Maybe[_Ssh] = None
    createdAt: Maybe[datetime] = None  # noqa: N815 - their name


class _Pagination(Answer):
    hasNextPage: Maybe[bool] = None  # noqa: N815
    nextCursor: Maybe[str] = None  # noqa: N815


class PodPage(Answer):
    """`ListPodsResponse`. Its pagination is in no OpenAPI yet (August 2026); SkyPilot follows it since October."""

    pods: list[Pod]
    pagination: Maybe[_Pagination] = None


def instance(pod: Pod, *, provider: str) -> Instance:
    """What the rest of the program sees. Running means: it says so, and its SSH can be reached from here."""
    status = pod.status or ""
    state = _STATES.get(status, InstanceState.UNKNOWN)
    address = _address(pod) if state is InstanceState.RUNNING else {}  # an exited pod keeps showing its old ports
    says = status or "no status"
    if state is InstanceState.RUNNING and not address:
        state, says = InstanceState.STARTING, "RUNNING, without a public port for SSH yet"
    created = pod.createdAt
    return Instance(
        instance_id=InstanceId(pod.id),
        token=pod.name or "",
        provider=provider,
        state=state,
        usd_per_hour=prices.with_disk(pod.cost, pod.disk or 0) if pod.cost else Decimal(0),
        created_at=created.replace(tzinfo=UTC) if created and created.tzinfo is None else created,
        address=address,
        console_url=CONSOLE_URL,
        spot=False,
        says=says,
    )


def _address(pod: Pod) -> dict[str, str]:
    """The direct way. RunPod's proxy is not offered: it carries an interactive shell and no files."""
    direct = pod.ssh.direct if pod.ssh else None
    ports = (pod.runtime.ports if pod.runtime else None) or []
    found = [(p.ip, p.public) for p in ports if p.private == SSH_PORT and p.type == "tcp"]
    for host, port in [*([(direct.host, direct.port)] if direct else []), *found]:
        is_named = direct is not None and host == direct.host  # as the way in, by RunPod itself
        if host and port and 0 < port < 65536 and (is_named or _is_reachable(host)):
            user = (direct.username if direct else None) or "root"
            return {"direct_host": host, "direct_port": str(port), "user": user}
    return {}


def _is_reachable(host: str) -> bool:
    """Rows with 100.65.x.x are of RunPod's own network. This computer's own address is for rehearsals."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return bool(host.strip())  # a name
    return address.is_global or address.is_loopback
