"""One run in a simulated world: a stepped clock, a bucket, a cloud, and the promises that must hold after every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from orchestrator import acts, keys, money, observe, outcomes, reconcile, sweep
from orchestrator.errors import TuneError
from orchestrator.providers.registry import Bound
from orchestrator.providers.sim import Box, Climate, SimCloud
from orchestrator.storage.memory import MemoryStore
from orchestrator.storage.runs import Loaded, RunStore
from orchestrator.types import Instance, Limits, Outcome, Phase, Requirements, Run, RunId, new_run_id, parse_token

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
QUICK = Climate(total_steps=20, checkpoint_steps=5)  # ten minutes of training

Tap = Callable[[str, str], None]
"""Called with ("before" | "after", what) around every side effect of an orchestrator, and with ("read", what) after it
has read a run's record or a list of instances: what it knows from then on may be old."""


class Killed(BaseException):
    """The orchestrator's process dies here. Nothing of ours may catch it."""


class Broken(AssertionError):
    """A promise does not hold."""


class Stepped:
    """Time passes only when it is told to."""

    def __init__(self) -> None:
        self._now = START

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return (self._now - START).total_seconds()

    def sleep(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


@dataclass(frozen=True)
class Product:
    """The code under test, so that a broken copy of it can be put in its place."""

    reconcile: Any = reconcile
    acts: Any = acts
    observe: Any = observe
    sweep: Any = sweep
    money: Any = money
    store: type[MemoryStore] = MemoryStore
    declared_list_lag_s: float | None = None


class _TappedStore:
    """The orchestrator's way to the bucket; agents have their own."""

    def __init__(self, store: MemoryStore, tap: Tap) -> None:
        self._store, self._tap = store, tap

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name == "get":
            return self._get
        if name not in ("put", "put_new", "put_if", "delete"):
            return real

        def tapped(key: str, *args: Any, **kwargs: Any) -> Any:
            self._tap("before", f"{name} {key}")
            result = real(key, *args, **kwargs)
            self._tap("after", f"{name} {key}")
            return result

        return tapped

    def _get(self, key: str) -> Any:
        result = self._store.get(key)
        if key.endswith("/run.json"):
            self._tap("read", key)
        return result


class _TappedCloud:
    def __init__(self, cloud: SimCloud, tap: Tap) -> None:
        self._cloud, self._tap = cloud, tap

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._cloud, name)
        if name == "find":
            return self._find
        if name not in ("create", "terminate"):
            return real

        def tapped(*args: Any, **kwargs: Any) -> Any:
            self._tap("before", name)
            result = real(*args, **kwargs)
            self._tap("after", name)
            return result

        return tapped

    def _find(self, **kwargs: Any) -> Any:
        result = self._cloud.find(**kwargs)
        self._tap("read", "instances")
        return result

    def connect(self, instance: Instance) -> Any:
        remote, tap = self._cloud.connect(instance), self._tap

        class Tapped:
            def put(self, path: str, data: bytes, **kwargs: Any) -> None:
                tap("before", f"remote put {path}")
                remote.put(path, data, **kwargs)
                tap("after", f"remote put {path}")

            def run(self, argv: Any, **kwargs: Any) -> Any:
                return remote.run(argv, **kwargs)  # only asks

            def close(self) -> None:
                remote.close()

        return Tapped()


def _no_tap(when: str, what: str) -> None:
    pass


