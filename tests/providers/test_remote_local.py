"""Reaching into a local instance."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from orchestrator.bootstrap import agent_age_s
from orchestrator.errors import RemoteError
from orchestrator.handover import LAST_HEARTBEAT
from orchestrator.remote.local import LocalRemote, connect
from orchestrator.types import InstanceState
from tests.support.local import LocalWorld
from tests.support.processes import living


@pytest.fixture
def remote(world: LocalWorld) -> LocalRemote:
    return connect(world.rent())


def home(remote: LocalRemote) -> Path:
    return Path(remote.run(["pwd"]).stdout.decode().removesuffix("\n"))


def test_a_file_is_put_below_the_home_with_its_mode(remote: LocalRemote) -> None:
    remote.put("job/data/ü 'x'.txt", b"\0\xff" * 1000, mode=0o600)
    remote.put("agent.sh", b"#!/bin/sh\necho hi\n", mode=0o755)
    there = home(remote) / "job" / "data" / "ü 'x'.txt"
    assert there.read_bytes() == b"\0\xff" * 1000
    assert there.stat().st_mode & 0o777 == 0o600
    assert remote.run(["./agent.sh"]).stdout == b"hi\n"


def test_putting_again_replaces_and_leaves_no_trace(remote: LocalRemote) -> None:
    for content in (b"one", b"two"):
        remote.put("a/b", content)
    assert sorted(p.name for p in home(remote).rglob("*")) == ["a", "b"]
    assert (home(remote) / "a" / "b").read_bytes() == b"two"
    remote.put(str(home(remote) / "a" / "b"), b"three")
    assert (home(remote) / "a" / "b").read_bytes() == b"three"


def test_a_reader_sees_the_old_file_or_the_new_one(remote: LocalRemote) -> None:
    old, new = b"o" * 2_000_000, b"n" * 2_000_000
    remote.put("f", old)
    path, seen, done = home(remote) / "f", set(), threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for content in (new, old) * 10:
        remote.put("f", content)
    done.set()
    reader.join()
    assert seen <= {old, new}


@pytest.mark.parametrize("path", ["../boot.json", "a/../../x", "/etc/tune-test", "", ".", "..", "/", "a/..", "nul\0"])
def test_a_path_that_leads_out_of_the_home_is_refused(remote: LocalRemote, path: str) -> None:
    with pytest.raises(RemoteError):
        remote.put(path, b"x")


def test_a_link_that_leads_out_of_the_home_is_not_followed(remote: LocalRemote, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside.txt").write_text("kept")
    (home(remote) / "link").symlink_to(tmp_path / "outside")
    (home(remote) / "file").symlink_to(tmp_path / "outside.txt")
    with pytest.raises(RemoteError):
        remote.put("link/f", b"x")
    assert list((tmp_path / "outside").iterdir()) == []
    remote.put("file", b"x")
    assert (tmp_path / "outside.txt").read_text() == "kept"
    assert (home(remote) / "file").read_bytes() == b"x"


def test_a_program_gets_its_arguments_untouched_and_the_instances_environment(
    remote: LocalRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-51d0")
    arguments = ["$(touch p)", "a b", "'", '"', "`id`", "-rf", "~root", "\n", "ü"]
    done = remote.run(["printf", "%s|", *arguments])
    assert done.stdout.decode() == "|".join(arguments) + "|"
    env = remote.run(["env"], env={"EXTRA": "1"}).stdout
    assert b"EXTRA=1\n" in env
    assert b"TUNE_INSTANCE=local-" in env
    assert b"canary" not in env


def test_a_failing_program_is_an_answer(remote: LocalRemote) -> None:
    done = remote.run(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (done.exit_code, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    assert remote.run(["no-such-program"]).exit_code == 127
    assert b"no-such-program" in remote.run(["no-such-program"]).stderr
    remote.put("plain", b"x", mode=0o644)
    assert remote.run(["./plain"]).exit_code == 126
    assert remote.run(["sh", "-c", "kill -9 $$"]).exit_code == 128 + signal.SIGKILL


@pytest.mark.parametrize("argv", [[], ["a\0b"], ["x" * 300_000]])
def test_a_command_that_cannot_be_started_is_a_remote_error(remote: LocalRemote, argv: list[str]) -> None:
    with pytest.raises(RemoteError):
        remote.run(argv)


def test_ten_mebibytes_on_both_streams_arrive(remote: LocalRemote) -> None:
    size = 10 * 2**20
    done = remote.run(["sh", "-c", f"head -c {size} /dev/zero >&2 & head -c {size} /dev/zero; wait"])
    assert (done.exit_code, len(done.stdout), len(done.stderr)) == (0, size, size)


def test_a_program_that_waits_for_input_gets_none(remote: LocalRemote) -> None:
    assert remote.run(["cat"], timeout_s=20).exit_code == 0


def test_at_the_timeout_the_whole_tree_is_killed_and_the_instance_lives_on(world: LocalWorld) -> None:
    instance = world.rent()
    remote = connect(instance)
    assert world.wait(lambda: len(living(world.under)) == 3), "the host, the start command's shell, and its sleep"
    before = {p.pid for p in living(world.under)}
    command = "trap '' TERM; ( setsid sleep 1001 & ) ; setsid sleep 1002 & sleep 1003"
    with pytest.raises(RemoteError, match="did not end within"):
        remote.run(["sh", "-c", command], timeout_s=0.5)
    assert {p.pid for p in living(world.under)} == before
    assert world.state(instance) is InstanceState.RUNNING


@pytest.mark.parametrize("how", ["outbid", "vanish", "host killed"])
def test_an_instance_that_is_gone_or_stopped_cannot_be_reached(world: LocalWorld, how: str) -> None:
    instance = world.rent()
    remote = connect(instance)
    remote.put("f", b"x")
    take_away(world, instance, how)
    for reach in (lambda: remote.put("g/h", b"x"), lambda: remote.run(["true"])):
        with pytest.raises(RemoteError, match="gone or stopped"):
            reach()
    assert world.wait(lambda: len(world.folders) == (0 if how == "vanish" else 1)), "reaching for it brought it back"


def test_a_command_that_dies_with_its_instance_gives_no_answer(world: LocalWorld) -> None:
    instance = world.rent()
    remote = connect(instance)
    taker = threading.Thread(
        target=lambda: (
            world.wait((Path(instance.address["home"]) / "begun").exists),
            world.vanish(instance.instance_id),
        )
    )
    taker.start()
    with pytest.raises(RemoteError, match="gone or stopped"):
        remote.run(["sh", "-c", "touch begun; sleep 1000"])
    taker.join()
    assert world.wait(lambda: not living(world.under))


def test_terminate_takes_a_running_command_along(world: LocalWorld) -> None:
    instance = world.rent()
    marks = world.home(instance) / "begun"
    failed: list[RemoteError] = []

    def command() -> None:
        try:
            connect(instance).run(["sh", "-c", "trap '' TERM; touch begun; setsid sleep 1000"], timeout_s=60)
        except RemoteError as e:
            failed.append(e)

    runner = threading.Thread(target=command)
    runner.start()
    assert world.wait(marks.exists)
    world.end(instance)
    runner.join(30)
    assert len(failed) == 1
    assert not [p for p in living(world.under) if "sleep" in p.cmdline()]


def test_an_address_of_another_provider_is_refused() -> None:
    with pytest.raises(RemoteError, match="alive"):
        LocalRemote({"home": "/", "boot": "/"})


def take_away(world: LocalWorld, instance, how: str) -> None:
    if how == "host killed":
        for host in world.provider_hosts():
            os.kill(host.pid, signal.SIGKILL)
    elif how == "outbid":
        world.outbid(instance.instance_id)
    else:
        world.vanish(instance.instance_id)
    assert world.wait(lambda: world.state(instance) in (None, InstanceState.STOPPED))


def test_how_long_the_agent_has_been_silent_is_told_by_its_own_disk(remote: LocalRemote) -> None:
    assert agent_age_s(remote) is None
    remote.put(LAST_HEARTBEAT, b"{}")
    fresh = agent_age_s(remote)
    assert fresh is not None
    assert fresh < 60
    remote.run(["touch", "-d", "10 minutes ago", LAST_HEARTBEAT])
    stale = agent_age_s(remote)
    assert stale is not None
    assert 600 <= stale < 700
