"""A run with its key, a host that knows it, and ways to reach that host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.remote import sshkeys, sshpins
from orchestrator.remote.ssh import SshRemote
from orchestrator.remote.sshdoor import Patience
from orchestrator.types import Instance, InstanceId, InstanceState
from tests.remote.sshd import Sshd, Street

RUN = "1sjnsbkkw4"
TOKEN = f"tune-aaaaaa-{RUN}-a1"
QUICK = Patience(tcp=0.3, banner=0.3, auth=10)


class SteppedClock:
    """Moves only when somebody sleeps; `then` may let the world change meanwhile."""

    def __init__(self, then: Callable[[int], None] = lambda _: None) -> None:
        self._elapsed_s = 0.0
        self._then = then
        self.naps = 0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._elapsed_s)

    def monotonic(self) -> float:
        return self._elapsed_s

    def sleep(self, seconds: float) -> None:
        self._elapsed_s += seconds
        self.naps += 1
        self._then(self.naps)


@dataclass
class Desk:
    """Our side: the folder with the keys, and the hosts that were rented."""

    state: Path
    root: Path
    open: list[SshRemote | Sshd | Street] = field(default_factory=list)

    def host(self, *, run: str = RUN, token: str = TOKEN, booted: bool = True) -> Sshd:
        home = self.root / f"home-{len(self.open)}"
        home.mkdir()
        sshd = Sshd(home, sshkeys.public_key(self.state, run))
        self.open.append(sshd)
        if booted:
            boot(sshd, token)
        return sshd

    def street(self, sshd: Sshd, *moods: str, is_open: bool = True) -> Street:
        street = Street(sshd.port, moods or ("good",))
        self.open.append(street)
        return street.open() if is_open else street

    def vouch(self, sshd: Sshd, *, secret: str = "") -> None:
        """What the start command leaves there of the host keys that the host has now."""
        secret = secret or sshpins.proof_secret(self.state, RUN, TOKEN)
        keys = [sshpins.HostKey.parse(key.export_public_key().decode()) for key in sshd.host_keys]
        (tune_home(sshd) / "host-keys").write_text("".join(f"{sshpins.proof(secret, key)}\n" for key in keys))

    def reach(
        self,
        direct: int = 0,
        *,
        proxy: int = 0,
        token: str = TOKEN,
        clock: SteppedClock | None = None,
        patience: Patience = QUICK,
    ) -> SshRemote:
        address = {}
        if direct:
            address = {"direct_host": "127.0.0.1", "direct_port": str(direct)}
        if proxy:
            address |= {"proxy_host": "127.0.0.1", "proxy_port": str(proxy), "proxy_user": "pod-1"}
        instance = Instance(InstanceId("1"), token, "vastai", InstanceState.RUNNING, address=address)
        remote = SshRemote(instance, state_dir=self.state, clock=clock or SteppedClock(), patience=patience)
        self.open.append(remote)
        return remote

    def close(self) -> None:
        for it in reversed(self.open):
            it.close()


def tune_home(sshd: Sshd) -> Path:
    return sshd.home / "big disk" / TOKEN


def boot(sshd: Sshd, token: str = TOKEN) -> None:
    """What the start command does before anything else."""
    tune_home(sshd).mkdir(parents=True)
    note = sshd.home / ".tune" / token
    note.parent.mkdir()
    note.write_text(f"{tune_home(sshd)}\n")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    before = threading.active_count()
    desk = Desk(tmp_path / "state", tmp_path)
    yield desk
    desk.close()
    give_up = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < give_up:
        time.sleep(0.01)  # paramiko's reader ends within its own tick
    assert threading.active_count() <= before, "threads are left"


@pytest.fixture
def sshd(desk: Desk) -> Sshd:
    return desk.host()


@pytest.fixture
def remote(desk: Desk, sshd: Sshd) -> SshRemote:
    return desk.reach(sshd.port)
