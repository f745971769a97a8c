"""The local provider as a world for tests: real processes, watched closely, nothing left at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from orchestrator.clock import SystemClock
from orchestrator.errors import InstanceNotFound
from orchestrator.processes import HOST_MARKER
from orchestrator.providers.local import LocalProvider, start_host
from orchestrator.types import Instance, InstanceId, InstanceState, LaunchSpec, Requirements, Token
from tests.support.processes import assert_nothing_left, living, mark

HOSTILE = 'st\'ate $(touch p) "dir"\n#ü'


class LocalWorld:
    """`tests.contract.provider_contract.World`, and what the local provider's own tests need."""

    def __init__(self, under: Path) -> None:
        self.under = under
        self.state_dir = under / HOSTILE
        self.options: dict[str, str] = {}
        self._unclear = ""
        self._clock = SystemClock()
        self.provider = LocalProvider(self.state_dir, self.options, spawn=self._spawn)
        self.spec = LaunchSpec(start_command="sleep 1000", deadline_s=3600)

    @property
    def folders(self) -> list[Path]:
        root = self.state_dir / "local" / "instances"
        return sorted(p for p in root.iterdir() if p.is_dir()) if root.exists() else []

    def _spawn(self, folder: Path, lock_fd: int, timeout_s: float) -> None:
        if self._unclear != "not rented":
            start_host(folder, lock_fd, timeout_s)
        if self._unclear:
            raise OSError("the answer was lost")

    def wait(self, until: Callable[[], bool], within_s: float = 30) -> bool:
        give_up = self._clock.monotonic() + max(within_s, 0.2)
        while not until():
            if self._clock.monotonic() > give_up:
                return False
            self._clock.sleep(0.01)
        return True

    def vanish(self, instance_id: InstanceId) -> None:
        self.provider.preempt(instance_id, "vanish")

    def outbid(self, instance_id: InstanceId) -> None:
        self.provider.preempt(instance_id, "outbid")

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        self.options["max_instances"] = "1"
        blocker = self.state_dir / "local" / "instances" / "blocker"
        blocker.mkdir()
        yield
        blocker.rmdir()
        del self.options["max_instances"]

    @contextlib.contextmanager
    def unclear(self, *, rented: bool) -> Iterator[None]:
        self._unclear = "rented" if rented else "not rented"
        yield
        self._unclear = ""

    def rent(self, start_command: str = "sleep 1000", *, token: str = "any-label", **spec: object) -> Instance:
        """A running instance."""
        offer = self.provider.offers(Requirements())[0]
        wanted = LaunchSpec(start_command=start_command, **{"deadline_s": 3600, **spec})  # type: ignore[arg-type]
        created = self.provider.create(offer, wanted, token=Token(token))
        assert self.wait(lambda: self.state(created) is not InstanceState.STARTING)
        return created

    def state(self, instance: Instance) -> InstanceState | None:
        """None once it is gone."""
        try:
            return self.provider.get(instance.instance_id).state
        except InstanceNotFound:
            return None

    def home(self, instance: Instance) -> Path:
        return Path(instance.address["home"])

    def provider_hosts(self) -> list[psutil.Process]:
        """The host processes of every instance of this world."""
        return [p for p in living(self.under) if mark(p, HOST_MARKER)]

    def end(self, instance: Instance) -> None:
        """Terminate until it is gone."""

        def gone() -> bool:
            try:
                self.provider.terminate(instance.instance_id)
            except InstanceNotFound:
                return True
            return False

        assert self.wait(gone)

    def close(self) -> None:
        """End what a test left rented; then nothing may be left: the product's own `terminate` is what cleans up."""
        for folder in self.folders:
            if not folder.name.startswith("."):
                self.end(Instance(InstanceId(folder.name), "", "local", InstanceState.UNKNOWN))
        self.wait(lambda: not living(self.under), 5)  # a host takes a moment to leave after its instance
        assert_nothing_left(self.under)
        assert [folder.name for folder in self.folders if not folder.name.startswith(".new-")] == []
