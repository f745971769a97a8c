"""SSH that comes up in stages, endpoints that lead nowhere, and the one key that is ever offered."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import paramiko
import pytest

from orchestrator.errors import RemoteError
from orchestrator.remote import ssh, sshkeys
from orchestrator.remote.sshdoor import Patience, endpoints
from orchestrator.types import Instance, InstanceId, InstanceState
from tests.remote.conftest import QUICK, RUN, Desk, SteppedClock
from tests.remote.sshd import Sshd, black_hole


def test_ssh_comes_up_in_stages(desk: Desk, sshd: Sshd) -> None:
    sshd.refusals = 1
    street = desk.street(sshd, "close", "close", "silent", "reset", "good", is_open=False)
    clock = SteppedClock(lambda naps: street.open() and None if naps == 3 else None)
    remote = desk.reach(street.port, clock=clock)
    assert remote.run(["echo", "in"]).stdout == b"in\n"
    assert street.met == ["close", "close", "silent", "reset", "good", "good"]
    assert clock.naps == 8, "three refusals, four odd connections, one refused login"


@pytest.mark.parametrize(
    ("mood", "stage"),
    [
        ("refused", "no connection: Connection refused"),
        ("close", "closed at once"),
        ("reset", "Connection reset"),
        ("silent", "silent for 0.3 s"),
        ("http", "does not get to the end of SSH's greeting"),
        ("good", "the key is refused"),
    ],
)
def test_an_effort_is_bounded_and_says_how_far_it_came(desk: Desk, sshd: Sshd, mood: str, stage: str) -> None:
    sshd.refusals = 1000
    street = desk.street(sshd, mood, is_open=mood != "refused")
    clock = SteppedClock()
    with pytest.raises(RemoteError, match=stage) as caught:
        desk.reach(street.port, clock=clock)
    assert f"127.0.0.1:{street.port}" in caught.value.message
    assert 8 <= clock.naps <= 9, "it tries every two seconds, for twenty"
    assert sshd.commands == []


def test_a_port_that_drops_packets_costs_its_timeout_and_no_more(desk: Desk, sshd: Sshd) -> None:
    with black_hole() as port:
        with pytest.raises(RemoteError, match=r"does not answer within 0\.05 s"):
            desk.reach(port, patience=Patience(tcp=0.05))
        remote = desk.reach(port, proxy=sshd.port, patience=Patience(tcp=0.05))
    assert remote.run(["echo", "in"]).stdout == b"in\n"


def test_what_is_left_of_the_budget_bounds_every_step(desk: Desk, sshd: Sshd) -> None:
    """The real clock, because the steps of one try take real time."""
    street = desk.street(sshd, "silent")
    instance = Instance(
        InstanceId("1"),
        "tune-aaaaaa-1sjnsbkkw4-a1",
        "vastai",
        InstanceState.RUNNING,
        address={"direct_host": "127.0.0.1", "direct_port": str(street.port)},
    )
    with pytest.raises(RemoteError, match=r"silent for 0\.[0-9]+ s"):
        ssh.SshRemote(instance, state_dir=desk.state, patience=Patience(budget=0.5))
    assert street.met == ["silent"]


def test_the_direct_way_is_taken_where_both_serve(desk: Desk, sshd: Sshd) -> None:
    direct, proxy = desk.street(sshd), desk.street(sshd)
    desk.reach(direct.port, proxy=proxy.port)
    assert (direct.met, proxy.met) == (["good"], [])
    desk.reach(desk.street(sshd, "close").port, proxy=proxy.port)
    assert proxy.met == ["good"]


def test_where_to_knock() -> None:
    found = endpoints(
        {"direct_host": "a", "direct_port": "1", "proxy_host": "b", "proxy_port": "2", "proxy_user": "p", "user": "u"}
    )
    assert [(str(place), place.user, place.is_proxy) for place in found] == [
        ("a:1", "u", False),
        ("b:2", "p", True),
    ]
    assert endpoints({"direct_host": "a", "direct_port": "1"})[0].user == "root"
    for port in ("", "0", "65536", "-1", "x", "²"):
        assert endpoints({"direct_host": "a", "direct_port": port}) == ()
    assert endpoints({"direct_port": "1"}) == ()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70, "", "-oProxyCommand=touch p"])
def test_a_host_that_is_none_is_a_remote_error(desk: Desk, host: str) -> None:
    sshkeys.public_key(desk.state, RUN)
    instance = Instance(
        InstanceId("1"),
        f"tune-aaaaaa-{RUN}-a1",
        "vastai",
        InstanceState.RUNNING,
        address={"direct_host": host, "direct_port": "22"},
    )
    with pytest.raises(RemoteError):
        ssh.SshRemote(instance, state_dir=desk.state, clock=SteppedClock(), patience=QUICK)


def test_only_our_key_is_offered_and_nothing_of_the_users_is_touched(
    desk: Desk, sshd: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A crowded agent makes servers with MaxAuthTries hang up (paramiko/paramiko#1581)."""
    home = Path(os.environ["HOME"]) / ".ssh"
    home.mkdir()
    for name in ("id_rsa", "id_ed25519", "id_ecdsa"):
        (home / name).write_text("foreign")
    (home / "known_hosts").write_text(f"[127.0.0.1]:{sshd.port} ssh-ed25519 AAAAforeign\n")
    agent = socket.socket(socket.AF_UNIX)
    agent.bind(str(tmp_path / "agent"))
    agent.listen()
    agent.setblocking(False)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    desk.reach(sshd.port).run(["true"])
    with agent, pytest.raises(BlockingIOError):
        agent.accept()
    ours = " ".join(sshkeys.public_key(desk.state, RUN).split()[:2])
    assert set(sshd.offered) == {ours}
    assert sorted(path.name for path in home.iterdir()) == ["id_ecdsa", "id_ed25519", "id_rsa", "known_hosts"]
    assert (home / "known_hosts").read_text().endswith("AAAAforeign\n")


