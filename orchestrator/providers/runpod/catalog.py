"""RunPod's catalogue as offers: one per GPU type and cloud that has stock for the wanted number of GPUs."""

from __future__ import annotations

from decimal import Decimal

from orchestrator.providers.runpod import prices
from orchestrator.providers.runpod.gpus import known
from orchestrator.providers.runpod.lenient import Answer, Maybe
from orchestrator.types import Offer, Requirements

CLOUDS = ("SECURE", "COMMUNITY")  # there is no ALL any more; a pod is rented in one of them
_NO_STOCK = "NONE"


class _Prices(Answer):
    secure: Maybe[Decimal] = None  # per GPU and hour; null: not sold there
    community: Maybe[Decimal] = None


class _Counts(Answer):
    secure: Maybe[int] = None
    community: Maybe[int] = None


class _DataCenter(Answer):
    id: str
    availability: Maybe[str] = None


class _Cuda(Answer):
    version: str
    available: Maybe[bool] = None


class GpuType(Answer):
    """`GpuType` of OpenAPI 2.0.0."""

    id: str
    manufacturer: Maybe[str] = None
    memory: Maybe[float] = None  # GB, as on the box: 24 for a 4090
    price: Maybe[_Prices] = None
    maxCount: Maybe[_Counts] = None  # noqa: N815 - their name
    availability: Maybe[str] = None
    dataCenters: Maybe[list[_DataCenter]] = None  # noqa: N815
    cudaVersions: Maybe[list[_Cuda]] = None  # noqa: N815


class Catalog(Answer):
    """`ListGpuTypesResponse`."""

    gpus: list[GpuType]


def query(want: Requirements, cloud: str) -> dict[str, str]:
    """The query of `GET /v2/catalog/gpus`. RunPod v2 rents pods with at least one GPU, whoever needs none."""
    asked = {
        "include": "AVAILABILITY",
        "product": "POD",
        "count": str(max(1, want.gpu_count)),
        "cloud": cloud,
    }
    if want.min_cuda > 0:
        asked["minCudaVersion"] = cuda_text(want.min_cuda)
    return asked


def cuda_text(version: float) -> str:
    """12.8 as RunPod writes it; 12.0 keeps its zero, for the create call takes no bare major."""
    return f"{version:.1f}" if version == round(version, 1) else f"{version:g}"


def offer(gpu: GpuType, want: Requirements, *, cloud: str, provider: str) -> Offer | None:
    """What can be rented of a type in a cloud; None when it is not sold there, or is gone, or is not NVIDIA's."""
    count = max(1, want.gpu_count)
    per_gpu = getattr(gpu.price, cloud.lower()) if gpu.price else None
    most = getattr(gpu.maxCount, cloud.lower()) if gpu.maxCount else None
    if gpu.manufacturer not in (None, "NVIDIA") or gpu.availability == _NO_STOCK:
        return None
    if per_gpu is None or not per_gpu.is_finite() or per_gpu <= 0 or (most is not None and most < count):
        return None
    about = known(gpu.id)
    vram_gib = gpu.memory or about.vram_gib
    disk = prices.disk_gb(want.disk_gb)
    centers = [c.id for c in gpu.dataCenters or () if c.availability != _NO_STOCK]
    return Offer(
        provider=provider,
        offer_id=f"{gpu.id}/{count}/{cloud}",
        usd_per_hour=prices.with_disk(per_gpu * count, disk),
        spot=False,
        gpu_name=about.name,
        gpu_count=count,
        vram_gib=float(vram_gib),
        disk_gb=float(disk),
        host_ram_gib=float(vram_gib) * count,  # v2 does not tell; every type on the price page has at least so much
        idle_usd_per_hour=Decimal(0),  # a stopped pod's container disk is wiped, and free
        cuda=_newest_cuda(gpu),
        compute_capability=about.compute_capability,
        region=centers[0] if len(centers) == 1 else "",
        details={
            "cloud": cloud,
            "gpu_id": gpu.id,
            "disk_usd_per_hour": str(prices.with_disk(Decimal(0), disk)),
            "stock": gpu.availability or "",
            "data_centers": ",".join(centers),
            "min_cuda": cuda_text(want.min_cuda) if want.min_cuda > 0 else "",
        },
    )


def _newest_cuda(gpu: GpuType) -> float:
    """Compared number by number: 12.11 is newer than 12.2."""
    versions = [c.version.split(".") for c in gpu.cudaVersions or () if c.available]
    newest = max((tuple(map(int, v)) for v in versions if all(n.isdigit() for n in v)), default=())
    return float(".".join(map(str, newest[:2]))) if newest else 0.0
