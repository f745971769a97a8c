"""A Vast.ai of our own as a world for tests: the real SDK against loopback, on a clock that is stepped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from orchestrator.errors import InstanceNotFound
from orchestrator.providers.vastai.account import VastAccount
from orchestrator.providers.vastai.api import Api
from orchestrator.providers.vastai.provider import VastProvider
from orchestrator.types import Instance, InstanceId, LaunchSpec, Offer, Requirements, Token, token_for
from tests.cloud import faults
from tests.cloud.vast import ACCOUNT_KEY, FakeVast
from tests.cloud.vast_rows import Ask, Contract, market
from tests.storage.clocks import SteppedClock

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFw3V3kC9nUu0S2xw0Gk4y9l0H5m3Jm0m0m0m0m0m0m0 tune"
SPEC = LaunchSpec(start_command="sleep 1000", deadline_s=3600, disk_gb=20, public_key=PUBLIC_KEY)
ANY = Requirements(disk_gb=20)
TOKEN = token_for("abc123", "0123456789", 1)  # type: ignore[arg-type]


class VastWorld:
    """`tests.contract.provider_contract.World`, and what the adapter's own tests need."""

    def __init__(self, *asks: Ask, options: Mapping[str, str] | None = None) -> None:
        self.clock = SteppedClock()
        self.cloud = FakeVast(self.clock, asks=asks or market(3, slots=99))
        self.api = Api(self.cloud.url, ACCOUNT_KEY)
        self.provider = VastProvider(self.api, options)
        self.account = VastAccount(Api(self.cloud.url, ACCOUNT_KEY, clock=self.clock))
        self.spec = SPEC

    def close(self) -> None:
        self.cloud.close()

    # As a world

    def wait(self, until: Callable[[], bool], within_s: float) -> bool:
        give_up = self.clock.monotonic() + within_s
        while not until():
            if self.clock.monotonic() >= give_up:
                return False
            self.clock.sleep(0.5)
        return True

    def vanish(self, instance_id: InstanceId) -> None:
        self.cloud.vanish(int(instance_id))

    def outbid(self, instance_id: InstanceId) -> None:
        self.cloud.outbid(int(instance_id))

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        slots = {ask.id: ask.slots for ask in self.cloud.asks.values()}
        for ask in self.cloud.asks.values():
            ask.slots = 0
        yield
        for ask in self.cloud.asks.values():
            ask.slots = slots[ask.id]

    @contextlib.contextmanager
    def unclear(self, *, rented: bool) -> Iterator[None]:
        self.cloud.faults.on("create", faults.RESET.after_effect() if rented else faults.RESET)
        yield

    # For the adapter's own tests

    def offer(self, **want: Any) -> Offer:
        """The cheapest."""
        return self.provider.offers(Requirements(**{"disk_gb": 20.0, **want}))[0]

    def rent(self, *, token: Token = TOKEN, **want: Any) -> Instance:
        return self.provider.create(self.offer(**want), self.spec, token=token)

    def contract(self, instance: Instance) -> Contract:
        return self.cloud.contracts[int(instance.instance_id)]

    def get(self, instance: Instance) -> Instance | None:
        """None once it is gone."""
        try:
            return self.provider.get(instance.instance_id)
        except InstanceNotFound:
            return None

    def body(self, call: str = "create") -> dict[str, Any]:
        """Of the last call of this name."""
        import json

        said: dict[str, Any] = json.loads(self.cloud.calls(call)[-1].body)
        return said

    def now(self) -> datetime:
        return self.clock.now()
