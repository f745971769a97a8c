"""Exact versions of a trainer's packages: the stack's, and those that a checkpoint was made with."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator import checkpoints, codec, keys
from orchestrator.agent.bucket import Bucket
from orchestrator.errors import StorageError
from orchestrator.types import CheckpointManifest

_ASK = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_ASK_TIMEOUT_S = 60.0
_LINE = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;#]+)$")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, and which versions it has of the packages in question. Only those it has are named."""

    python: str
    versions: Mapping[str, str]

    def unmet(self, pins: Mapping[str, str]) -> list[str]:
        """In words, what it lacks or has in another version."""
        return [
            f"{name} {wanted} wanted, {self.versions.get(name, 'none')} there"
            for name, wanted in pins.items()
            if public(self.versions.get(name, "")) != public(wanted)
        ]

    def lacks(self, pins: Mapping[str, str]) -> list[str]:
        """Names that it does not have in any version."""
        return [name for name in pins if name not in self.versions]


def read(path: Path) -> dict[str, str]:
    """Name -> version of a stack's file; ValueError for anything but exact pins."""
    pins = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _LINE.match(text)
        if match is None:
            raise ValueError(f"{path.name}, line {number}: {text!r} is not an exact version")
        pins[match[1]] = match[2]
    return pins


def public(version: str) -> str:
    """Without the builder's own addition: 2.13.0+cu128 and 2.13.0+cpu are one version of the program."""
    return version.partition("+")[0]


def ask(python: str, names: Iterable[str]) -> Interpreter | None:
    """What an interpreter has, without importing any of it; None when it cannot even be run."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", _ASK, *names],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_TIMEOUT_S,
            check=True,
        )
        return Interpreter(python, json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def made_with(bucket: Bucket, names: Iterable[str]) -> dict[str, str]:
    """The versions that the newest checkpoint was made with, as far as they are pinned; empty without one.

    A run that goes on after weeks goes on with what it began with, whatever this tune's own pins are by now.
    """
    try:
        listed = checkpoints.found(bucket.store.scan(keys.checkpoints(bucket.config.run_id)))
        if not listed:
            return {}
        newest = max(listed, key=lambda c: (c.step, c.attempt))
        manifest = codec.load(CheckpointManifest, bucket.store.get(newest.key).data, where=newest.key)
    except StorageError:
        return {}  # what cannot be read now is looked at again, patiently, when it is restored
    return {name: public(manifest.versions[name]) for name in names if manifest.versions.get(name)}
