"""Making a rented instance run the agent: three small files, the one that starts everything last."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal

from orchestrator import codec
from orchestrator.handover import LAST_HEARTBEAT, AgentConfig
from orchestrator.policy import instance_life_s
from orchestrator.remote.base import Remote
from orchestrator.types import LaunchSpec, Offer, Run

AGENT_CONFIG = "agent.json"
SECRETS = "secrets.json"
AGENT_SCRIPT = "agent.sh"
DEADLINE_VARIABLE = "TUNE_DEADLINE_S"


def launch_spec(run: Run, offer: Offer, *, start_command: str, spent_usd: Decimal, now: datetime) -> LaunchSpec:
    """How the instance starts, and how long it may live even if nobody ever looks at it again."""
    life_s = instance_life_s(run, usd_per_hour=offer.usd_per_hour, spent_usd=spent_usd, now=now)
    return LaunchSpec(
        start_command=start_command,
        deadline_s=life_s,
        disk_gb=run.want.disk_gb,
        env={DEADLINE_VARIABLE: str(int(life_s))},
    )


def agent_config(
    run: Run, attempt: int, *, storage_url: str, storage_options: Mapping[str, str], trainer_python: str = ""
) -> AgentConfig:
    """All that the agent needs to know. Keys travel apart, in `secrets.json`."""
    limits = run.limits
    return AgentConfig(
        run_id=run.run_id,
        attempt=attempt,
        storage_url=storage_url,
        storage_options=dict(storage_options),
        recipe_sha256=run.recipe_sha256,
        data_sha256=run.data_sha256,
        trainer_python=trainer_python,
        checkpoint_every_s=limits.checkpoint_every_s,
        hang_timeout_s=limits.hang_timeout_s,
        keep_checkpoints=limits.keep_checkpoints,
        upload_grace_s=limits.upload_grace_s,
        allow_optimizer_reset=limits.allow_optimizer_reset,
    )


def local_agent_script(python: str = sys.executable) -> bytes:
    """agent.sh for instances on this very computer: the agent is the package that is running now."""
    return f'#!/bin/sh\nexec {shlex.quote(python)} -m orchestrator.agent --home "$TUNE_HOME"\n'.encode()


def put_secrets(remote: Remote, secrets: Mapping[str, str]) -> None:
    """Renew the keys on the instance; the agent takes them up by itself."""
    remote.put(SECRETS, json.dumps(dict(secrets), indent=1, sort_keys=True).encode() + b"\n", mode=0o600)


_AGE = re.compile(rb"tune-agent-age=(\d+)\b")


def agent_age_s(remote: Remote) -> float | None:
    """Seconds since the agent last wrote its heartbeat to its own disk, by the instance's clock; None when unknown.

    An agent whose bucket is down goes on beating there; a dead one does not.
    """
    look = f'now=$(date +%s) && then=$(stat -c %Y {LAST_HEARTBEAT}) && echo "tune-agent-age=$((now - then))"'
    found = _AGE.search(remote.run(["sh", "-c", look], timeout_s=30).stdout)
    return float(found[1]) if found else None


def bootstrap(
    remote: Remote,
    *,
    config: AgentConfig,
    secrets: Mapping[str, str],
    agent_script: bytes,
    renew: Callable[[], None] = lambda: None,
) -> None:
    """Put the agent in place. Doing it twice is harmless: the same bytes go to the same names.

    `renew` is called between the files, so that a slow line does not outlast the claim on the run.
    """
    remote.put(AGENT_CONFIG, codec.dump(config), mode=0o600)
    renew()
    put_secrets(remote, secrets)
    renew()
    remote.put(AGENT_SCRIPT, agent_script, mode=0o755)  # the start command waits for this one
