"""Whoever rents may die at any moment: what is left is found by its token, or is nothing at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from orchestrator.errors import InstanceNotFound
from orchestrator.processes import lock_is_held
from orchestrator.providers.local import LocalProvider
from orchestrator.types import InstanceState, Requirements, Token, new_namespace
from tests.contract.provider_contract import new_token
from tests.support.local import LocalWorld
from tests.support.processes import mark

# Runs in a program of its own and kills itself at the k-th thing that it asks of the operating system during create.
RENT_AND_DIE = """
import os, signal, sys
from pathlib import Path
from orchestrator import codec
from orchestrator.providers import local_host
from orchestrator.providers.local import LocalProvider
from orchestrator.types import *

state_dir, token, die_at = Path(sys.argv[1]), Token(sys.argv[2]), sys.argv[3:]
WATCHED = ("open", "os.mkdir", "os.rename", "os.remove", "fcntl.flock", "subprocess.Popen", "os.fork", "shutil.rmtree")

class Die:
    def __init__(self): self.count, self.on = 0, False
    def __call__(self, event, args):
        if self.on and event in WATCHED:
            self.count += 1
            if str(self.count) in die_at:
                os.kill(os.getpid(), signal.SIGKILL)

provider = LocalProvider(state_dir)
offer, spec = provider.offers(Requirements())[0], LaunchSpec("sleep 1000", 3600)
codec.dump(offer)  # imports happen here, not under watch
die = Die()
sys.addaudithook(die)
die.on = True
provider.create(offer, spec, token=token)
die.on = False
print(die.count, flush=True)
os.kill(os.getpid(), signal.SIGKILL)  # and once more, right after the answer
"""


def rent_and_die(world: LocalWorld, token: Token, at: int | None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", RENT_AND_DIE, str(world.state_dir), token, *([] if at is None else [str(at)])],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout


def test_a_renter_killed_at_any_moment_leaves_its_token_or_nothing(world: LocalWorld) -> None:
    namespace = new_namespace()
    count = int(rent_and_die(world, token := new_token(namespace), None))
    assert 10 < count < 60, "the watched calls of one create"
    (kept,) = world.provider.find(namespace=namespace)
    assert kept.token == token
    assert world.wait(lambda: world.state(kept) is InstanceState.RUNNING), "dying after the answer changes nothing"
    world.end(kept)

    left = []
    for at in range(1, count + 1):
        token = new_token(namespace)
        assert rent_and_die(world, token, at) == ""
        seen = world.provider.find(namespace=namespace)
        assert [i.token for i in seen] == [token] * len(seen)
        assert len(seen) <= 1
        left.append(len(seen))
        for instance in seen:
            world.end(instance)
    assert left == sorted(left), "once it is there, it stays"
    assert {0, 1} == set(left), "both sides of the moment were visited"


class Later:
    """A clock that is ahead."""

    def __init__(self, by: timedelta) -> None:
        self.by = by

    def now(self) -> datetime:
        return datetime.now(UTC) + self.by

    def monotonic(self) -> float:
        return self.by.total_seconds()

    def sleep(self, seconds: float) -> None:
        self.by += timedelta(seconds=seconds)


def test_what_was_never_finished_is_cleared_away_later_and_not_before(world: LocalWorld) -> None:
    root = world.state_dir / "local" / "instances"
    half_made, half_removed = root / ".new-local-0", root / ".gone-local-1-ab"
    half_made.mkdir(parents=True)
    (half_removed / "home").mkdir(parents=True)
    world.end(world.rent())
    assert half_made.exists(), "its maker may still be at it"
    assert not half_removed.exists()
    later = LocalProvider(world.state_dir, clock=Later(timedelta(hours=2)))
    created = later.create(later.offers(Requirements())[0], world.spec, token=Token("t"))
    assert not half_made.exists()
    world.end(created)


def test_a_crash_while_it_is_being_removed_is_finished_by_the_next_terminate(world: LocalWorld) -> None:
    """Processes ended, folder still there: the host died between the two."""
    instance = world.rent("exit 0")
    assert world.wait(lambda: world.state(instance) is InstanceState.STOPPED)
    assert world.wait(lambda: not lock_is_held(Path(instance.address["alive"])))
    (world.home(instance).parent / "terminate").touch()
    world.provider.terminate(instance.instance_id)
    assert world.state(instance) is None


def test_an_instance_terminated_before_its_host_came_up_never_starts(world: LocalWorld) -> None:
    def early(folder: Path, lock_fd: int, timeout_s: float) -> None:
        assert world.provider.get(folder.name).state is InstanceState.STARTING
        world.provider.terminate(folder.name)
        assert world.provider.get(folder.name).token == "t", "accepted is not gone"
        world._spawn(folder, lock_fd, timeout_s)

    provider = LocalProvider(world.state_dir, spawn=early)
    proof = world.under / "started"
    spec = world.spec.__class__(start_command=f"touch '{proof}'; sleep 1000", deadline_s=60)
    created = provider.create(provider.offers(Requirements())[0], spec, token=Token("t"))
    assert world.wait(lambda: world.state(created) is None)
    assert not proof.exists()


def test_many_may_terminate_at_once_when_there_is_no_host(world: LocalWorld) -> None:
    instance = world.rent("setsid sleep 1000 & setsid sleep 1000 & wait")
    host = next(p for p in world.provider_hosts() if mark(p, "TUNE_INSTANCE_HOST") == instance.instance_id)
    host.kill()
    assert world.wait(lambda: not lock_is_held(Path(instance.address["alive"])))
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from orchestrator.providers.local import LocalProvider\n"
        "from orchestrator.errors import InstanceNotFound\n"
        "try:\n"
        "    LocalProvider(Path(sys.argv[1])).terminate(sys.argv[2])\n"
        "except InstanceNotFound:\n"
        "    pass\n"
    )
    many = [
        subprocess.Popen([sys.executable, "-c", script, str(world.state_dir), instance.instance_id]) for _ in range(4)
    ]
    assert [p.wait(60) for p in many] == [0] * 4
    try:
        world.provider.get(instance.instance_id)
    except InstanceNotFound:
        return
    raise AssertionError("one of them must have ended it")


def test_after_a_reboot_it_is_listed_as_stopped(world: LocalWorld) -> None:
    """Power went: the folder is all there is, and the numbers in it may belong to anybody now."""
    instance = world.rent()
    folder = world.home(instance).parent
    text = (folder / "host.json").read_text()
    host = next(iter(world.provider_hosts()))
    world.provider.stop(instance.instance_id)
    assert world.wait(lambda: not host.is_running() or host.status() == "zombie")
    (folder / "stopped.json").unlink()
    (folder / "stop").unlink()
    me = f'{{"pid": {os.getpid()}, "since_boot_s": 1.5, "boot": "the one before"}}'
    (folder / "host.json").write_text(me)
    (folder / "members.json").write_text(f'{{"members": [{me}]}}')
    assert text != me
    assert world.state(instance) is InstanceState.STOPPED
    world.end(instance)  # and this very test is still running
