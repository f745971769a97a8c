"""The way into a whole instance: its own start command lets us in, vouches for its host key, and needs us no more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import RemoteError
from orchestrator.handover import start_command
from orchestrator.providers.boot import NO_FAREWELL, boot_script
from orchestrator.remote import sshkeys, sshpins
from orchestrator.remote.ssh import SshRemote
from orchestrator.remote.sshdoor import Patience
from orchestrator.types import Instance, InstanceId, InstanceState, LaunchSpec, Token
from tests.cloud.machines import Machines, Quirks, machines_at
from tests.remote.conftest import RUN, TOKEN

PATIENCE = Patience(budget=60, between=0.1, banner=1)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with machines_at(tmp_path / "market") as made:
        yield made


def rent(machines: Machines, state: Path, **quirks: object) -> Instance:
    spec = LaunchSpec(
        start_command(),
        3600,
        public_key=sshkeys.public_key(state, RUN),
        proof_secret=sshpins.proof_secret(state, RUN, TOKEN),
    )
    command = boot_script(spec, Token(TOKEN), NO_FAREWELL, foreground=False)
    at = machines.start("1", env={}, command=command, quirks=Quirks(**quirks))  # type: ignore[arg-type]
    address = {"direct_host": at.host, "direct_port": str(at.port)}
    return Instance(InstanceId("1"), TOKEN, "vastai", InstanceState.RUNNING, address=address)


def wait(until: Callable[[], object], within_s: float = 60) -> None:
    give_up = time.monotonic() + within_s
    while not until():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def test_an_instance_that_booted_by_itself_is_entered_and_verified(machines: Machines, tmp_path: Path) -> None:
    instance = rent(machines, tmp_path, closes=2, silences=1, banner="Welcome\033[1m\r\n", no_sftp=True)
    remote = SshRemote(instance, state_dir=tmp_path, patience=PATIENCE)
    wait(lambda: "log" in remote.run(["ls"]).stdout.decode().split())
    remote.put("agent.json", b"{}", mode=0o600)
    assert remote.is_verified is True
    remote.close()


def test_one_whose_keys_nobody_vouches_for_is_entered_and_said_so(machines: Machines, tmp_path: Path) -> None:
    instance = rent(machines, tmp_path, vouches=False)
    remote = SshRemote(instance, state_dir=tmp_path, patience=PATIENCE)
    wait(lambda: "log" in remote.run(["ls"]).stdout.decode().split())
    remote.put("agent.json", b"{}")
    assert remote.is_verified is None
    remote.close()


@pytest.mark.parametrize("vouches", [True, False])
def test_a_container_that_starts_anew_with_another_host_key(
    machines: Machines, tmp_path: Path, *, vouches: bool
) -> None:
    instance = rent(machines, tmp_path, vouches=vouches)
    SshRemote(instance, state_dir=tmp_path, patience=PATIENCE).close()
    old = (machines.folder("1") / "host_key.pub").read_text()
    machines.restart("1", quirks=Quirks(new_host_key=True, vouches=vouches))
    machines.wait_ready("1")
    machines.wait_ended("1")
    assert (machines.folder("1") / "host_key.pub").read_text() != old
    if vouches:
        remote = SshRemote(instance, state_dir=tmp_path, patience=PATIENCE)
        assert remote.is_verified is True
        remote.close()
    else:
        with pytest.raises(RemoteError, match="host key changed"):
            SshRemote(instance, state_dir=tmp_path, patience=PATIENCE)


def test_the_work_goes_on_when_the_connection_is_lost(machines: Machines, tmp_path: Path) -> None:
    """Seen in meta-pytorch/torchtune#371: the laptop sleeps, and the training is gone."""
    instance = rent(machines, tmp_path)
    remote = SshRemote(instance, state_dir=tmp_path, patience=PATIENCE)
    agent = b'#!/bin/sh\necho $$ >>"$TUNE_HOME/pids"\nwhile [ ! -e "$TUNE_HOME/ended" ]; do sleep 0.05; done\nexit 3\n'
    machines.wait_ended("1")
    remote.put("agent.sh", agent, mode=0o755)
    home = Path(remote.run(["pwd"]).stdout.decode().strip())
    wait(lambda: (home / "pids").exists() and (home / "pids").read_text().endswith("\n"))
    remote._transport.sock.close()  # no word of farewell
    with pytest.raises(RemoteError):
        remote.run(["true"], timeout_s=5)
    for _ in range(3):
        again = SshRemote(instance, state_dir=tmp_path, patience=PATIENCE)
        (pid,) = again.run(["cat", "pids"]).stdout.split()
        assert again.run(["kill", "-0", pid.decode()]).exit_code == 0
        again.close()
    assert len((home / "pids").read_text().splitlines()) == 1
