"""What an instance is given, in which order, and that nothing else is needed."""

from __future__ import annotations

import json
import subprocess
from decimal import Decimal
from pathlib import Path

from orchestrator import codec
from orchestrator.bootstrap import Baggage, agent_config, bootstrap, launch_spec, local_agent_script
from orchestrator.handover import AgentConfig
from orchestrator.remote.base import Completed
from orchestrator.types import Limits, Phase, Requirements
from tests.unit.cases import NOW, OFFER, run


class Desk:
    """A remote that keeps what it is given."""

    def __init__(self) -> None:
        self.puts: list[tuple[str, bytes, int]] = []

    def put(self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = 120) -> None:
        self.puts.append((path, data, mode))

    def run(self, argv: object, *, env: object = None, timeout_s: float = 60) -> Completed:
        return Completed(0, b"", b"")

    def close(self) -> None:
        pass


LIMITS = Limits(
    checkpoint_every_s=600, keep_checkpoints=5, hang_timeout_s=99, upload_grace_s=7, allow_optimizer_reset=True
)


def _config() -> AgentConfig:
    given = run(Phase.BOOTSTRAPPING, limits=LIMITS)
    return agent_config(given, 3, storage_url="s3://b/p", storage_options={"region": "x"}, trainer_python="/py")


def test_the_agent_script_comes_last_because_the_start_command_waits_for_it() -> None:
    desk, renewed = Desk(), []
    bootstrap(
        desk, config=_config(), secrets={"K": "v"}, baggage=Baggage(b"go"), renew=lambda: renewed.append(len(desk.puts))
    )
    assert [(path, oct(mode)) for path, _, mode in desk.puts] == [
        ("agent.json", "0o600"),
        ("secrets.json", "0o600"),
        ("agent.sh", "0o755"),
    ]
    assert renewed == [1, 2], "the claim is renewed between the files"
    assert json.loads(desk.puts[1][1]) == {"K": "v"}


def test_doing_it_twice_puts_the_same_bytes() -> None:
    first, second = Desk(), Desk()
    for desk in (first, second):
        bootstrap(desk, config=_config(), secrets={"K": "v"}, baggage=Baggage(b"go"))
    assert first.puts == second.puts


def test_the_agent_is_told_what_the_recipe_says_and_no_key() -> None:
    config = _config()
    assert codec.load(AgentConfig, codec.dump(config), where="agent.json") == config
    assert (config.attempt, config.storage_url, config.trainer_python) == (3, "s3://b/p", "/py")
    assert (config.checkpoint_every_s, config.keep_checkpoints, config.hang_timeout_s) == (600, 5, 99)
    assert (config.upload_grace_s, config.allow_optimizer_reset) == (7, True)


def test_the_instance_is_told_its_own_deadline() -> None:
    given = run(Phase.PENDING, limits=Limits(budget_usd=Decimal("0.36")), want=Requirements(disk_gb=80))
    spec = launch_spec(given, OFFER, start_command="sh", spent_usd=Decimal(0), now=NOW)
    assert (spec.start_command, spec.disk_gb) == ("sh", 80)
    assert spec.deadline_s == 3900
    assert spec.env == {"TUNE_DEADLINE_S": "3900"}


def test_the_local_script_survives_a_hostile_path(tmp_path: Path) -> None:
    python = tmp_path / 'it\'s $(touch p) "here"'
    python.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    python.chmod(0o755)
    script = tmp_path / "agent.sh"
    script.write_bytes(local_agent_script(str(python)))
    done = subprocess.run(
        ["/bin/sh", str(script)], env={"TUNE_HOME": "/a b"}, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout == "-m|orchestrator.agent|--home|/a b|"
    assert not (tmp_path / "p").exists()
