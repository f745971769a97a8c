"""Instances that were told to end and have not gone: every later command tries again, whatever else it is about."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from orchestrator.errors import InstanceNotFound, TerminationUnconfirmed, TuneError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orchestrator.cli.session import Session

FILE = "unconfirmed.json"  # in the state folder of this computer
TIMEOUT_S = 10.0  # per instance: a command is about something else


def remember(session: Session, error: TerminationUnconfirmed) -> None:
    """Keep the ids, so that the next command on this computer asks for their end again."""
    if error.instances:
        _write(session, [*_read(session), *error.instances])


def try_again(session: Session) -> None:
    """Ask once more for the end of each. What is not found is forgotten; the rest is a warning nobody can miss."""
    waiting = _read(session)
    if not waiting:
        return
    left = [one for one in waiting if not _is_gone(session, *one)]
    _write(session, left)
    for provider, instance_id in left:
        session.render.note(
            f"WARNING: instance {instance_id} at {provider} was told to end and may still be billing"
            f"{_where(session, provider, instance_id)}; tune sweep   keeps trying"
        )


def _is_gone(session: Session, provider: str, instance_id: str) -> bool:
    from orchestrator.types import InstanceId

    try:
        cloud = session.provider(provider).provider
        cloud.terminate(InstanceId(instance_id), timeout_s=TIMEOUT_S)
        cloud.get(InstanceId(instance_id), timeout_s=TIMEOUT_S)
    except InstanceNotFound:
        return True
    except TuneError:
        return False
    return False


def _where(session: Session, provider: str, instance_id: str) -> str:
    from orchestrator.types import InstanceId

    with contextlib.suppress(TuneError):
        url = session.provider(provider).provider.get(InstanceId(instance_id), timeout_s=TIMEOUT_S).console_url
        return f": look at {url}" if url else ""
    return ""


def _read(session: Session) -> list[tuple[str, str]]:
    try:
        told = json.loads(_path(session).read_bytes())
        return [(str(provider), str(instance_id)) for provider, instance_id in told]
    except (OSError, ValueError, TypeError):
        return []


def _write(session: Session, waiting: Sequence[tuple[str, str]]) -> None:
    path = _path(session)
    try:
        if not waiting:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_text(json.dumps(sorted(set(waiting)), indent=1) + "\n")
        draft.replace(path)
    except OSError as e:
        session.render.note(f"warning: {path} cannot be written: {e.strerror}")


def _path(session: Session) -> Path:
    return session.settings.state_dir / FILE
