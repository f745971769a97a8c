"""A user's desk with rented computers: fake marketplaces, a bucket on loopback, and the real command line.

with cloud_desk(tmp_path, tiny, markets=("vastai",)) as desk:
    desk.tune("launch", str(desk.recipe()), "--name", "r")
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from orchestrator.storage.open import open_store
from orchestrator.storage.runs import RunStore
from orchestrator.types import InstanceId
from tests.assets.tiny import Tiny
from tests.cloud.canaries import Canaries
from tests.cloud.clock import LeapingClock
from tests.cloud.faults import Faults
from tests.cloud.machines import Machines
from tests.cloud.meter import Meter
from tests.cloud.s3 import StrictS3, strict_bucket
from tests.cloud.wire import Logged
from tests.e2e.desk import Desk

BUCKET = "bucket"
ROOT = f"s3://{BUCKET}/tune"
ACCESS_KEY = "AKIDTEST"  # the fakes let it in
_NO_MACHINE = "nothing is rented"


@dataclass(frozen=True, slots=True)
class Kind:
    """How a marketplace is called, and how `tune` is led to it."""

    maker: Callable[[Path], Market]
    key_variable: str
    url_variable: str


@dataclass(frozen=True, slots=True)
class Market:
    """A fake marketplace with machines behind it, as tests see any of them."""

    fake: Any  # a Wire with a meter, machines, and ways to take an instance away
    account_key: str
    take: Callable[[str, str], None]  # an instance, and how: see `preempt`

    @property
    def url(self) -> str:
        return str(self.fake.url)

    @property
    def faults(self) -> Faults:
        return cast("Faults", self.fake.faults)

    @property
    def log(self) -> list[Logged]:
        return cast("list[Logged]", self.fake.log)

    @property
    def meter(self) -> Meter:
        return cast("Meter", self.fake.meter)

    @property
    def machines(self) -> Machines:
        return cast("Machines", self.fake.machines)

    def preempt(self, instance_id: str, how: str = "outbid") -> None:
        """Take an instance away: `outbid` stops it and keeps its disk, `vanish` leaves nothing."""
        self.take(instance_id, how)

    def close(self) -> None:
        self.fake.close()


def _vastai(under: Path) -> Market:
    from tests.cloud import vast, vast_rows

    asks = vast_rows.market(4, slots=100, inet_down_cost=0.004, inet_up_cost=0.006)
    fake = vast.FakeVast(LeapingClock(), Machines(under), asks)
    ways = {"outbid": fake.outbid, "vanish": fake.vanish}
    return Market(fake, vast.ACCOUNT_KEY, lambda instance_id, how: ways[how](int(instance_id)))


def _runpod(under: Path) -> Market:
    from tests.cloud.runpod import FakeRunPod

    fake = FakeRunPod(under, clock=LeapingClock())
    return Market(fake, fake.account_key, fake.preempt)


KINDS = {
    "vastai": Kind(_vastai, "VAST_API_KEY", "TUNE_VASTAI_API_URL"),
    "runpod": Kind(_runpod, "RUNPOD_API_KEY", "TUNE_RUNPOD_API_URL"),
}


def make_market(name: str, under: Path) -> Market:
    """A marketplace whose machines lie below a folder."""
    return KINDS[name].maker(under)


@dataclass(kw_only=True)
class CloudDesk(Desk):
    """Everything below one folder; the account is as empty at the end as the test leaves it."""

    markets: Mapping[str, Market]
    s3: StrictS3
    canaries: Canaries
    extra: dict[str, str] = field(default_factory=dict)  # variables on top, for every command
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        lines = [
            f"state_dir = {json.dumps(str(self.state))}",
            f"provider = {json.dumps(','.join(sorted(self.markets)))}",
            "[storage]",
            f'url = "{ROOT}"',
            f"endpoint_url = {json.dumps(self.s3.url)}",
            'region = "us-east-1"',
        ]
        self.config.write_text("\n".join(lines) + "\n")

    @property
    def market(self) -> Market:
        """The only one."""
        (one,) = self.markets.values()
        return one

    @property
    def environment(self) -> dict[str, str]:
        return {
            **super().environment,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": self.canaries.values["AWS_SECRET_ACCESS_KEY"],
            "AWS_EC2_METADATA_DISABLED": "true",
            **{KINDS[name].key_variable: market.account_key for name, market in self.markets.items()},
            **{KINDS[name].url_variable: market.url for name, market in self.markets.items()},
            **self.extra,
        }

    @property
    def runs(self) -> RunStore:
        """As the command line sees it; needs this process to hold the bucket's keys."""
        return RunStore(open_store(ROOT, options={"endpoint_url": self.s3.url, "region": "us-east-1"}))

    def recipe(self, *, name: str = "recipe.yaml", steps: int = 60, **changes: Any) -> Path:
        given = {"tune_provider": ",".join(sorted(self.markets)), "tune_gpu": {"count": 0}}
        return super().recipe(name=name, steps=steps, **{**given, **changes})

    def tune(self, *args: str, timeout_s: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
        done = super().tune(*args, timeout_s=timeout_s, **environment)
        self.said += [done.stdout, done.stderr]
        return done

    def instances(self) -> list[Any]:
        """What bills right now, at any marketplace."""
        return [f"{name}/{one}" for name, market in self.markets.items() for one in market.meter.live()]

    def spent_usd(self) -> Decimal:
        """By the marketplaces' own meters."""
        return sum((market.meter.total_usd() for market in self.markets.values()), Decimal(0))

    def place(self, instance_id: str) -> tuple[Market, str]:
        """Who rents out an instance, and its id there."""
        name, found, own = instance_id.partition("/")
        return (self.markets[name], own) if found else (self.market, instance_id)

    def tune_home(self, instance_id: InstanceId) -> Path:
        """Where the start command has put it; a path that does not exist as long as it has not."""
        market, own = self.place(instance_id)
        if own not in market.machines.lives:
            return self.root / _NO_MACHINE
        told = list((market.machines.home(own) / ".tune").glob("tune-*"))
        text = told[0].read_text().strip() if told else ""
        return Path(text) if text else self.root / _NO_MACHINE

    def kill_instance(self, name: str, how: str = "vanish") -> None:
        """The marketplace takes it: every process at once, no notice."""
        current = self.run(name).attempt
        assert current and current.instance_id
        market, own = self.place(current.instance_id)
        market.preempt(own, how)

    def places(self) -> Iterator[tuple[str, bytes]]:
        """Everything that anybody but this user's own environment could read, by name."""
        for n, text in enumerate(self.said):
            yield f"output {n}", text.encode()
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield str(path.relative_to(self.root)), path.read_bytes()
        store = self.runs.store
        for info in store.scan(""):
            yield f"bucket: {info.key}", store.get(info.key).data
        for name, market in self.markets.items():
            for logged in list(market.log):
                told = f"{logged.path} {dict(logged.query)} {dict(logged.headers)}"
                yield f"{name}: {logged.method} {logged.path}", told.encode() + logged.body

    def sightings(self, more: Iterable[tuple[str, bytes]] = ()) -> list[str]:
        """Where secrets have turned up that should be nowhere: the accounts' keys, and all that the bucket has given out.

        `more`: further places.
        """
        looked_for = self.canaries
        for key, holder in list(self.s3.holders.items()):
            if holder.is_session:
                looked_for = looked_for.with_value(f"secret of {key}", holder.secret).with_value(
                    f"token of {key}", holder.token
                )
        return looked_for.sightings(itertools.chain(self.places(), more))

    def close(self) -> None:
        """No command of ours goes on. What is rented stays rented, for whoever checks."""
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()


@contextlib.contextmanager
def cloud_desk(
    root: Path,
    tiny: Tiny,
    *,
    markets: Sequence[str] = ("vastai",),
    keys: Callable[[str, str], None],
) -> Iterator[CloudDesk]:
    """A desk with marketplaces and a bucket; at the end nothing may be billing, nor anything still run.

    `keys(name, value)` gives this very process the keys to the bucket: `monkeypatch.setenv`.
    """
    with contextlib.ExitStack() as stack:
        canaries = Canaries()
        s3 = stack.enter_context(bucket(canaries.values["AWS_SECRET_ACCESS_KEY"]))
        for name, value in (
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
            ("AWS_SECRET_ACCESS_KEY", canaries.values["AWS_SECRET_ACCESS_KEY"]),
        ):
            keys(name, value)
        opened: dict[str, Market] = {}
        for name in markets:
            opened[name] = make_market(name, root / f"{name}-machines")
            stack.callback(opened[name].machines.close)
            stack.callback(opened[name].close)
            canaries = canaries.with_value(KINDS[name].key_variable, opened[name].account_key)
        desk = CloudDesk(root=root / "desk", tiny=tiny, markets=opened, s3=s3, canaries=canaries)
        stack.callback(desk.close)
        yield desk
        desk.close()
        billing = desk.instances()
        leftovers = [line for market in opened.values() for line in _after_closing(market)]
    assert billing == [], "something is still billing"
    assert leftovers == [], "a machine has outlived its marketplace"


@contextlib.contextmanager
def bucket(secret: str) -> Iterator[StrictS3]:
    """Our bucket, opened by one user's key, and the temporary keys that it gives out."""
    with strict_bucket(BUCKET) as s3:
        s3.holders.clear()
        s3.add_key(ACCESS_KEY, secret)
        yield s3


def _after_closing(market: Market) -> list[str]:
    market.machines.close()
    return market.machines.leftovers()
