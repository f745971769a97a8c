"""Every provider keeps the promises that every provider makes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.providers import registry
from orchestrator.providers.sim import Box, SimCloud
from orchestrator.storage.memory import MemoryStore
from orchestrator.types import InstanceId, LaunchSpec
from tests.contract.provider_contract import ProviderContract
from tests.support.local import LocalWorld
from tests.support.runpod import RunPodWorld
from tests.support.vast import VastWorld


class TestLocal(ProviderContract):
    """The machine at hand keeps them with real processes."""

    provider_name = "local"

    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[LocalWorld]:
        world = LocalWorld(tmp_path)
        yield world
        world.close()


class SteppedClock:
    """Moves only when told to."""

    def __init__(self) -> None:
        self._elapsed_s = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._elapsed_s)

    def monotonic(self) -> float:
        return self._elapsed_s

    def sleep(self, seconds: float) -> None:
        self._elapsed_s += seconds


class SimWorld:
    """The simulated cloud with its usual lags, on a stepped clock."""

    def __init__(self) -> None:
        self._clock = SteppedClock()
        self.provider = SimCloud(self._clock, lambda url: MemoryStore(self._clock))
        self.spec = LaunchSpec(start_command="true", deadline_s=86_400)

    def wait(self, until: Callable[[], bool], within_s: float) -> bool:
        give_up = self._clock.monotonic() + within_s
        while not until():
            if self._clock.monotonic() >= give_up:
                return False
            self._clock.sleep(0.5)
        return True

    def vanish(self, instance_id: InstanceId) -> None:
        with self._box(instance_id) as box:
            box.gone_s = self._clock.now().timestamp()

    def outbid(self, instance_id: InstanceId) -> None:
        with self._box(instance_id) as box:
            box.stopped = True

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        self._weather(no_capacity=True)
        yield
        self._weather(no_capacity=False)

    @contextlib.contextmanager
    def unclear(self, *, rented: bool) -> Iterator[None]:
        self._weather(creates=["lost" if rented else "never"])
        yield

    @contextlib.contextmanager
    def _box(self, instance_id: InstanceId) -> Iterator[Box]:
        with self.provider.turn() as state:
            box = state.box(instance_id)
            assert box is not None
            yield box

    def _weather(self, **changes: object) -> None:
        with self.provider.turn() as state:
            for name, value in changes.items():
                setattr(state.weather, name, value)


class TestSim(ProviderContract):
    """The simulated cloud keeps them, lags and all."""

    provider_name = "sim"

    @pytest.fixture
    def world(self) -> SimWorld:
        return SimWorld()


class TestVast(ProviderContract):
    """Vast.ai keeps them, through its SDK, with instances that take their time to be seen and to go."""

    provider_name = "vastai"

    @pytest.fixture
    def world(self) -> Iterator[VastWorld]:
        world = VastWorld()
        world.cloud.listed_after_s, world.cloud.gone_after_s = 20, 4
        for ask in world.cloud.asks.values():
            ask.boot_s = 30
        yield world
        world.close()


class TestRunPod(ProviderContract):
    """RunPod keeps them over its REST v2, with a list that lags and pods that come up in stages and die slowly."""

    provider_name = "runpod"

    @pytest.fixture
    def world(self) -> Iterator[RunPodWorld]:
        world = RunPodWorld()
        world.cloud.list_lag_s, world.cloud.dies_for_s, world.cloud.page_size = 40, 6, 1
        world.cloud.stage_s = 7
        yield world
        world.close()


def test_every_registered_provider_is_held_to_the_contract() -> None:
    module = sys.modules[__name__]
    suites = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, ProviderContract)]
    tested = {suite.provider_name for suite in suites if suite is not ProviderContract}
    assert tested == set(registry.names(plugins=()))


def test_what_a_provider_cannot_show_is_said_with_a_reason() -> None:
    hooks = {"vanish", "outbid", "refusing", "unclear"}
    for suite in (TestLocal, TestRunPod, TestSim, TestVast):
        assert set(suite.cannot) <= hooks
        assert all(suite.cannot.values())
