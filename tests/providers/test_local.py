"""What the local provider promises beyond the common contract."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

from orchestrator.errors import (
    InstanceNotFound,
    InsufficientCapacity,
    OutcomeUnknown,
    ProviderRejected,
    ProviderUnavailable,
)
from orchestrator.processes import descendants, identify, is_alive
from orchestrator.providers.local import LocalProvider
from orchestrator.types import InstanceState, LaunchSpec, Requirements, Token, new_namespace
from tests.contract.provider_contract import new_token
from tests.support.local import LocalWorld
from tests.support.processes import living, mark

STUBBORN = {
    "ignores SIGTERM": "trap '' TERM HUP INT; sleep 1000 & wait",
    "leaves the session": "setsid sleep 1000 & wait",
    "forks twice": "( ( setsid sleep 1000 & ) & ) ; sleep 1000",
    "sheds its environment": "( setsid env -i sh -c 'echo $$ > pid; exec sleep 1000' & ) ; sleep 1000",
    "is halted": "sh -c 'kill -STOP $$' & sleep 1000",
    "breeds": "( while :; do setsid sleep 0.05 & sleep 0.01; done ) & wait",
    "moves away": "cd / && ( setsid sh -c 'sleep 1000; :' >/dev/null 2>&1 & ) ; sleep 1000",
}


@pytest.mark.parametrize("manner", STUBBORN)
def test_a_process_that_wants_to_stay_is_gone_with_its_instance(world: LocalWorld, manner: str) -> None:
    instance = world.rent(f"{STUBBORN[manner]}")
    assert world.wait(lambda: settled(world, instance, manner))
    before = [who for p in inside(world, instance) if (who := identify(p.pid))]
    world.end(instance)
    assert world.wait(lambda: not [who for who in before if is_alive(who)])


@pytest.mark.parametrize("manner", STUBBORN)
def test_it_is_gone_as_well_when_the_host_was_killed_before(world: LocalWorld, manner: str) -> None:
    instance = world.rent(STUBBORN[manner])
    assert world.wait(lambda: settled(world, instance, manner))
    # what sheds its environment is known only from the host's own notes
    assert world.wait(lambda: manner != "sheds its environment" or told_pid(world, instance) in notes(world, instance))
    before = [who for p in inside(world, instance) if (who := identify(p.pid))]
    kill_host(world, instance)
    assert world.state(instance) is InstanceState.STOPPED
    assert [i.instance_id for i in world.provider.find(namespace=new_namespace())] == []
    world.end(instance)
    assert world.wait(lambda: not [who for who in before if is_alive(who)])


def test_an_instance_outlives_the_command_that_rented_it_and_its_terminal(world: LocalWorld, tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from orchestrator.providers.local import LocalProvider\n"
        "from orchestrator.types import *\n"
        "p = LocalProvider(Path(sys.argv[1]))\n"
        "i = p.create(p.offers(Requirements())[0], LaunchSpec('sleep 1000', 3600), token=Token('t'))\n"
        "print(i.instance_id, flush=True)\n"
        "os.killpg(0, signal.SIGHUP)\n"  # what a closing terminal does to everyone on it
    )
    renter = subprocess.run(
        [sys.executable, "-c", script, str(world.state_dir)],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=60,
    )
    assert renter.returncode == -signal.SIGHUP, renter.stderr
    assert world.wait(lambda: world.provider.get(renter.stdout.strip()).state is InstanceState.RUNNING)
    host = the_host(world)
    assert os.getsid(host.pid) != os.getsid(0)
    host.send_signal(signal.SIGHUP)
    world.wait(lambda: False, 0.3)
    assert world.provider.get(renter.stdout.strip()).state is InstanceState.RUNNING


def test_no_key_of_the_caller_is_inside(world: LocalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "RUNPOD_API_KEY", "VAST_API_KEY", "WANDB_API_KEY", "EDITOR"):
        monkeypatch.setenv(name, "canary-7f3a")
    instance = world.rent("env > seen; sleep 1000", env={"WANTED": "a b", "HOME": "/elsewhere"})
    seen = world.home(instance) / "seen"
    assert world.wait(lambda: seen.exists() and b"TUNE_HOME" in seen.read_bytes())
    everyone = [*inside(world, instance), the_host(world)]
    everything = [seen.read_bytes(), *(Path(f"/proc/{p.pid}/environ").read_bytes() for p in everyone)]
    folder = world.home(instance).parent
    everything += [p.read_bytes() for p in folder.rglob("*") if p.is_file()]
    assert not [text for text in everything if b"canary-7f3a" in text]
    lines = seen.read_text()
    assert "WANTED=a b\n" in lines
    assert f"HOME={folder}/user\n" in lines
    assert f"TMPDIR={folder}/tmp\n" in lines
    assert f"TUNE_HOME={folder}/home\n" in lines
    assert f"TUNE_INSTANCE={instance.instance_id}\n" in lines
    assert "LANG=C.UTF-8\n" in lines


def test_it_works_from_an_empty_environment(world: LocalWorld) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from orchestrator.providers.local import LocalProvider\n"
        "from orchestrator.types import *\n"
        "p = LocalProvider(Path(sys.argv[1]))\n"
        "p.create(p.offers(Requirements())[0], LaunchSpec('date > dated; sleep 1000', 3600), token=Token('t'))\n"
    )
    subprocess.run([sys.executable, "-c", script, str(world.state_dir)], env={}, cwd="/", check=True, timeout=60)
    (folder,) = world.folders
    assert world.wait((folder / "home" / "dated").exists)


def test_an_instance_can_end_itself(world: LocalWorld) -> None:
    instance = world.rent('sleep 0.3; eval "$TUNE_FAREWELL"; sleep 1000')
    assert world.wait(lambda: world.state(instance) is None)
    assert world.wait(lambda: world.folders == [])


def test_a_farewell_said_after_the_end_makes_nothing(world: LocalWorld) -> None:
    instance = world.rent()
    farewell = psutil.Process(inside(world, instance)[0].pid).environ()["TUNE_FAREWELL"]
    world.end(instance)
    subprocess.run(["/bin/sh", "-c", farewell], capture_output=True, timeout=30)
    assert world.wait(lambda: world.folders == [])


def test_an_outbid_instance_computes_nothing_and_says_why(world: LocalWorld) -> None:
    instance = world.rent()
    world.outbid(instance.instance_id)
    assert world.wait(lambda: world.state(instance) is InstanceState.STOPPED)
    assert world.wait(lambda: not living(world.under))
    assert "outbid" in (world.home(instance).parent / "stopped.json").read_text()
    world.end(instance)


def test_an_instance_can_be_preempted_after_its_host_was_killed(world: LocalWorld) -> None:
    outbid, vanishing = world.rent(), world.rent()
    for instance in (outbid, vanishing):
        kill_host(world, instance)
    world.vanish(vanishing.instance_id)
    world.outbid(outbid.instance_id)
    assert world.state(vanishing) is None
    assert world.state(outbid) is InstanceState.STOPPED
    assert not living(world.under)


def test_stop_halts_it_and_terminate_removes_it(world: LocalWorld) -> None:
    instance = world.rent()
    world.provider.stop(instance.instance_id)
    assert world.wait(lambda: world.state(instance) is InstanceState.STOPPED)
    assert world.home(instance).exists()
    world.end(instance)


def test_when_the_start_command_ends_the_instance_is_stopped(world: LocalWorld) -> None:
    instance = world.rent("setsid sleep 1000 & exit 3")
    assert world.wait(lambda: world.state(instance) is InstanceState.STOPPED)
    assert "ended with 3" in (world.home(instance).parent / "stopped.json").read_text()
    assert world.wait(lambda: not living(world.under))


def test_a_polite_end_of_the_host_takes_its_processes_with_it(world: LocalWorld) -> None:
    instance = world.rent()
    the_host(world).terminate()
    assert world.wait(lambda: world.state(instance) is InstanceState.STOPPED)
    assert world.wait(lambda: not living(world.under))


def test_a_host_that_does_not_answer_is_ended_by_force(world: LocalWorld) -> None:
    instance = world.rent()
    the_host(world).suspend()
    world.provider.terminate(instance.instance_id)
    assert world.state(instance) is InstanceState.RUNNING, "accepted is not gone"
    request = world.home(instance).parent / "terminate"
    os.utime(request, (0, request.stat().st_mtime - 11))
    world.end(instance)
    assert not living(world.under)


def test_only_the_host_itself_is_killed_never_another_process_with_its_number(world: LocalWorld) -> None:
    instance = world.rent()
    bystander = subprocess.Popen(["sleep", "1000"])
    try:
        folder = world.home(instance).parent
        host = the_host(world)
        host.suspend()
        notes = (folder / "host.json").read_text()
        (folder / "host.json").write_text(notes.replace(f'"pid": {host.pid}', f'"pid": {bystander.pid}'))
        former = f'{{"pid": {bystander.pid}, "since_boot_s": 1.0, "boot": "another"}}'
        (folder / "members.json").write_text(f'{{"members": [{former}]}}')
        world.provider.terminate(instance.instance_id)
        os.utime(folder / "terminate", (0, 0))
        world.provider.terminate(instance.instance_id)
        assert bystander.poll() is None
        assert host.is_running()
        host.kill()
        world.end(instance)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_instances_side_by_side_do_not_touch_each_other(world: LocalWorld) -> None:
    instances = [world.rent(f"echo {n} > mine; setsid sleep 1000 & wait") for n in range(5)]
    for n, instance in enumerate(instances):
        assert world.wait(lambda n=n, i=instance: (world.home(i) / "mine").exists())
    first, second, third, *rest = instances
    world.end(first)
    world.vanish(second.instance_id)
    kill_host(world, third)
    world.end(third)
    assert world.wait(lambda: world.state(second) is None)
    for n, instance in enumerate(rest, start=3):
        assert world.state(instance) is InstanceState.RUNNING
        assert (world.home(instance) / "mine").read_text() == f"{n}\n"
        assert len(inside(world, instance)) >= 2


def test_a_torn_or_foreign_folder_breaks_nothing_and_is_left_alone(world: LocalWorld) -> None:
    namespace = new_namespace()
    instance = world.rent(token=new_token(namespace))
    root = world.home(instance).parent.parent
    torn = {
        "empty": None,
        "zero": b"",
        "half": b'{"instance_id": "h',
        "array": b"[]",
        "null": b"null",
        "bytes": b"\xff\xfe",
    }
    for name, content in torn.items():
        (root / name).mkdir()
        if content is not None:
            (root / name / "instance.json").write_bytes(content)
    (root / "a-file").write_text("not ours")
    (root / "a folder instead" / "instance.json").mkdir(parents=True)
    (root / "dangling").symlink_to(root / "nowhere")
    assert [i.instance_id for i in world.provider.find(namespace=namespace)] == [instance.instance_id]
    for name in torn:
        assert world.provider.get(name).state is InstanceState.UNKNOWN
    for name in ("a-file", "dangling"):
        with pytest.raises(InstanceNotFound):
            world.provider.get(name)
    assert {*torn, "a-file", "a folder instead"} <= {p.name for p in root.iterdir()}
    for name in (*torn, "a folder instead"):
        with pytest.raises(InstanceNotFound):  # asked for by name, it is removed
            world.provider.terminate(name), world.provider.terminate(name)
    (root / "a-file").unlink()
    (root / "dangling").unlink()


def test_removing_an_instance_does_not_follow_its_links(world: LocalWorld, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o755)
    (precious / "file").write_text("kept")
    instance = world.rent()
    (world.home(instance) / "link").symlink_to(precious)
    locked = world.home(instance) / "locked"
    (locked / "below").mkdir(parents=True)
    locked.chmod(0)
    world.end(instance)
    assert (precious / "file").read_text() == "kept"
    assert precious.stat().st_mode & 0o777 == 0o755


def test_nobody_else_can_read_an_instance(world: LocalWorld) -> None:
    instance = world.rent()
    folder = world.home(instance).parent
    assert folder.stat().st_mode & 0o077 == 0
    assert folder.parent.stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_listed_is_no_proof_of_absence(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "instances").write_text("in the way")
    provider = LocalProvider(tmp_path)
    with pytest.raises(ProviderUnavailable):
        provider.find(namespace=new_namespace())
    with pytest.raises(ProviderUnavailable):
        provider.offers(Requirements())


@pytest.mark.parametrize(
    "spec",
    [
        LaunchSpec(start_command=" ", deadline_s=1),
        LaunchSpec(start_command="echo \0", deadline_s=1),
        LaunchSpec(start_command="true", deadline_s=1, env={"A=B": "c"}),
        LaunchSpec(start_command="true", deadline_s=1, env={"": "c"}),
        LaunchSpec(start_command="true", deadline_s=1, env={"A": "\0"}),
    ],
)
def test_a_launch_that_cannot_work_is_refused_before_anything_is_made(world: LocalWorld, spec: LaunchSpec) -> None:
    offer = world.provider.offers(Requirements())[0]
    with pytest.raises(ProviderRejected):
        world.provider.create(offer, spec, token=Token("t"))
    assert world.wait(lambda: world.folders == [])


def test_an_offer_of_somebody_else_and_a_label_that_is_too_long_are_refused(world: LocalWorld) -> None:
    offer = world.provider.offers(Requirements())[0]
    with pytest.raises(ProviderRejected, match="elsewhere"):
        world.provider.create(replace(offer, provider="elsewhere"), world.spec, token=Token("t"))
    with pytest.raises(ProviderRejected, match="256"):
        world.provider.create(offer, world.spec, token=Token("t" * 256))


def test_a_disk_that_is_not_there_is_no_capacity(world: LocalWorld) -> None:
    offer = world.provider.offers(Requirements())[0]
    with pytest.raises(InsufficientCapacity, match="GB"):
        world.provider.create(offer, replace(world.spec, disk_gb=offer.disk_gb * 1000), token=Token("t"))
    assert world.wait(lambda: world.folders == [])


def test_capacity_is_never_given_away_twice(world: LocalWorld) -> None:
    world.options["max_instances"] = "1"
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from orchestrator.providers.local import LocalProvider\n"
        "from orchestrator.errors import *\n"
        "from orchestrator.types import *\n"
        "p = LocalProvider(Path(sys.argv[1]), {'max_instances': '1'})\n"
        "try:\n"
        "    p.create(p.offers(Requirements())[0], LaunchSpec('sleep 1000', 3600), token=Token('t'))\n"
        "except InsufficientCapacity:\n"
        "    sys.exit(13)\n"
    )
    many = [subprocess.Popen([sys.executable, "-c", script, str(world.state_dir)]) for _ in range(4)]
    assert sorted(p.wait(60) for p in many) == [0, 13, 13, 13]
    assert len(world.folders) == 1


def test_options_shape_the_offers(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path, {"offers": "3", "usd_per_hour": "0.25"})
    offers = provider.offers(Requirements(spot="never"))
    assert len({o.host_id for o in offers}) == len({o.offer_id for o in offers}) == 3
    assert {o.usd_per_hour for o in offers} == {Decimal("0.25")}
    assert not any(o.spot for o in offers)
    for bad in ({"usd_per_hour": "NaN"}, {"usd_per_hour": "-1"}, {"usd_per_hour": "cheap"}, {"offers": "-3"}):
        with pytest.raises(ProviderRejected, match=next(iter(bad))):
            LocalProvider(tmp_path, bad).offers(Requirements())


def test_an_instance_that_outlives_its_deadline_is_ended_from_outside(tmp_path: Path) -> None:
    hurried = (
        "import sys\n"
        "from pathlib import Path\n"
        "from orchestrator.clock import SystemClock\n"
        "from orchestrator.providers.local_host import Host\n"
        "class Hurried(SystemClock):\n"
        "    def monotonic(self): return 200 * super().monotonic()\n"
        "Host(Path(sys.argv[1]), Hurried()).live()\n"
    )
    started: list[subprocess.Popen[bytes]] = []

    def spawn(folder: Path, lock_fd: int, timeout_s: float) -> None:
        command = [sys.executable, "-c", hurried, str(folder)]
        env = {**os.environ, "TUNE_INSTANCE_HOST": folder.name}
        started.append(subprocess.Popen(command, pass_fds=[lock_fd], env=env))

    world = LocalWorld(tmp_path)
    world.provider = LocalProvider(world.state_dir, spawn=spawn)
    forgetful = world.rent("trap '' TERM; sleep 1000 & wait", deadline_s=100)
    assert world.wait(lambda: world.state(forgetful) is None)
    assert started[0].wait(30) == 0
    unlimited = world.rent("sleep 1000", deadline_s=0)
    assert not world.wait(lambda: world.state(unlimited) is None, 1.0), "200 s later it still lives"
    world.end(unlimited)
    assert started[1].wait(30) == 0
    world.close()


def test_a_host_that_cannot_be_started_is_an_unclear_answer_with_the_token(tmp_path: Path) -> None:
    def broken(folder: Path, lock_fd: int, timeout_s: float) -> None:
        raise subprocess.TimeoutExpired("host", timeout_s)

    world = LocalWorld(tmp_path)
    provider = LocalProvider(world.state_dir, spawn=broken)
    namespace = new_namespace()
    token = new_token(namespace)
    with pytest.raises(OutcomeUnknown) as caught:
        provider.create(provider.offers(Requirements())[0], world.spec, token=token)
    assert caught.value.token == token
    (left,) = provider.find(namespace=namespace)
    assert (left.token, left.state) == (token, InstanceState.STOPPED)
    world.close()


def inside(world: LocalWorld, instance) -> list[psutil.Process]:
    """Living processes of one instance, by descent from its host as well, so that nobody hides."""
    found = {p.pid: p for p in living(world.under) if mark(p, "TUNE_INSTANCE") == instance.instance_id}
    for host in hosts(world, instance.instance_id):
        found |= {p.pid: p for p in descendants(host.pid)}
    told = world.home(instance) / "pid"
    if told.exists() and (pid := told.read_text().strip()) and psutil.pid_exists(int(pid)):
        found[int(pid)] = psutil.Process(int(pid))  # it may hide from us, but it has told us its number
    return list(found.values())


def settled(world: LocalWorld, instance, manner: str) -> bool:
    return len(inside(world, instance)) >= 2 and (manner != "sheds its environment" or bool(told_pid(world, instance)))


def told_pid(world: LocalWorld, instance) -> bytes:
    told = world.home(instance) / "pid"
    return told.read_bytes().strip() if told.exists() else b""


def hosts(world: LocalWorld, instance_id: str = "") -> list[psutil.Process]:
    wanted = {instance_id} if instance_id else {folder.name for folder in world.folders}
    return [p for p in living(world.under) if mark(p, "TUNE_INSTANCE_HOST") in wanted]


def the_host(world: LocalWorld) -> psutil.Process:
    (host,) = hosts(world)
    return host


def notes(world: LocalWorld, instance) -> bytes:
    path = world.home(instance).parent / "members.json"
    return path.read_bytes() if path.exists() else b""


def kill_host(world: LocalWorld, instance) -> None:
    (host,) = hosts(world, instance.instance_id)
    host.kill()
    assert world.wait(lambda: world.state(instance) is not InstanceState.RUNNING)
