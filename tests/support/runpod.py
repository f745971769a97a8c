"""RunPod as a world for tests: the adapter over HTTP against the fake, on a clock that a test moves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from orchestrator.providers.runpod.account import RunPodAccount
from orchestrator.providers.runpod.provider import RunPodProvider
from orchestrator.providers.runpod.rest import Rest
from orchestrator.types import Instance, InstanceId, LaunchSpec, Offer, Requirements, Token, new_namespace, token_for
from tests.cloud import faults
from tests.cloud.clock import LeapingClock
from tests.cloud.runpod import NO_CAPACITY, FakeRunPod, problem

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIG9uZS1rZXktb2Ytb25lLXJ1bi1hbG9uZS1oZXJl tune-run"
_STEP_S = 2.0


class RunPodWorld:
    """`tests.contract.provider_contract.World`, and what RunPod's own tests need. Pods are words only."""

    def __init__(self, *, cloud: str = "") -> None:
        self.clock = LeapingClock()
        self.cloud = FakeRunPod(clock=self.clock)
        self.rest = Rest(self.cloud.url, self.cloud.account_key, self.clock)
        self.provider = RunPodProvider(self.rest, {"cloud": cloud})
        self.account = RunPodAccount(self.rest)
        self.spec = LaunchSpec(
            start_command="sleep 1000", deadline_s=3600, env={"TUNE_DEADLINE_S": "3600"}, public_key=PUBLIC_KEY
        )

    def close(self) -> None:
        self.cloud.close()

    def cheapest(self) -> Offer:
        return self.provider.offers(Requirements())[0]

    def rent(self, token: Token | None = None) -> Instance:
        return self.provider.create(self.cheapest(), self.spec, token=token or new_token())

    def billing(self) -> list[str]:
        return self.cloud.meter.live()

    def wait(self, until: Callable[[], bool], within_s: float) -> bool:
        give_up = self.clock.monotonic() + within_s
        while not until():
            if self.clock.monotonic() >= give_up:
                return False
            self.clock.leap(_STEP_S)
        return True

    def vanish(self, instance_id: InstanceId) -> None:
        self.cloud.preempt(instance_id, "vanish")

    def outbid(self, instance_id: InstanceId) -> None:
        self.cloud.preempt(instance_id)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        self.cloud.refuses = problem(400, NO_CAPACITY)
        yield
        self.cloud.refuses = None

    @contextlib.contextmanager
    def unclear(self, *, rented: bool) -> Iterator[None]:
        self.cloud.faults.on("create", faults.RESET.after_effect() if rented else faults.RESET)
        yield


def new_token() -> Token:
    from datetime import UTC, datetime

    from orchestrator.types import new_run_id

    return token_for(new_namespace(), new_run_id(datetime.now(UTC)), 1)
