"""Vast.ai with real processes behind real SSH: what is rented starts, lets us in, vouches for itself, and can end itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.errors import InstanceNotFound
from orchestrator.handover import start_command
from orchestrator.providers.vastai.api import Api
from orchestrator.providers.vastai.provider import VastProvider
from orchestrator.remote import sshkeys, sshpins
from orchestrator.remote.ssh import SshRemote, connect
from orchestrator.types import Instance, InstanceState, LaunchSpec, Requirements, new_namespace, new_run_id, token_for
from tests.cloud.clock import LeapingClock
from tests.cloud.machines import machines_at
from tests.cloud.vast import ACCOUNT_KEY, FakeVast
from tests.cloud.vast_rows import Ask

PATIENCE_S = 60.0


class Rented:
    """One instance of a market with machines."""

    def __init__(self, under: Path, cloud: FakeVast, *, deadline_s: int = 3600) -> None:
        self.cloud = cloud
        self.state_dir = under / "state"
        self.provider = VastProvider(Api(cloud.url, ACCOUNT_KEY))
        run_id = new_run_id(SystemClock().now())
        self.token = token_for(new_namespace(), run_id, 1)
        spec = LaunchSpec(
            start_command=start_command(),
            deadline_s=deadline_s,
            env={"TUNE_DEADLINE_S": str(deadline_s)},
            public_key=sshkeys.public_key(self.state_dir, run_id),
            proof_secret=sshpins.proof_secret(self.state_dir, run_id, self.token),
        )
        offer = self.provider.offers(Requirements(spot="require"))[0]
        self.id = self.provider.create(offer, spec, token=self.token).instance_id

    def now(self) -> Instance:
        return self.provider.get(self.id)

    def is_gone(self) -> bool:
        try:
            self.now()
        except InstanceNotFound:
            return True
        return False

    def enter(self) -> SshRemote:
        assert wait(lambda: self.now().state is InstanceState.RUNNING)
        assert self.cloud.machines is not None
        self.cloud.machines.wait_ready(self.id)
        assert wait(lambda: bool([*self.home.rglob("start.pid")]))  # its start command is through
        return connect(self.now(), state_dir=self.state_dir)

    @property
    def home(self) -> Path:
        """Of the machine's only user."""
        assert self.cloud.machines is not None
        return self.cloud.machines.home(self.id)


def wait(until: Callable[[], bool]) -> bool:
    clock = SystemClock()
    give_up = clock.monotonic() + PATIENCE_S
    while not until():
        if clock.monotonic() > give_up:
            return False
        clock.sleep(0.05)
    return True


def ended_by(cloud: FakeVast) -> list[str]:
    """Whose keys the calls to destroy came with. A call is logged once it is answered."""
    assert wait(lambda: bool(cloud.calls("destroy")))
    return [call.by for call in cloud.calls("destroy")]


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[FakeVast]:
    with machines_at(tmp_path / "market") as machines:
        made = FakeVast(LeapingClock(), machines, [Ask()])
        yield made
        made.close()


def test_it_lets_us_in_and_ends_itself_with_its_own_key(tmp_path: Path, cloud: FakeVast) -> None:
    rented = Rented(tmp_path, cloud)
    remote = rented.enter()
    tune_home = remote.run(["sh", "-c", "pwd"]).stdout.decode().strip()
    assert tune_home.endswith(f"/tune/{rented.token}")
    assert "vouched" in remote.trust
    assert remote.run(["sh", "farewell.sh", "look"]).exit_code == 0
    remote.close()
    again = connect(rented.now(), state_dir=rented.state_dir)
    again.run(["sh", "-c", ": > ended"])  # as the agent does when all is stored; then the start command says farewell
    again.close()
    assert wait(rented.is_gone)
    assert cloud.living() == []
    assert ended_by(cloud) == [f"instance {rented.id}"]
    assert ACCOUNT_KEY not in "".join(call.body.decode() for call in cloud.log)


def test_it_ends_itself_at_its_deadline_if_nobody_ever_comes(tmp_path: Path, cloud: FakeVast) -> None:
    rented = Rented(tmp_path, cloud, deadline_s=1)
    assert wait(rented.is_gone)
    assert ended_by(cloud) == [f"instance {rented.id}"]


def test_outbid_everything_in_it_dies_and_its_disk_stays(tmp_path: Path, cloud: FakeVast) -> None:
    rented = Rented(tmp_path, cloud)
    remote = rented.enter()
    remote.put("job/data", b"kept")
    remote.close()
    machines = cloud.machines
    assert machines is not None
    cloud.outbid(int(rented.id))
    assert machines.processes(rented.id) == []
    assert rented.now().state is InstanceState.STOPPED
    assert next(rented.home.rglob("job/data")).read_bytes() == b"kept"
    cloud.win_back(int(rented.id))
    remote = rented.enter()
    assert remote.run(["cat", "job/data"]).stdout == b"kept"
    remote.close()
    rented.provider.terminate(rented.id)
    assert wait(rented.is_gone)
    assert machines.leftovers() == []
