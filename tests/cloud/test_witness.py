"""A witness who has seen nothing proves nothing unless it would have seen something."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.cloud.canaries import Canaries
from tests.cloud.machine import MARK
from tests.cloud.witness import Witness

CANARIES = Canaries({"HF_TOKEN": "canary-of-a-token-012345"})
VALUE = CANARIES.values["HF_TOKEN"]
PATIENCE_S = 20.0


def seen(witness: Witness, what: Callable[[list[str]], bool]) -> list[str]:
    """The sightings, as soon as they are as hoped for."""
    give_up = time.monotonic() + PATIENCE_S
    while not what(found := CANARIES.sightings(list(witness.places()))) and time.monotonic() < give_up:
        time.sleep(0.02)
    return found


def program(*argv: str, **environment: str) -> subprocess.Popen[bytes]:
    script = "import sys; print(flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", script, *argv],
        env={"PATH": os.environ["PATH"], **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


def test_a_secret_on_a_command_line_is_seen_whoever_runs_it(tmp_path: Path) -> None:
    with Witness([tmp_path]) as witness, program(f"--token={VALUE}") as child:
        assert "argv" in "".join(seen(witness, bool))
        child.kill()


def test_a_secret_in_the_environment_is_seen_on_machines_only(tmp_path: Path) -> None:
    inside = {MARK: f"{tmp_path}/machine-1", "HOME": f"{tmp_path}/machine-1/root"}
    host = {MARK: f"{tmp_path}/machine-1", "HOME": "/root"}
    with Witness([tmp_path]) as witness:
        with program("a user's own", HF_TOKEN=VALUE) as first, program("a host's", HF_TOKEN=VALUE, **host) as second:
            time.sleep(0.2)
            first.kill()
            second.kill()
        assert CANARIES.sightings(witness.places()) == []
        with program("a machine's", HF_TOKEN=VALUE, **inside) as third:
            assert "environment of" in "".join(seen(witness, bool))
            third.kill()


def test_a_secret_in_a_file_is_seen_unless_the_file_is_there_for_that(tmp_path: Path) -> None:
    home = tmp_path / "machine-1" / "root"
    home.mkdir(parents=True)
    with Witness([tmp_path]) as witness:
        (home / "secrets.json").write_text(VALUE)
        (home / "storage.json.draft").write_text(VALUE)
        (home / "harmless").write_text("words")
    assert CANARIES.sightings(witness.places()) == []
    assert witness.kept_apart().count(VALUE.encode()) in (1, 2)  # the same content counts once
    with Witness([tmp_path]) as witness:
        (home / "agent.log").write_text(f"token {VALUE}")
    assert "agent.log" in "".join(CANARIES.sightings(witness.places()))