@dataclass
class World:
    """One run, carried on by as many orchestrators as a test likes."""

    product: Product = field(default_factory=Product)
    climate: Climate = QUICK
    limits: Limits = field(default_factory=Limits)
    want: Requirements = field(default_factory=Requirements)
    least_wait_s: float = 1.0
    tolerates_superseded: bool = False  # a create was on its way for so long that others went on without it

    def __post_init__(self) -> None:
        if self.product.declared_list_lag_s is not None:
            self.climate = replace(self.climate, declared_list_lag_s=self.product.declared_list_lag_s)
        self.clock = Stepped()
        self.bucket = self.product.store(self.clock)
        self.cloud = SimCloud(self.clock, lambda _url: self.bucket, climate=self.climate)
        self.runs = RunStore(self.bucket)
        self.events: list[str] = []
        self.troubles: list[str] = []
        self.errors: list[TuneError] = []
        self.done_at: datetime | None = None  # when the recipe exited 0
        self.wait_s = 0.0
        self._parsed: Loaded | None = None
        self.namespace = self.runs.namespace()
        run = self.new_run("first")
        self.run_id: RunId = run.run_id
        self.runs.create(run)

    def new_run(self, name: str) -> Run:
        return Run(
            run_id=new_run_id(self.clock.now()),
            name=name,
            namespace=self.runs.namespace(),
            created_at=self.clock.now(),
            recipe_sha256="r" * 64,
            data_sha256="d" * 64,
            provider="sim",
            limits=self.limits,
            want=self.want,
        )

    def context(self, tap: Tap = _no_tap) -> Any:
        """A fresh orchestrator, on whatever computer."""
        cloud: Any = _TappedCloud(self.cloud, tap)
        store: Any = _TappedStore(self.bucket, tap)
        return self.product.observe.Context(
            runs=RunStore(store),
            bound=lambda _name: Bound(cloud, cloud.connect),
            start_command="true",
            agent_script=b"#!/bin/sh\n",
            secrets={"KEY": "value"},
        )

    def one_pass(self, tap: Tap = _no_tap) -> Run:
        """A pass by a fresh orchestrator; then every promise is looked at."""
        try:
            done = self.product.reconcile.reconcile(self.context(tap), self.run_id)
            self.events += done.events
            self.troubles += done.troubles
            self.wait_s = done.wait_s
        except TuneError as e:
            self.errors.append(e)
            self.wait_s = 30.0
        finally:
            self.check()
        return self.run

    def advance(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        with self.cloud.turn():
            pass
        self.check()

    def go_on(self, tap: Tap = _no_tap) -> Run:
        """One pass, then as much time as it asked for; a watcher who looks every second is spared that here."""
        run = self.one_pass(tap)
        self.advance(max(self.least_wait_s, min(60.0, self.wait_s)))
        return run

    def until(self, *phases: Phase, passes: int = 400) -> Run:
        """Carry the run on until it is in one of `phases`."""
        for _ in range(passes):
            if self.run.phase in phases:
                return self.run
            self.go_on()
        raise Broken(f"never came to {phases}; it is {self.run.phase} after {self.events[-5:]}")

    def settle(self) -> Run:
        """Fair weather: the run must come to its end."""
        self.fair()
        return self.until(Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)

    def settle_long(self) -> Run:
        """Fair weather: a run that takes long must at least be at work again."""
        self.fair()
        return self.until(Phase.RUNNING)

    def stop(self, *, at_once: bool = False) -> None:
        self.product.reconcile.request_stop(self.context(), self.run_id, at_once=at_once)

    def reopen(self) -> None:
        self.product.reconcile.reopen(self.context(), self.run_id)

    def sweep(self, **kwargs: Any) -> Any:
        return self.product.sweep.sweep(self.context(), ["sim"], clock=self.clock, **kwargs)

    def fair(self) -> None:
        with self.cloud.turn() as state:
            weather = state.weather
            weather.api_down = weather.terminate_broken = weather.lists_nothing = False
            weather.remote_down = weather.bucket_down = weather.never_boots = weather.no_capacity = False
            weather.refused_offers, weather.creates = [], []
            for box in state.boxes:
                box.partitioned = False

    def weather(self, **changes: Any) -> None:
        with self.cloud.turn() as state:
            for name, value in changes.items():
                setattr(state.weather, name, value)

    def box(self) -> Box | None:
        """The newest instance that is not gone."""
        living = self.living()
        return living[-1] if living else None

    def living(self) -> list[Box]:
        return [b for b in self.rented() if not b.is_gone]

    def outbid(self) -> None:
        with self.cloud.turn():
            box = self.box()
            if box:
                box.stopped = True

    def wake(self) -> None:
        with self.cloud.turn() as state:
            for box in state.boxes:
                box.stopped = False

    def vanish(self) -> None:
        with self.cloud.turn():
            box = self.box()
            if box:
                box.gone_s = self.clock.now().timestamp()

    def partition(self, *, on: bool = True) -> None:
        with self.cloud.turn():
            box = self.box()
            if box:
                box.partitioned = on

    def kill_agent(self) -> None:
        """The agent dies and cannot be started again; its instance lives on, and answers."""
        with self.cloud.turn():
            box = self.box()
            if box and box.job:
                box.job.died_s = self.now_s

    def finish(self) -> None:
        """The recipe reaches its last step right now, and the agent says so if it can."""
        with self.cloud.turn():
            box = self.box()
            if box and box.job and box.job.restored and not box.job.ended:
                box.job.step = float(self.climate.total_steps)
        with self.cloud.turn():
            pass

    def die_before_exit(self) -> None:
        """The agent will die between the artifact and its exit record."""
        with self.cloud.turn():
            box = self.box()
            if box and box.job:
                box.job.dies_before_exit = True

    def fail(self, outcome: Outcome) -> None:
        with self.cloud.turn():
            box = self.box()
            if box and box.job and not box.job.ended:
                box.job.fails_with = outcome.value

    @property
    def run(self) -> Run:
        """The record as it is now; parsed once per version, because it is looked at all the time."""
        version = self.bucket.head(keys.record(self.run_id)).version
        if self._parsed is None or self._parsed.version != version:
            self._parsed = self.runs.load(self.run_id)
        return self._parsed.run

    @property
    def now_s(self) -> float:
        return self.clock.monotonic()

    def rented(self) -> list[Box]:
        with self.cloud.turn() as state:
            return [b for b in state.boxes if self._is_ours(b)]

    def _is_ours(self, box: Box) -> bool:
        parts = parse_token(box.token)
        return parts is not None and (parts.namespace, parts.run_id) == (self.namespace, self.run_id)

    def exited_0(self) -> bool:
        """Some attempt's exit record says that the recipe is done."""
        numbers = {_number(b) for b in self.rented() if b.job}
        records = [self.runs.exit_record(self.run_id, n) for n in numbers]
        return any(r is not None and r.code == 0 for r in records)

    def check(self) -> None:
        """Every promise that must hold at every moment."""
        run = self.run
        rented = self.rented()
        living = [b for b in rented if not b.is_gone]
        if self.tolerates_superseded:
            living = [b for b in living if b.dying_s is None]
        _promise(len(living) <= 1, f"{len(living)} instances are billing: {[b.token for b in living]}")
        _promise(not (run.phase.is_terminal and living), f"{run.phase}, and {[b.token for b in living]} is billing")
        _promise(len({b.token for b in rented}) == len(rented), "one attempt has rented twice")
        allowance = [b for b in rented if _number(b) > run.attempts_at_resume]
        _promise(
            len(allowance) <= run.limits.max_attempts,
            f"{len(allowance)} instances for {run.limits.max_attempts} attempts",
        )
        _promise(len(outcomes.counted(run)) <= run.limits.max_attempts, "more attempts than allowed")
        _promise(len(run.attempts) <= run.limits.max_attempts * (run.resumes + 1) + 25, "the record grows for ever")
        self._check_never_again(run, rented)
        self._check_money(run, rented)
        marked = keys.active(self.run_id) in {i.key for i in self.bucket.scan(keys.ACTIVE)}
        _promise(marked or run.phase.is_terminal, "an active run that no pass over all runs would find")

    def _check_never_again(self, run: Run, rented: list[Box]) -> None:
        if self.done_at is None:
            if not self.exited_0():
                return
            self.done_at = self.clock.now()
        numbers = {a.number: a.intended_at for a in run.attempts}
        again = [b.token for b in rented if numbers.get(_number(b), START) > self.done_at]
        _promise(not again, f"the recipe had exited 0, and ran again: {again}")
        is_in_vain = run.phase in (Phase.FAILED, Phase.CANCELLED) and (run.phase_since or START) > self.done_at
        _promise(not is_in_vain, f"{run.phase} although it had succeeded")

    def _check_money(self, run: Run, rented: list[Box]) -> None:
        now_s = self.clock.now().timestamp()
        true = sum(
            (Decimal(str((b.gone_s or now_s) - b.created_s)) / 3600 * b.offer.usd_per_hour for b in rented), Decimal(0)
        )
        if not rented:
            return
        told = self.product.money.ledger(run, self.clock.now()).total_usd
        _promise(told + Decimal("0.0001") >= true, f"the ledger says ${told:.4f}, the cloud charges ${true:.4f}")


def _number(box: Box) -> int:
    return int(box.token.rpartition("-a")[2])


def _promise(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)
