"""What a fake marketplace charges, to the second and without rounding."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Protocol

_HOUR_S = Decimal(3600)


class _Clock(Protocol):
    def now(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Rates:
    """What an instance costs, from its creation on."""

    gpu_usd_per_hour: Decimal = Decimal(0)  # while it runs
    disk_usd_per_hour: Decimal = Decimal(0)  # from creation until it is destroyed
    idle_disk_usd_per_hour: Decimal | None = None  # of the disk while it does not run; None: the same
    download_usd_per_gb: Decimal = Decimal(0)
    upload_usd_per_gb: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Charges:
    """What it came to."""

    gpu_usd: Decimal = Decimal(0)
    disk_usd: Decimal = Decimal(0)
    traffic_usd: Decimal = Decimal(0)

    @property
    def usd(self) -> Decimal:
        return self.gpu_usd + self.disk_usd + self.traffic_usd

    def __add__(self, other: Charges) -> Charges:
        return Charges(
            self.gpu_usd + other.gpu_usd, self.disk_usd + other.disk_usd, self.traffic_usd + other.traffic_usd
        )


@dataclass
class _Account:
    rates: Rates
    since: datetime  # when `charges` was last brought up to date
    is_running: bool = False
    is_offline: bool = False
    gone_at: datetime | None = None
    charges: Charges = field(default_factory=Charges)


class Meter:
    """The charges of every instance there ever was. Thread-safe."""

    def __init__(self, clock: _Clock) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._lock = threading.RLock()

    def created(self, instance_id: str, rates: Rates) -> None:
        """Its disk bills from now on, its GPU once it is told to be running."""
        with self._lock:
            assert instance_id not in self._accounts, f"{instance_id} was rented before"
            self._accounts[instance_id] = _Account(rates, self._clock.now())

    def running(self, instance_id: str) -> None:
        self._change(instance_id, lambda account: setattr(account, "is_running", True))

    def stopped(self, instance_id: str) -> None:
        """Only its disk bills from now on."""
        self._change(instance_id, lambda account: setattr(account, "is_running", False))

    def offline(self, instance_id: str, *, is_offline: bool = True) -> None:
        """Nothing is charged while its host is away."""
        self._change(instance_id, lambda account: setattr(account, "is_offline", is_offline))

    def repriced(self, instance_id: str, gpu_usd_per_hour: Decimal) -> None:
        """Another bid, from now on."""

        def change(account: _Account) -> None:
            account.rates = replace(account.rates, gpu_usd_per_hour=gpu_usd_per_hour)

        self._change(instance_id, change)

    def gone(self, instance_id: str) -> None:
        """Nothing bills any more. Harmless twice."""

        def change(account: _Account) -> None:
            account.gone_at = account.gone_at or account.since

        self._change(instance_id, change)

    def traffic(self, instance_id: str, *, down_gb: float = 0.0, up_gb: float = 0.0) -> None:
        def change(account: _Account) -> None:
            rates = account.rates
            usd = Decimal(str(down_gb)) * rates.download_usd_per_gb + Decimal(str(up_gb)) * rates.upload_usd_per_gb
            account.charges += Charges(traffic_usd=usd)

        self._change(instance_id, change)

    def charges(self, instance_id: str) -> Charges:
        """Until now, or until it was gone."""
        with self._lock:
            self._bring_up_to_date(self._accounts[instance_id])
            return self._accounts[instance_id].charges

    def usd(self, instance_id: str) -> Decimal:
        return self.charges(instance_id).usd

    def total_usd(self) -> Decimal:
        """Of every instance there ever was."""
        with self._lock:
            return sum((self.usd(name) for name in self._accounts), Decimal(0))

    def live(self) -> list[str]:
        """What bills right now."""
        with self._lock:
            return [name for name, account in self._accounts.items() if account.gone_at is None]

    def computing(self) -> list[str]:
        """What runs right now."""
        with self._lock:
            alive = [(name, a) for name, a in self._accounts.items() if a.gone_at is None and not a.is_offline]
            return [name for name, account in alive if account.is_running]

    def ever(self) -> list[str]:
        """Every instance there ever was, in the order of creation."""
        with self._lock:
            return list(self._accounts)

    def _change(self, instance_id: str, change: Callable[[_Account], None]) -> None:
        with self._lock:
            account = self._accounts[instance_id]
            self._bring_up_to_date(account)
            change(account)

    def _bring_up_to_date(self, account: _Account) -> None:
        now = self._clock.now()
        hours = Decimal(str(max(0.0, (now - account.since).total_seconds()))) / _HOUR_S
        account.since = now
        if account.gone_at is not None or account.is_offline:
            return
        rates = account.rates
        idle = rates.disk_usd_per_hour if rates.idle_disk_usd_per_hour is None else rates.idle_disk_usd_per_hour
        account.charges += Charges(
            gpu_usd=hours * rates.gpu_usd_per_hour if account.is_running else Decimal(0),
            disk_usd=hours * (rates.disk_usd_per_hour if account.is_running else idle),
        )