def test_a_host_that_wants_more_than_a_key_is_not_entered(desk: Desk) -> None:
    from tests.remote.rude import RudeHost

    sshkeys.public_key(desk.state, RUN)
    with RudeHost(auth=paramiko.AUTH_PARTIALLY_SUCCESSFUL) as host, pytest.raises(RemoteError, match="more than a key"):
        desk.reach(host.port)


def test_who_cannot_log_in_says_why(desk: Desk, sshd: Sshd) -> None:
    with pytest.raises(RemoteError, match="no SSH address yet"):
        desk.reach()
    with pytest.raises(RemoteError, match="no token of ours"):
        desk.reach(sshd.port, token="somebody's machine")
    with pytest.raises(RemoteError, match="this computer has no key to the instance"):
        desk.reach(sshd.port, token="tune-aaaaaa-1sjnsbkkw5-a1")
    sshkeys.private_key_path(desk.state, RUN).write_text("null")
    with pytest.raises(RemoteError, match="cannot be used"):
        desk.reach(sshd.port)
    assert sshd.offered == []


def test_a_login_that_comes_to_nothing_is_tried_again(desk: Desk) -> None:
    from tests.remote.rude import RudeHost

    sshkeys.public_key(desk.state, RUN)
    clock = SteppedClock()
    with RudeHost() as host, pytest.raises(RemoteError, match="SSH lets us in, but no command can be run"):
        desk.reach(host.port, clock=clock, patience=Patience(budget=5))
    assert clock.naps == 2


def test_logs_hold_no_secret_and_nobody_is_told_at_the_root(
    desk: Desk, sshd: Sshd, caplog: pytest.LogCaptureFixture
) -> None:
    """pytest itself listens where nothing is passed on to the root, so there is an ear of our own at the root."""
    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not record.name.startswith(("asyncio", "asyncssh")):
                said.append(record.name)

    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="tune.ssh")
    ear = Ear()
    logging.getLogger().addHandler(ear)
    logging.getLogger("tune.ssh").addHandler(caplog.handler)
    try:
        desk.reach(sshd.port).put("secrets.json", b'{"HF_TOKEN": "canary-7c1e"}', mode=0o600)
    finally:
        logging.getLogger().removeHandler(ear)
        logging.getLogger("tune.ssh").removeHandler(caplog.handler)
    assert "Connected (version 2.0" in caplog.text, "this was a real listening"
    assert "canary-7c1e" not in caplog.text
    private = sshkeys.private_key_path(desk.state, RUN).read_text()
    assert not any(line in caplog.text for line in private.splitlines() if len(line) > 20)
    assert said == []
