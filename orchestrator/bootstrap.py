"""Making a rented instance run the agent: three small files, the one that starts everything last."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from orchestrator import codec, wheel
from orchestrator.errors import RemoteError
from orchestrator.handover import LAST_HEARTBEAT, AgentConfig
from orchestrator.policy import instance_life_s
from orchestrator.recipe.axolotl import configs_dir
from orchestrator.remote.base import Remote
from orchestrator.storage.grants import Grant
from orchestrator.types import LaunchSpec, Offer, Run

AGENT_CONFIG = "agent.json"
SECRETS = "secrets.json"
STORAGE_KEYS = "storage.json"
SIGNED = "signed.json"
AGENT_SCRIPT = "agent.sh"
BOOTSTRAP = "bootstrap.sh"
TOLD_OPTIONS = ("endpoint_url", "region", "addressing_style", "single_writer")  # the others concern this computer only
DEADLINE_VARIABLE = "TUNE_DEADLINE_S"


def launch_spec(run: Run, offer: Offer, *, start_command: str, spent_usd: Decimal, now: datetime) -> LaunchSpec:
    """How the instance starts, and how long it may live even if nobody ever looks at it again."""
    life_s = instance_life_s(run, usd_per_hour=offer.usd_per_hour, spent_usd=spent_usd, now=now)
    return LaunchSpec(
        start_command=start_command,
        deadline_s=life_s,
        disk_gb=run.want.disk_gb,
        image=run.want.image,
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
        storage_options={name: value for name, value in storage_options.items() if name in TOLD_OPTIONS},
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


@dataclass(frozen=True, slots=True)
class Baggage:
    """What goes on an instance beside its config and keys: path below the tune home -> bytes and mode, and agent.sh."""

    agent_script: bytes
    files: Mapping[str, tuple[bytes, int]] = field(default_factory=dict)


def here(python: str = sys.executable) -> Baggage:
    """For instances on this very computer."""
    return Baggage(local_agent_script(python))


def elsewhere() -> Baggage:
    """For rented computers: this package as a wheel, what it needs, and the script that sets both up."""
    files = {f"wheel/{wheel.file_name()}": (wheel.build(), 0o644), BOOTSTRAP: (_bootstrap_script(), 0o755)}
    for stack in sorted((configs_dir() / "stacks").glob("*.txt")):
        files[f"stacks/{stack.name}"] = (stack.read_bytes(), 0o644)
    return Baggage(b'#!/bin/sh\nexec sh "$TUNE_HOME/bootstrap.sh"\n', files)


def _bootstrap_script() -> bytes:
    package = Path(__file__).parent
    inside = package / "_data" / "scripts" / BOOTSTRAP
    return (inside if inside.is_file() else package.parent / "scripts" / BOOTSTRAP).read_bytes()


def put_keys(remote: Remote, secrets: Mapping[str, str], grant: Grant | None) -> None:
    """Renew the keys on the instance; the agent takes them up by itself."""
    if grant is not None:
        remote.put(STORAGE_KEYS, grant.dump(), mode=0o600)
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
    baggage: Baggage,
    grant: Grant | None = None,
    boot_script: str = "",
    signed: Mapping[str, str] | None = None,
    renew: Callable[[], None] = lambda: None,
) -> None:
    """Put the agent in place. Doing it twice is harmless: the same bytes go to the same names.

    `boot_script` is run first, for a platform that has not run it by itself. `signed`: addresses to which a set-up that
    fails may upload its log and its end. `renew` is called between the files, so that a slow line does not outlast the
    claim on the run.
    """
    if boot_script:
        _boot(remote, boot_script)
    remote.put(AGENT_CONFIG, codec.dump(config), mode=0o600)
    renew()
    put_keys(remote, secrets, grant)
    renew()
    if signed:
        remote.put(SIGNED, json.dumps(dict(signed), indent=1, sort_keys=True).encode() + b"\n", mode=0o600)
    there = _hashes(remote, baggage.files) if baggage.files else {}
    for path, (data, mode) in baggage.files.items():
        if there.get(path) != hashlib.sha256(data).hexdigest():
            remote.put(path, data, mode=mode)
            renew()
    remote.put(AGENT_SCRIPT, baggage.agent_script, mode=0o755)  # the start command waits for this one


def _boot(remote: Remote, script: str) -> None:
    done = remote.run(["sh", "-c", script], timeout_s=60)
    if done.exit_code != 0:
        raise RemoteError(f"the start command failed: {done.stderr.decode(errors='replace')[-300:].strip()}")


def _hashes(remote: Remote, paths: Iterable[str]) -> dict[str, str]:
    """sha256 of what is there already; an instance that cannot tell gets everything again."""
    told = remote.run(["sha256sum", "--", *paths], timeout_s=60).stdout.decode(errors="replace")
    lines = [line.split(maxsplit=1) for line in told.splitlines()]
    return {parts[1].lstrip("*"): parts[0] for parts in lines if len(parts) == 2}


def boot_log(remote: Remote) -> str:
    """The last lines of the set-up on the instance, for people."""
    return remote.run(["tail", "-n", "5", "log/bootstrap.log"], timeout_s=30).stdout.decode(errors="replace").strip()
