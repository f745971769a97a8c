"""A fake machine is a machine: it lets in who it should, runs what it was told, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import psutil
import pytest

from tests.cloud.machine import MARK
from tests.cloud.machines import Endpoint, Machines, Quirks, machines_at
from tests.cloud.nvidia_smi import Gpu

KEY = paramiko.RSAKey.generate(1024)  # quick to make; nobody else ever sees it
PUBLIC = f"{KEY.get_name()} {KEY.get_base64()}"


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with machines_at(tmp_path / "market") as made:
        yield made


@contextlib.contextmanager
def login(at: Endpoint, *, key: paramiko.PKey = KEY) -> Iterator[paramiko.Transport]:
    transport = paramiko.Transport((at.host, at.port))
    transport.set_log_channel("tests.quiet")
    transport.banner_timeout = 0.5
    try:
        transport.connect(username="root", pkey=key)
        yield transport
    finally:
        transport.close()


def greeting(at: Endpoint) -> str:
    with socket.create_connection((at.host, at.port), timeout=0.3) as connection:
        try:
            return connection.recv(100).decode() or "closed"
        except ConnectionResetError:
            return "closed"
        except TimeoutError:
            return "silence"


def sh(transport: paramiko.Transport, command: str) -> str:
    channel = transport.open_session()
    channel.exec_command(command)
    said = channel.makefile("rb").read() + channel.makefile_stderr("rb").read()
    return f"{said.decode()}{channel.recv_exit_status() or ''}"


def wait(until: Callable[[], object], within_s: float = 60) -> None:
    give_up = time.monotonic() + within_s
    while not until():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def started(machines: Machines, command: str = "", **quirks: object) -> Endpoint:
    at = machines.start("1", env={"KEY_OF_1": "x"}, command=command, authorized_keys=[PUBLIC], quirks=Quirks(**quirks))  # type: ignore[arg-type]
    machines.wait_ready("1")
    return at


def test_the_start_command_has_the_containers_environment_and_logins_have_not(machines: Machines) -> None:
    at = started(machines, command="env; python3 -c 'import psutil'; apt-get install -y x; exit 3")
    assert machines.wait_ended("1") == 3
    assert "KEY_OF_1=x" in machines.console("1")
    assert machines.forbidden_calls("1") == ["apt-get install -y x"]
    with login(at) as transport:
        told = sh(transport, "env; pwd; echo err >&2; exit 7")
    assert "KEY_OF_1" not in told
    assert f"HOME={machines.home('1')}\n" in told and f"\n{machines.home('1')}\n" in told
    assert told.endswith("err\n7")
    assert machines.is_alive("1"), "a start command that ends is not the end of the machine"


def test_keys_count_that_the_marketplace_or_the_start_command_has_put_there(machines: Machines) -> None:
    stranger = paramiko.RSAKey.generate(1024)
    theirs = f"{stranger.get_name()} {stranger.get_base64()} comment"
    at = started(
        machines, command=f"mkdir .ssh; while [ ! -e go ]; do sleep 0.05; done; echo '{theirs}' >.ssh/authorized_keys"
    )
    with login(at) as transport:
        assert sh(transport, "echo in") == "in\n"
    with pytest.raises(paramiko.AuthenticationException), login(at, key=stranger):
        pass
    (machines.home("1") / "go").touch()
    machines.wait_ended("1")
    with login(at, key=stranger) as transport:
        assert sh(transport, "echo in") == "in\n"
    another = paramiko.RSAKey.generate(1024)
    machines.add_key("1", f"{another.get_name()} {another.get_base64()}")
    with (
        login(at, key=stranger),
        pytest.raises(paramiko.AuthenticationException),
        login(at, key=paramiko.RSAKey.generate(1024)),
    ):
        pass


DAEMONS = """
echo start >>starts
(setsid sleep 1001 &)
setsid env -i sleep 1002 &
python3 -c 'import os; os.fork() or os.setsid() and 0 or os.fork() or os.execlp("sleep", "sleep", "1003")' &
echo up >up
wait
"""


def test_power_off_ends_every_process_and_keeps_the_disk_and_the_port(machines: Machines) -> None:
    at = started(machines, command=DAEMONS)
    home = machines.home("1")

    def sleeping() -> set[str]:
        lines = []
        for process in machines.processes("1"):
            with contextlib.suppress(psutil.Error):
                lines.append(" ".join(process.cmdline()))
        return {line for line in lines if line.startswith("sleep 100")}

    wait(lambda: sleeping() == {"sleep 1001", "sleep 1002", "sleep 1003"})
    with login(at) as transport:
        seen = transport.get_remote_server_key()
        machines.stop("1")
    assert not machines.is_alive("1") and not machines.is_ready("1") and machines.leftovers() == []
    assert not sleeping()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((at.host, at.port)).close()
    assert machines.resume("1") == at
    machines.wait_ready("1")
    wait(lambda: (home / "starts").read_text() == "start\n" * 2)
    with login(at) as transport:
        assert transport.get_remote_server_key() == seen
    machines.resume("1", quirks=Quirks(new_host_key=True))
    machines.wait_ready("1")
    with login(at) as transport:
        assert transport.get_remote_server_key() != seen
    machines.stop("1", wipes=True)
    assert list(home.iterdir()) == []
    machines.destroy("1")
    machines.destroy("1")
    assert not home.exists() and not machines.is_alive("1")


def test_ssh_comes_up_in_stages(machines: Machines) -> None:
    at = machines.start(
        "1", env={}, command="", authorized_keys=[PUBLIC], quirks=Quirks(closes=2, silences=1, auth_refusals=1)
    )
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection((at.host, at.port), timeout=5):
        pytest.fail("nothing listens while an interpreter starts")
    machines.wait_ready("1")
    assert [greeting(at) for _ in range(3)] == ["closed", "closed", "silence"]
    with pytest.raises(paramiko.AuthenticationException), login(at):
        pass
    with login(at) as transport:
        assert sh(transport, "echo in") == "in\n"


def test_a_machine_may_be_odd(machines: Machines) -> None:
    at = started(
        machines,
        command="echo ran >ran",
        no_sftp=True,
        banner="it's \x1b[1mWelcome",
        ignores_command=True,
        vouches=False,
    )
    with login(at) as transport:
        assert sh(transport, "echo in; env").startswith("it's \x1b[1mWelcome\nin\n")
        assert "TUNE_HOST_KEYS" not in sh(transport, "env")
        with pytest.raises(paramiko.SSHException):
            paramiko.SFTPClient.from_transport(transport)
    assert not (machines.home("1") / "ran").exists()
    machines.resume("1", quirks=Quirks(no_ssh=True))
    wait((machines.home("1") / "ran").exists)
    assert machines.is_alive("1") and not machines.is_ready("1")


def test_sftp_starts_in_the_home_folder(machines: Machines) -> None:
    at = started(machines)
    with login(at) as transport:
        client = paramiko.SFTPClient.from_transport(transport)
        assert client
        with client.open("x", "wb") as file:
            file.write(b"1")
        client.posix_rename("x", "y")
    assert (machines.home("1") / "y").read_bytes() == b"1"


def test_a_container_ends_with_its_first_process(machines: Machines) -> None:
    started(machines, command="(setsid sleep 1000 &); while [ ! -e go ]; do sleep 0.05; done", ends_with_command=True)
    (machines.home("1") / "go").touch()
    wait(lambda: not machines.is_alive("1"))
    assert machines.leftovers() == []
    assert machines.wait_ended("1") == 0


def test_markets_of_the_same_names_do_not_meet(machines: Machines, tmp_path: Path) -> None:
    started(machines, command="exec sleep 1000")
    with machines_at(tmp_path / "other") as others:
        started(others, command="exec sleep 1000")
    wait(lambda: [p.name() for p in machines.processes("1")] == ["sleep"])


def test_frozen_is_not_dead(machines: Machines) -> None:
    at = started(machines, command="while :; do date +%s%N >beat; sleep 0.05; done")
    beat = machines.home("1") / "beat"

    def beats() -> bool:
        before = beat.read_text() if beat.exists() else ""
        with contextlib.suppress(AssertionError):
            wait(lambda: beat.exists() and beat.read_text() not in ("", before), within_s=20)
            return True
        return False

    assert beats()
    machines.cut_off("1")
    assert beats()
    with pytest.raises(paramiko.SSHException, match="banner"), login(at):
        pass
    machines.freeze("1")
    assert {p.status() for p in machines.processes("1")} == {psutil.STATUS_STOPPED}
    machines.thaw("1")
    assert beats()
    with login(at) as transport:
        assert sh(transport, "echo in") == "in\n"


def test_nvidia_smi_tells_what_is_plugged_in(machines: Machines) -> None:
    gpus = (Gpu(), Gpu(name="NVIDIA A100-SXM4-80GB", memory_mib=81920, used_mib=70000, apps_mib=(69000,)))
    at = started(machines, gpus=gpus)
    with login(at) as transport:
        rows = sh(transport, "nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader,nounits")
        assert rows == "NVIDIA GeForce RTX 4090, 24564, 570.86.15\nNVIDIA A100-SXM4-80GB, 81920, 570.86.15\n"
        assert "CUDA Version: 12.8" in sh(transport, "nvidia-smi")
        assert sh(transport, "nvidia-smi --query-compute-apps=used_memory --format=csv,noheader") == "69000 MiB\n"
        assert sh(transport, "nvidia-smi --query-gpu=colour --format=csv").endswith("query.\n2")
        assert sh(transport, "nvidia-smi -L").count("UUID") == 2
    machines.resume(
        "1", quirks=Quirks(gpus=(), nvidia_smi_fails="Failed to initialize NVML: Driver/library version mismatch")
    )
    machines.wait_ready("1")
    with login(at) as transport:
        assert sh(transport, "nvidia-smi").startswith("Failed to initialize NVML")


LANDLORD = """
import sys, time
from pathlib import Path
from tests.cloud.machines import Machines
machines = Machines(Path(sys.argv[1]))
machines.start("1", env={}, command="sleep 1000", quirks=None)
machines.wait_ready("1")
print("up", flush=True)
time.sleep(1000)
"""


def test_no_machine_outlives_its_marketplace(tmp_path: Path) -> None:
    market = subprocess.Popen(
        [sys.executable, "-c", LANDLORD, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert market.stdout

    def living() -> list[int]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK, "").startswith(str(tmp_path)):
                    found.append(process.pid)
        return found

    try:
        assert market.stdout.readline() == "up\n"
        assert len(living()) >= 2
    finally:
        os.kill(market.pid, signal.SIGKILL)
        market.wait()
        market.stdout.close()
    wait(lambda: not living())
