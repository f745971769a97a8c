"""The first thing that a rented instance runs: harmless twice, and enough to end the instance though nobody ever comes."""

from __future__ import annotations

import base64
import os
import shlex
import signal
import stat
import time
from hashlib import sha256
from importlib import resources
from pathlib import Path

import pytest

from orchestrator.errors import ProviderRejected
from orchestrator.providers.boot import MAX_CHARACTERS, NO_FAREWELL, Farewell, boot_script
from tests.instance.stand import PUBLIC_KEY, RUNPOD, TOKEN, VAST, Container, spec
from tests.instance.web import Web

SHELLS = [path for path in ("/bin/sh", "/bin/dash", "/bin/bash") if Path(path).exists()]
KEY = "instance-key-CANARY-0123456789abcdef"


def vast_env() -> dict[str, str]:
    return {"CONTAINER_ID": "7007", "CONTAINER_API_KEY": KEY}


@pytest.mark.parametrize(
    ("farewell", "foreground"), [(VAST, False), (VAST, True), (RUNPOD, True), (NO_FAREWELL, False)]
)
def test_it_fits_into_what_the_marketplaces_take(farewell: Farewell, foreground: bool) -> None:
    script = boot_script(spec(), TOKEN, farewell, foreground=foreground)
    assert len(script) <= MAX_CHARACTERS < 4096
    assert script.isascii() and "\n" not in script
    assert "'" not in script and '"' not in script, "a platform that quotes it badly cannot break it"


def test_run_by_a_shell_directly_it_does_not_remove_that_shell(container: Container) -> None:
    text = resources.files("orchestrator.providers").joinpath("boot.sh").read_text()
    first = next(line for line in text.splitlines() if line and not line.startswith("#"))
    shell = container.folder / "shell"
    shell.write_text("")
    done = container.spawn(["/bin/sh", "-c", first, str(shell)], container.environment())
    assert done.wait(20) == 0
    assert 'rm -f "$0"' in first and text.count("rm -f") == 1
    assert shell.exists()


def test_one_that_does_not_fit_is_never_sent() -> None:
    long = Farewell("A", "B", "https://gateway.example/" + base64.b64encode(os.urandom(600)).decode())
    with pytest.raises(ProviderRejected, match="longer than 4000"):
        boot_script(spec(), TOKEN, long, foreground=False)
    assert boot_script(spec(), TOKEN, long, foreground=True), "only Vast.ai names a limit"


