"""How an orchestrator reaches into an instance: to put the agent there, to renew its keys, to ask how it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished remote command."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Remote(Protocol):
    """One instance, reachable. Blocking; every call is bounded by its timeout. Raises RemoteError only."""

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> Completed:
        """Run a program, argument by argument, no shell in between. A non-zero exit is an answer, not an error."""

    def put(self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = 120) -> None:
        """Write a file atomically; parents are made. Relative paths lie below the instance's tune home."""

    def close(self) -> None: ...
