"""What the simulated cloud consists of: plain data, so that separate commands can share one cloud through a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal

from orchestrator.types import Offer


@dataclass(frozen=True, slots=True)
class Climate:
    """How this cloud behaves when the weather is fair. Times in seconds."""

    list_lag_s: float = 20.0  # what really happens ...
    declared_list_lag_s: float | None = None  # ... and what the capabilities say, if that differs
    terminate_lag_s: float = 10.0  # accepted, and still listed and billing
    boot_s: float = 40.0
    create_timeout_s: float = 60.0
    step_s: float = 30.0
    total_steps: int = 100
    checkpoint_steps: int = 10
    heartbeat_s: float = 30.0
    poll_s: float = 30.0  # how often the agent reads run.json
    ends_itself: bool = True
    offers: int = 6
    hosts: int = 3


@dataclass(slots=True)
class Weather:
    """The lies and failures in force. Everything is off in fair weather."""

    api_down: bool = False
    terminate_broken: bool = False  # terminate answers with an error, everything else works
    lists_nothing: bool = False  # find() answers with an empty list
    remote_down: bool = False  # no instance can be reached
    bucket_down: bool = False  # no instance can reach the bucket
    never_boots: bool = False  # instances rented now stay in their start
    no_capacity: bool = False
    refused_offers: list[str] = field(default_factory=list)
    creates: list[str] = field(
        default_factory=list
    )  # how the next ones go: ok, refused, lost, late, never, unavailable


@dataclass(slots=True)
class Job:
    """The agent and its trainer on one instance."""

    run_id: str
    attempt: int
    storage_url: str
    now_s: float  # until when it has been simulated
    restored: bool = False
    step: float = 0.0
    saved_step: int = 0
    seq: int = 0
    beat_s: float = 0.0
    polled_s: float = 0.0
    asked_to_save: bool = False
    fails_with: str = ""  # an outcome: the recipe fails with it at its next chance
    dies_before_exit: bool = False  # the agent dies between the artifact and its exit record
    ended: bool = False
    died_s: float | None = None  # the agent is dead for good since then, and its instance lives on


@dataclass(slots=True)
class Box:
    """One simulated instance."""

    instance_id: str
    token: str
    offer: Offer
    created_s: float
    listed_s: float
    ready_s: float | None  # None: never
    life_s: float
    stopped: bool = False
    partitioned: bool = False
    dying_s: float | None = None
    gone_s: float | None = None
    files: dict[str, str] = field(default_factory=dict)
    job: Job | None = None

    @property
    def is_gone(self) -> bool:
        return self.gone_s is not None

    def is_up(self, now_s: float) -> bool:
        """Booted, and computing."""
        return not self.is_gone and not self.stopped and self.ready_s is not None and now_s >= self.ready_s


@dataclass(slots=True)
class CloudState:
    """All of a simulated cloud."""

    rented: int = 0
    weather: Weather = field(default_factory=Weather)
    boxes: list[Box] = field(default_factory=list)
    format: int = 1

    def box(self, instance_id: str) -> Box | None:
        return next((b for b in self.boxes if b.instance_id == instance_id), None)


def market(climate: Climate) -> list[Offer]:
    """The offers of a simulated cloud, cheapest first, several to a host."""
    return [
        Offer(
            provider="sim",
            offer_id=f"offer-{n}",
            usd_per_hour=Decimal("0.20") + Decimal(n) / 20,
            spot=n % 2 == 0,
            gpu_name="Simulated 24",
            gpu_count=1,
            vram_gib=24.0,
            disk_gb=200.0,
            host_ram_gib=64.0,
            host_id=f"host-{n % climate.hosts}",
        )
        for n in range(climate.offers)
    ]
