"""The simulated marketplace: a stepped clock drives it, it lies on demand, and nothing sleeps."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock

from orchestrator import codec
from orchestrator.clock import Clock
from orchestrator.errors import (
    InstanceNotFound,
    InsufficientCapacity,
    OutcomeUnknown,
    ProviderUnavailable,
    RecordCorrupt,
    RemoteError,
    StorageError,
)
from orchestrator.providers.base import Capabilities
from orchestrator.providers.sim.agent import Agent, Bucket, job_of
from orchestrator.providers.sim.state import Box, Climate, CloudState, Weather, market
from orchestrator.remote.base import Completed
from orchestrator.types import (
    Instance,
    InstanceId,
    InstanceState,
    LaunchSpec,
    Namespace,
    Offer,
    Requirements,
    Token,
    parse_token,
)

REMEMBERED_S = 86_400.0
SECRETS = "secrets.json"  # what an instance is given to keep
LATE_S = 300.0  # by so much a "late" create breaks the declared lag


class SimCloud:
    """A provider whose instances exist only as data. With `path`, several processes share one cloud."""

    def __init__(
        self,
        clock: Clock,
        open_bucket: Callable[[str], Bucket],
        *,
        climate: Climate | None = None,
        path: Path | None = None,
    ) -> None:
        self.climate = climate or Climate()
        self._clock = clock
        self._open_bucket = open_bucket
        self._path = path
        self._lock = RLock()
        self._depth = 0
        self._state = CloudState()

    @property
    def name(self) -> str:
        return "sim"

    @property
    def capabilities(self) -> Capabilities:
        declared = self.climate.declared_list_lag_s
        return Capabilities(
            spot=True,
            list_lag_s=self.climate.list_lag_s if declared is None else declared,
            create_timeout_s=self.climate.create_timeout_s,
            stopped_bills=True,
            eviction_notice_s=0.0,
            max_label_len=128,
            rebid=False,
        )

    def offers(self, want: Requirements, *, timeout_s: float = 30) -> Sequence[Offer]:  # noqa: ARG002
        with self.turn() as state:
            _require_api(state.weather)
            return market(self.climate)

    def create(self, offer: Offer, spec: LaunchSpec, *, token: Token, timeout_s: float = 60) -> Instance:  # noqa: ARG002
        with self.turn() as state:
            weather = state.weather
            _require_api(weather)
            script = weather.creates.pop(0) if weather.creates else "ok"
            if script == "unavailable":
                raise ProviderUnavailable("the marketplace answers 503")
            if script == "refused" or weather.no_capacity or offer.offer_id in weather.refused_offers:
                raise InsufficientCapacity(f"{offer.offer_id} is gone")
            if script == "never":
                raise OutcomeUnknown("create timed out", token=token)
            now_s = self._now_s()
            state.rented += 1
            box = Box(
                instance_id=f"sim-{state.rented}",
                token=token,
                offer=offer,
                created_s=now_s,
                listed_s=now_s + self.climate.list_lag_s + (LATE_S if script == "late" else 0),
                ready_s=None if weather.never_boots else now_s + self.climate.boot_s,
                life_s=spec.deadline_s,
            )
            state.boxes.append(box)
            if script in ("lost", "late"):
                raise OutcomeUnknown("create timed out", token=token)
            return self._instance(box)

    def get(self, instance_id: InstanceId, *, timeout_s: float = 30) -> Instance:  # noqa: ARG002
        with self.turn() as state:
            _require_api(state.weather)
            return self._instance(_existing(state, instance_id))

    def find(self, *, namespace: Namespace, timeout_s: float = 30) -> Sequence[Instance]:  # noqa: ARG002
        with self.turn() as state:
            _require_api(state.weather)
            if state.weather.lists_nothing:
                return []
            shown = [b for b in state.boxes if not b.is_gone and b.listed_s <= self._now_s()]
            return [self._instance(b) for b in shown if _is_in(namespace, b.token)]

    def terminate(self, instance_id: InstanceId, *, timeout_s: float = 30) -> None:  # noqa: ARG002
        with self.turn() as state:
            _require_api(state.weather)
            box = _existing(state, instance_id)
            if state.weather.terminate_broken:
                raise ProviderUnavailable("terminate answers 500")
            if box.dying_s is None:
                box.dying_s = self._now_s() + self.climate.terminate_lag_s

    def connect(self, instance: Instance) -> SimRemote:
        """Reach an instance of this cloud."""
        return SimRemote(self, instance.instance_id)

    def reach(self, instance_id: str, path: str | None = None, data: bytes = b"") -> None:
        """One remote call: RemoteError unless the instance answers; puts a file when a path is given."""
        with self.turn() as state:
            box = state.box(instance_id)
            if box is None or not box.is_up(self._now_s()) or box.partitioned or state.weather.remote_down:
                raise RemoteError(f"{instance_id} does not answer")
            if path is not None:
                box.files[path] = "" if path == SECRETS else data.decode()  # nothing here needs a key, or keeps one

    def agent_age_s(self, instance_id: str) -> float | None:
        """Since when the agent has not written its heartbeat to its own disk; None where there is no agent yet."""
        with self.turn() as state:
            box = state.box(instance_id)
            if box is None or box.job is None:
                return None
            return 0.0 if box.job.died_s is None else self._now_s() - box.job.died_s

    @contextlib.contextmanager
    def turn(self) -> Iterator[CloudState]:
        """The cloud as it is now, for one caller at a time; whatever is changed is kept."""
        with self._lock, self._shared():
            if self._depth == 0:
                self._catch_up()
            self._depth += 1
            try:
                yield self._state
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._save()

    def billing(self) -> list[Box]:
        """Every instance that costs money now, stopped ones included."""
        with self.turn() as state:
            return [b for b in state.boxes if not b.is_gone]

    def _now_s(self) -> float:
        return self._clock.now().timestamp()

    def _catch_up(self) -> None:
        now_s = self._now_s()
        for box in self._state.boxes:
            if not box.is_gone:
                self._advance(box, now_s)
        if self._path is not None:  # a shared cloud lives for months; of what is long gone nobody asks
            self._state.boxes = [b for b in self._state.boxes if b.gone_s is None or now_s - b.gone_s < REMEMBERED_S]

    def _advance(self, box: Box, now_s: float) -> None:
        """What the start command, the agent and the marketplace have done to one instance since the last look."""
        death_s = min(
            box.dying_s if box.dying_s is not None else float("inf"),
            box.ready_s + box.life_s if box.ready_s is not None and not box.stopped else float("inf"),
        )
        if box.is_up(now_s) and now_s < death_s:
            box.job = box.job or job_of(box, now_s)
            if box.job is not None:
                can_write = not box.partitioned and not self._state.weather.bucket_down
                agent = Agent(box, box.job, self.climate, self._open_bucket(box.job.storage_url), now_s)
                with contextlib.suppress(StorageError):  # like the real agent, it tries again later
                    agent.tick(can_write=can_write)
                if box.job.ended and self.climate.ends_itself:
                    box.gone_s = now_s
        elif box.job is not None:
            box.job.now_s = now_s  # stopped or dying: time passes, and no step is made
        if now_s >= death_s:
            box.gone_s = death_s

    def _instance(self, box: Box) -> Instance:
        state = InstanceState.STARTING
        if box.stopped:
            state = InstanceState.STOPPED
        elif box.is_up(self._now_s()):
            state = InstanceState.RUNNING
        return Instance(
            instance_id=InstanceId(box.instance_id),
            token=box.token,
            provider=self.name,
            state=state,
            usd_per_hour=box.offer.usd_per_hour,
            host_id=box.offer.host_id,
            created_at=datetime.fromtimestamp(box.created_s, UTC),
            console_url=f"https://sim.invalid/{box.instance_id}",
        )

    @contextlib.contextmanager
    def _shared(self) -> Iterator[None]:
        """One process at a time, each starting from what the last one left."""
        if self._path is None or self._depth:
            yield
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._state = codec.load(CloudState, self._path.read_bytes(), where=str(self._path))
            except FileNotFoundError:
                self._state = CloudState()
            except RecordCorrupt as e:
                raise ProviderUnavailable(e.message, hint="remove the file to start a new simulated cloud") from None
            yield

    def _save(self) -> None:
        if self._path is None:
            return
        part = self._path.with_suffix(".part")
        part.write_bytes(codec.dump(self._state))
        part.replace(self._path)


class SimRemote:
    """The way into one simulated instance."""

    def __init__(self, cloud: SimCloud, instance_id: str) -> None:
        self._cloud = cloud
        self._instance_id = instance_id

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> Completed:  # noqa: ARG002
        """Every program succeeds as long as the instance answers, and says how old the agent's last heartbeat is."""
        self._cloud.reach(self._instance_id)
        age_s = self._cloud.agent_age_s(self._instance_id)
        return Completed(0, b"" if age_s is None else f"tune-agent-age={age_s:.0f}\n".encode(), b"")

    def put(self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = 120) -> None:  # noqa: ARG002
        self._cloud.reach(self._instance_id, path, data)

    def close(self) -> None:
        """Nothing is held open."""


def _require_api(weather: Weather) -> None:
    if weather.api_down:
        raise ProviderUnavailable("the marketplace does not answer")


def _existing(state: CloudState, instance_id: str) -> Box:
    box = state.box(instance_id)
    if box is None or box.is_gone:
        raise InstanceNotFound(f"there is no instance {instance_id}")
    return box


def _is_in(namespace: str, label: str) -> bool:
    parts = parse_token(label)
    return parts is not None and parts.namespace == namespace
