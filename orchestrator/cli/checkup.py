"""What can be wrong with a setup, looked at before it costs a night. Used by `tune doctor`."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING

from orchestrator.cli import accounts
from orchestrator.errors import TuneError, UsageError
from orchestrator.findings import FAIL, OK, WARN, Finding

if TYPE_CHECKING:
    from orchestrator.cli.session import Session

SKEW_S = 60.0  # a clock that wrong makes log lines hard to read; S3 refuses requests from 15 minutes on
SKEW_REFUSED_S = 900.0
LITTLE_DISK_GB = 5.0
OLDEST_PYTHON = (3, 11)
TRAINING = ("torch", "transformers", "peft", "trl", "accelerate", "datasets", "bitsandbytes")


def check_up(session: Session) -> Iterator[Finding]:
    """Every check by itself: one that fails does not hide the next. Without settings there is nothing to check."""
    yield _python()
    try:
        settings = session.settings
    except UsageError as e:
        yield Finding.of("config", e)
        return
    yield Finding(OK, "config", f"{settings.source or 'no file, defaults'}; storage {settings.storage}")
    for what, check in (
        ("state", _state_dir),
        ("storage", _storage),
        ("bucket keys", _bucket_keys),
        ("clock", _clock),
        ("provider", accounts.providers),
        ("hub", accounts.hub),
        ("sdks", accounts.sdks),
        ("trainer", _trainer),
        ("cron", _cron),
    ):
        yield from _guarded(what, check, session)


def _guarded(what: str, check: Callable[[Session], Iterator[Finding]], session: Session) -> Iterator[Finding]:
    try:
        yield from check(session)
    except TuneError as e:
        yield Finding.of(what, e)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Finding(FAIL, "python", f"{version} at {sys.executable}", "tune needs Python 3.11 or newer")
    return Finding(OK, "python", f"{version} at {sys.executable}")


def _state_dir(session: Session) -> Iterator[Finding]:
    folder = session.settings.state_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".doctor-{secrets.token_hex(4)}"
        probe.write_bytes(b"")
        probe.unlink()
        free_gb = shutil.disk_usage(folder).free / 1e9
    except OSError as e:
        yield Finding(
            FAIL, "state", f"{folder}: {e.strerror}", "set state_dir to a folder that you may write to", UsageError
        )
        return
    keys = folder / "ssh"
    if keys.is_dir() and keys.stat().st_mode & 0o077:
        yield Finding(
            WARN, "state", f"{keys}: others on this computer may look into it", f"chmod 700 {shlex.quote(str(keys))}"
        )
    if free_gb < LITTLE_DISK_GB:
        yield Finding(WARN, "state", f"{folder}: {free_gb:.1f} GB free", "a small model and its checkpoints need more")
    else:
        yield Finding(OK, "state", f"{folder}: writable, {free_gb:.0f} GB free")


def _storage(session: Session) -> Iterator[Finding]:
    from orchestrator.preflight import storage_findings

    yield from storage_findings(session.runs.store, session.settings.storage_options)


def _bucket_keys(session: Session) -> Iterator[Finding]:
    """Whoever rents nowhere needs no keys for anybody else."""
    from orchestrator.cli.accounts import rents_elsewhere
    from orchestrator.preflight import grant_findings

    is_needed = rents_elsewhere(session)
    for finding in grant_findings(session.runs.store, session.settings.storage_options, os.environ):
        yield finding if is_needed or finding.status != FAIL else replace(finding, status=WARN)


def _clock(session: Session) -> Iterator[Finding]:
    skew_s = (session.clock.now() - session.runs.store.now()).total_seconds()
    text = f"this computer is {abs(skew_s):.0f}s {'ahead of' if skew_s > 0 else 'behind'} the storage"
    if abs(skew_s) >= SKEW_REFUSED_S:
        yield Finding(WARN, "clock", text, "set the clock: a bucket refuses requests from so wrong a time")
    elif abs(skew_s) >= SKEW_S:
        yield Finding(WARN, "clock", text, "set the clock; runs are not affected, times in messages are")
    else:
        yield Finding(OK, "clock", "agrees with the storage")


def _trainer(session: Session) -> Iterator[Finding]:
    """Only who trains on this very machine needs the training stack here."""
    found = {name: _version(name) for name in TRAINING}
    missing = [name for name, version in found.items() if not version]
    if not missing:
        yield Finding(OK, "trainer", ", ".join(f"{name} {version}" for name, version in found.items()))
    elif session.settings.provider == "local":
        hint = "pip install 'spot-tune[local]'"
        yield Finding(FAIL, "trainer", f"not installed: {', '.join(missing)}; the local provider trains here", hint)
    else:
        yield Finding(OK, "trainer", "not installed here, and not needed: instances bring their own")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _cron(_session: Session) -> Iterator[Finding]:
    from orchestrator.cli.crontab import active_line

    line = active_line()
    if line:
        yield Finding(OK, "cron", line)
    else:
        yield Finding(
            WARN,
            "cron",
            "no line reconciles runs: a lost instance waits for you",
            "run `tune cron print`, then `crontab -e`",
        )
