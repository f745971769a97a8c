"""An instance ends itself with the key that the marketplace has put on it, and nobody else gets to see that key."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.providers.boot import Farewell, farewell_script
from tests.instance.stand import Container
from tests.instance.web import Web

KEY = "instance-key-CANARY-$(touch p)`'0123456789"
NEEDED = ("dirname", "sh", "cat")


@pytest.fixture(params=["curl", "python"])
def path(request: pytest.FixtureRequest, container: Container) -> str:
    """The PATH of an image that has only one of the two ways to ask."""
    for name in NEEDED:
        (container.bin / name).symlink_to(str(shutil.which(name)))
    if request.param == "curl":
        if shutil.which("curl") is None:
            pytest.skip("there is no curl on this computer")
        (container.bin / "curl").symlink_to(str(shutil.which("curl")))
    else:
        (container.bin / "python3").symlink_to(sys.executable)
    return str(container.bin)


class Instance:
    def __init__(self, container: Container, web: Web, path: str, *, key: str = KEY, fallback: bool = True) -> None:
        self.container = container
        self.env = {"PATH": path, "HOME": str(container.home)}
        farewell = Farewell(
            "ID",
            "KEY",
            web.url + "/v2/pods/{id}",
            web.url + "/graphql" if fallback else "",
            '{"query":"mutation($i: X!) { end(i: $i) }","variables":{"i":{"podId":"{id}"}}}' if fallback else "",
        )
        self.script = container.home / "farewell.sh"
        self.script.write_text(farewell_script(farewell))
        (container.home / "instance.env").write_text(f"i-7\n{key}\n")

    def start(self, what: str) -> subprocess.Popen[bytes]:
        return self.container.spawn(["/bin/sh", str(self.script), what], self.container.environment() | self.env)

    def run(self, what: str) -> int:
        return self.start(what).wait(60)


def test_the_end_is_one_delete_with_the_instance_s_own_key(container: Container, web: Web, path: str) -> None:
    assert Instance(container, web, path).run("end") == 0
    (asked,) = web.asked
    assert (asked.method, asked.path, asked.body) == ("DELETE", "/v2/pods/i-7", b"")
    assert asked.head["authorization"] == f"Bearer {KEY}"
    assert asked.head["user-agent"] == "spot-tune", "some front doors turn away the agents of libraries"
    assert not (container.home / "p").exists()


@pytest.mark.parametrize(("status", "code"), [(204, 0), (404, 0), (401, 1), (429, 1), (500, 1)])
def test_only_a_yes_or_an_absence_is_taken_for_the_end(
    container: Container, web: Web, path: str, status: int, code: int
) -> None:
    web.answers = {"DELETE": status}
    assert Instance(container, web, path, fallback=False).run("end") == code
    assert len(web.asked) == 1


def test_a_key_that_the_first_way_does_not_take_is_tried_on_the_second(
    container: Container, web: Web, path: str
) -> None:
    web.answers = {"DELETE": 403}
    assert Instance(container, web, path).run("end") == 0
    asked = web.asked[1]
    assert (asked.method, asked.path) == ("POST", "/graphql")
    assert asked.head["content-type"] == "application/json"
    assert asked.head["authorization"] == f"Bearer {KEY}"
    assert json.loads(asked.body)["variables"] == {"i": {"podId": "i-7"}}
    web.answers = {"DELETE": 500, "POST": 500}
    assert Instance(container, web, path).run("end") == 1


@pytest.mark.parametrize(("status", "code"), [(200, 0), (404, 1), (403, 1)])
def test_looking_ends_nothing(container: Container, web: Web, path: str, status: int, code: int) -> None:
    web.answers = {"GET": status}
    assert Instance(container, web, path).run("look") == code
    assert [asked.method for asked in web.asked] == ["GET"]


def test_nobody_there_is_no_yes(container: Container, web: Web, path: str) -> None:
    instance = Instance(container, web, path)
    web.close()
    assert instance.run("end") == 1
    assert instance.run("look") == 1


def test_without_the_key_it_says_that_it_cannot(container: Container, web: Web, path: str) -> None:
    instance = Instance(container, web, path)
    (container.home / "instance.env").unlink()
    assert instance.run("end") == 3
    assert web.asked == []


def test_the_key_is_never_an_argument_of_any_process(container: Container, web: Web, path: str) -> None:
    web.gate.clear()
    key = secrets.token_hex(20)
    instance = Instance(container, web, path, key=key)
    child = instance.start("end")
    container.wait(lambda: web.asked)
    lines, environs = [], []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines.append((entry / "cmdline").read_bytes())
                environs.append((entry / "environ").read_bytes())
            except OSError:
                continue
    assert any(b"/v2/pods/i-7" in line for line in lines), "it is under way"
    assert not any(key.encode() in text for text in (*lines, *environs))
    web.gate.set()
    assert child.wait(60) == 0
