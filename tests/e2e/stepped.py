"""A run on fake marketplaces whose hours take no time: the real core and adapters over HTTP, a stepped clock, and agents
that keep their contract with the bucket and train nothing.

    with stepped_world(tmp_path, "vastai") as world:
        world.until(Phase.RUNNING)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from orchestrator import keys, money, reconcile
from orchestrator.errors import RemoteError, TuneError
from orchestrator.handover import start_command
from orchestrator.money import Entry, Ledger
from orchestrator.observe import Context
from orchestrator.providers import market
from orchestrator.providers.registry import Bound
from orchestrator.providers.retrying import Retrying, RetryingAccount
from orchestrator.providers.sim.agent import Agent, job_of
from orchestrator.providers.sim.state import Box, Climate
from orchestrator.remote.base import Completed
from orchestrator.storage.memory import MemoryStore
from orchestrator.storage.runs import RunStore
from orchestrator.types import Instance, InstanceId, Phase, Requirements, Run, RunId, new_run_id
from tests.cloud.meter import Meter
from tests.cloud.runpod import FakeRunPod
from tests.cloud.vast import ACCOUNT_KEY, FakeVast
from tests.cloud.vast_rows import market as asks_of
from tests.storage.clocks import SteppedClock

LONGEST_STEP_S = 60.0
AGENT_STEP_S = 5.0  # an agent's minute is simulated in pieces of this length
MOST_PASSES = 600

Fake = FakeVast | FakeRunPod


class _Hand:
    """The way into an instance: files are put, and every program says yes."""

    def __init__(self, box: Box, is_up: Callable[[], bool]) -> None:
        self._box, self._is_up = box, is_up

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> Completed:
        self._check()
        return Completed(0, b"", b"")

    def put(self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = 120) -> None:
        self._check()
        self._box.files[path] = data.decode("latin-1")

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if not self._is_up():
            raise RemoteError("no route to host")


@dataclass
class SteppedWorld:
    """One run, and the marketplaces that it may rent from."""

    root: Path
    names: Sequence[str]
    climate: Climate = field(default_factory=lambda: Climate(total_steps=100, step_s=30.0, checkpoint_steps=10))
    clock: SteppedClock = field(default_factory=SteppedClock)
    fakes: dict[str, Fake] = field(default_factory=dict)
    boxes: dict[InstanceId, Box] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    is_cut_off: bool = False  # nobody reaches any instance, and no instance the bucket
    longest_wait_s: float = 0.0  # between two passes

    def __post_init__(self) -> None:
        self.bucket = MemoryStore(self.clock)
        self.runs = RunStore(self.bucket)
        self._bound = {name: self._bind(name) for name in self.names}
        self.provider = ",".join(sorted(self.names))
        if len(self._bound) > 1:
            self._bound[self.provider] = market.bind(dict(self._bound))
        self.run_id = self._new_run()

    def _new_run(self) -> RunId:
        run = Run(
            run_id=new_run_id(self.clock.now()),
            name="r",
            namespace=self.runs.namespace(),
            created_at=self.clock.now(),
            recipe_sha256="r" * 64,
            data_sha256="d" * 64,
            provider=self.provider,
            want=Requirements(gpu_count=1, disk_gb=40),
        )
        self.runs.create(run)
        return run.run_id

    def _bind(self, name: str) -> Bound:
        provider, account, farewell = (self._vastai if name == "vastai" else self._runpod)()

        def connect(instance: Instance) -> _Hand:
            box = self._box_of(name, instance)
            return _Hand(box, lambda: not self.is_cut_off and self._is_running(name, instance.instance_id))

        return Bound(
            Retrying(provider, clock=self.clock),
            connect,
            account=RetryingAccount(account, clock=self.clock),
            is_elsewhere=True,
            farewell=farewell,
        )

    def _vastai(self) -> tuple[Any, Any, Any]:
        from orchestrator.providers.vastai.account import VastAccount
        from orchestrator.providers.vastai.api import Api
        from orchestrator.providers.vastai.provider import VastProvider, farewell

        asks = asks_of(4, slots=9, boot_s=40.0, inet_down_cost=0.004, inet_up_cost=0.006)
        fake = self.fakes["vastai"] = FakeVast(self.clock, asks=asks)
        api = Api(fake.url, ACCOUNT_KEY, clock=self.clock)
        return VastProvider(api), VastAccount(api), farewell(fake.url)

    def _runpod(self) -> tuple[Any, Any, Any]:
        from orchestrator.providers.runpod.account import RunPodAccount
        from orchestrator.providers.runpod.provider import RunPodProvider, farewell
        from orchestrator.providers.runpod.rest import Rest

        fake = self.fakes["runpod"] = FakeRunPod(clock=self.clock)
        rest = Rest(fake.url, fake.account_key, self.clock)
        return RunPodProvider(rest, {}), RunPodAccount(rest), farewell(fake.url)

    # The run

    @property
    def context(self) -> Context:
        """A fresh orchestrator."""
        return Context(
            runs=self.runs,
            bound=self._bound.__getitem__,
            start_command=start_command(),
            agent_script=b"#!/bin/sh\n",
            state_dir=self.root,
        )

    @property
    def run(self) -> Run:
        return self.runs.load(self.run_id).run

    @property
    def ledger(self) -> Ledger:
        return money.ledger(self.run, self.clock.now())

    def go_on(self, check: Callable[[], None] = lambda: None) -> Run:
        """One pass, `check`, and as much time as the pass asked for."""
        try:
            done = reconcile.reconcile(self.context, self.run_id)
            self.troubles += done.troubles
            wait_s = done.wait_s
        except TuneError as e:
            self.troubles.append(e.message)
            wait_s = 30.0
        check()
        wait_s = max(1.0, min(LONGEST_STEP_S, wait_s))
        self.longest_wait_s = max(self.longest_wait_s, wait_s)
        self.let_pass(wait_s)
        return self.run

    def until(self, *phases: Phase, check: Callable[[], None] = lambda: None) -> Run:
        """Carry the run on until it is in one of `phases`."""
        for _ in range(MOST_PASSES):
            if self.run.phase in phases:
                return self.run
            self.go_on(check)
        raise AssertionError(f"never came to {phases}; it is {self.run.phase} after {self.troubles[-5:]}")

    def let_pass(self, seconds: float) -> None:
        """Time goes on, and the agents with it."""
        until = self.clock.now() + timedelta(seconds=seconds)
        while (left_s := (until - self.clock.now()).total_seconds()) > 0:
            self.clock.step(min(AGENT_STEP_S, left_s))
            self._work()

    def is_training(self) -> bool:
        """An instance that runs has its agent at work."""
        at_work = [known for known, box in self.boxes.items() if box.job is not None and box.job.restored]
        return any(self._is_running(*known.split("/")) for known in at_work)

    def stored_step(self) -> int:
        """Of the newest checkpoint in the bucket."""
        found = [keys.parse_checkpoint(name) for name in self.bucket.children(keys.checkpoints(self.run_id))]
        return max((parsed[0] for parsed in found if parsed), default=0)

    # Its instances

    def meter(self, name: str) -> Meter:
        return self.fakes[name].meter

    def living(self) -> list[str]:
        """Everything that bills."""
        return [f"{name}/{one}" for name in self.fakes for one in self.meter(name).live()]

    def ever(self) -> list[str]:
        return [f"{name}/{one}" for name in self.fakes for one in self.meter(name).ever()]

    def preempt(self, how: str = "outbid") -> None:
        """The marketplace takes the current instance."""
        attempt = self.run.attempt
        assert attempt is not None
        assert attempt.instance_id is not None
        name, own = self.place(attempt.offer.provider, attempt.instance_id)
        fake = self.fakes[name]
        if isinstance(fake, FakeVast):
            (fake.outbid if how == "outbid" else fake.vanish)(int(own))
        else:
            fake.preempt(own, how)

    def place(self, provider: str, instance_id: InstanceId) -> tuple[str, str]:
        """Who rents an instance out, and its id there."""
        return provider, instance_id.rpartition("/")[2]

    def entries(self) -> list[tuple[Entry, str, str]]:
        """What the ledger says of each attempt that has rented, with the marketplace and the instance's id there."""
        by_number = {a.number: a for a in self.run.attempts}
        found = []
        for entry in self.ledger.entries:
            attempt = by_number[entry.attempt]
            if attempt.instance_id is not None:
                found.append((entry, *self.place(attempt.offer.provider, attempt.instance_id)))
        return found

    def _box_of(self, name: str, instance: Instance) -> Box:
        known = InstanceId(f"{name}/{instance.instance_id}")
        if known not in self.boxes:
            attempt = next(a for a in self.run.attempts if a.token == instance.token)
            now_s = self.clock.now().timestamp()
            self.boxes[known] = Box(instance.instance_id, instance.token, attempt.offer, now_s, now_s, now_s, 86_400.0)
        return self.boxes[known]

    def _is_running(self, name: str, own: str) -> bool:
        return own in self.meter(name).computing()

    def _work(self) -> None:
        now_s = self.clock.now().timestamp()
        for known, box in self.boxes.items():
            name, _, own = known.partition("/")
            if not self._is_running(name, own):
                continue
            box.job = box.job or job_of(box, now_s)
            if box.job is not None:
                Agent(box, box.job, self.climate, self.bucket, now_s).tick(can_write=not self.is_cut_off)

    def close(self) -> None:
        for fake in self.fakes.values():
            fake.close()


@contextlib.contextmanager
def stepped_world(root: Path, *names: str) -> Iterator[SteppedWorld]:
    """A world with these marketplaces; at the end nothing may be billing."""
    world = SteppedWorld(root, names)
    try:
        yield world
    finally:
        world.close()
    assert world.living() == [], "something is still billing"