@pytest.mark.parametrize("shell", SHELLS)
def test_it_lets_us_in_says_where_the_tune_home_is_and_starts_the_loop(container: Container, shell: str) -> None:
    container.run(boot_script(spec(), TOKEN, VAST, foreground=False), shell=shell, **vast_env())
    home = container.tune_home
    assert home == container.home / "tune" / TOKEN
    assert (container.home / ".ssh" / "authorized_keys").read_text() == PUBLIC_KEY + "\n"
    assert (container.home / ".no_auto_tmux").exists()
    assert (home / "instance.env").read_text() == f"7007\n{KEY}\n"
    for path in (home / "instance.env", container.home / ".tune" / TOKEN, container.home / ".ssh" / "authorized_keys"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    container.wait((home / "deadline").exists)
    assert 3590 <= int((home / "deadline").read_text()) - time.time() <= 3601
    assert container.loops() == [int((home / "start.pid").read_text())]
    assert not (container.home / "p").exists()


def test_doing_it_again_over_ssh_changes_nothing(container: Container) -> None:
    keys = container.home / ".ssh" / "authorized_keys"
    keys.parent.mkdir()
    keys.write_text("ssh-rsa AAAA of-the-account")  # without a line end, as some images leave it
    script = boot_script(spec(), TOKEN, VAST, foreground=False)
    container.run(script, **vast_env())
    container.wait((container.tune_home / "deadline").exists)
    before, loops = (container.tune_home / "deadline").read_text(), container.loops()
    again = boot_script(spec(env={"TUNE_DEADLINE_S": "9"}, proof_secret=""), TOKEN, VAST, foreground=False)
    container.run(again)  # a login does not have the marketplace's variables
    assert keys.read_text() == f"ssh-rsa AAAA of-the-account\n{PUBLIC_KEY}\n"
    assert (container.tune_home / "instance.env").read_text() == f"7007\n{KEY}\n"
    assert (container.loops(), (container.tune_home / "deadline").read_text()) == (loops, before)


def test_whoever_comes_at_the_same_time_there_is_one_loop(container: Container) -> None:
    script = boot_script(spec(), TOKEN, VAST, foreground=False)
    children = [container.spawn(["/bin/sh", "-c", script], container.environment()) for _ in range(6)]
    assert [child.wait(60) for child in children] == [0] * 6
    container.wait((container.tune_home / "deadline").exists)
    assert len(container.loops()) == 1


def test_a_restarted_container_keeps_its_deadline_its_home_and_one_loop(container: Container) -> None:
    container.run(boot_script(spec(), TOKEN, VAST, foreground=False), **vast_env())
    container.wait((container.tune_home / "deadline").exists)
    home, deadline = container.tune_home, (container.tune_home / "deadline").read_text()
    container.power_off()
    (home / "start.pid").write_text(f"{os.getpid()}\n")  # the number is somebody else's now
    container.run(boot_script(spec(env={"TUNE_DEADLINE_S": "999999"}), TOKEN, VAST, foreground=False), **vast_env())
    container.wait(container.loops)
    assert (container.tune_home, (home / "deadline").read_text()) == (home, deadline)
    assert container.loops() == [int((home / "start.pid").read_text())]


def test_in_the_foreground_it_becomes_the_loop_and_ends_with_it(container: Container) -> None:
    script = boot_script(spec(), TOKEN, RUNPOD, foreground=True)
    first = container.spawn(["/bin/sh", "-c", script], container.environment(RUNPOD_POD_ID="p1", RUNPOD_API_KEY=KEY))
    container.wait(lambda: container.loops() == [first.pid])
    assert (container.tune_home / "instance.env").read_text() == f"p1\n{KEY}\n"
    container.wait((container.tune_home / "deadline").exists)
    os.kill(first.pid, signal.SIGTERM)
    assert first.wait(20) == 143


def test_it_vouches_for_every_host_key_with_the_secret_of_the_create_request(container: Container) -> None:
    blobs = [os.urandom(51), os.urandom(279)]
    for kind, blob in zip(("ed25519", "rsa"), blobs, strict=True):
        text = f"ssh-{kind} {base64.b64encode(blob).decode()} root@host\n"
        (container.folder / f"{kind}.pub").write_text(text)
    names = f"{container.bin}/../ed25519.pub".replace(" ", "?") + " " + f"{container.folder}/rsa.pub".replace(" ", "?")
    container.run(boot_script(spec(), TOKEN, VAST, foreground=False), TUNE_HOST_KEYS=names)
    said = (container.tune_home / "host-keys").read_text().split()
    texts = [base64.b64encode(blob).decode() for blob in blobs]  # the form that remote/sshpins.py describes
    assert said == [sha256(f"{'5e' * 32}:{text}:{'5e' * 32}".encode()).hexdigest() for text in texts]
    container.run(boot_script(spec(proof_secret=""), TOKEN, VAST, foreground=False), TUNE_HOST_KEYS=names)
    assert (container.tune_home / "host-keys").read_text().split() == said


def test_without_host_keys_to_read_it_vouches_for_nothing(container: Container) -> None:
    container.run(boot_script(spec(), TOKEN, VAST, foreground=False), TUNE_HOST_KEYS="/nowhere/*.pub")
    assert not (container.tune_home / "host-keys").exists()


@pytest.mark.parametrize(("biggest", "expected"), [("work space", "work space"), ("data", "data"), ("", "")])
def test_the_tune_home_lies_on_the_biggest_disk_that_can_be_written(
    container: Container, biggest: str, expected: str
) -> None:
    places = {name: container.folder / name for name in ("work space", "data")}
    for place in places.values():
        place.mkdir()
    sizes = {str(container.home): 50, **{str(p): 900 if n == biggest else 40 for n, p in places.items()}}
    cases = "".join(f"{shlex.quote(path)}) size={size} ;;\n" for path, size in sizes.items())
    container.program("df", f'case $2 in\n{cases}esac\nprintf "head\\nfs 1 1 %s 1%% /x\\n" "$size"\n')
    text = resources.files("orchestrator.providers").joinpath("boot.sh").read_text()
    assert "for place in /workspace /data; do" in text
    named = " ".join(shlex.quote(str(place)) for place in places.values())
    text = text.replace("for place in /workspace /data; do", f"for place in {named}; do")
    values = {"token": TOKEN, "mode": "background", "deadline_s": "60", "start_sh": spec().start_command}
    empty = ("public_key", "proof_secret", "id_name", "key_name", "farewell_sh")
    script = "".join(f"{n}={shlex.quote(v)}\n" for n, v in {**values, **dict.fromkeys(empty, "")}.items()) + text
    container.run(script)
    where = places[expected] if expected else container.home
    assert container.tune_home == where / "tune" / TOKEN
    if expected:
        sizes_now = places["data" if biggest != "data" else "work space"]
        container.program(
            "df", f'[ "$2" = {shlex.quote(str(sizes_now))} ] && s=9999 || s=1\nprintf "h\\nf 1 1 %s\\n" "$s"\n'
        )
        container.run(script)
        assert container.tune_home == where / "tune" / TOKEN, "it stays where its work is"


def test_when_nobody_ever_comes_it_still_ends_itself_at_its_deadline(container: Container, web: Web) -> None:
    """No agent, no launcher: what the create request carried is enough."""
    farewell = Farewell("CONTAINER_ID", "CONTAINER_API_KEY", web.url + "/api/v0/instances/{id}/")
    web.answers = {"DELETE": 503}
    script = boot_script(spec(env={"TUNE_DEADLINE_S": "1"}), TOKEN, farewell, foreground=False)
    container.run(script, **vast_env())
    container.wait(lambda: len(web.asked) >= 2)  # and again, until it is gone
    assert {(asked.method, asked.path) for asked in web.asked} == {("DELETE", "/api/v0/instances/7007/")}
    assert web.asked[0].head["authorization"] == f"Bearer {KEY}"
    assert KEY not in (container.tune_home / "log" / "agent.out").read_text()
