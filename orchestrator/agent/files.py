"""Downloads that are checked, into places that were checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from orchestrator.agent.redact import Redactor
from orchestrator.storage.base import Store

_CHUNK = 1 << 20
_SEARCHED_MAX = 1 << 25  # secrets stand in small files
_TENSORS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".distcp")  # what is said about them stands at the start
_TENSORS_SEARCHED = 1 << 20  # searching costs more than hashing, and holds up every other thread


class Damaged(Exception):
    """What was downloaded is not what the manifest promises."""


def sha256_of(path: Path) -> str:
    """The file's hash; memory stays bounded."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Examined:
    """A file as it was read, once."""

    size: int
    sha256: str
    holds_secret: bool


def examine(path: Path, redactor: Redactor) -> Examined:
    """Hash a file, and search it for secrets on the way: not a large one, and tensors only at their start."""
    digest = hashlib.sha256()
    size, found, before = 0, False, b""
    with path.open("rb") as file:
        searched = _searched(path)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            if not found and size < searched:
                seam = before + chunk  # a secret may lie across two pieces
                found = redactor.holds_secret(seam)
                before = seam[-redactor.longest_in_files :]
            size += len(chunk)
    return Examined(size, digest.hexdigest(), found)


def _searched(path: Path) -> int:
    """How many bytes from the start."""
    if path.stat().st_size > _SEARCHED_MAX:
        return 0
    return _TENSORS_SEARCHED if path.suffix in _TENSORS else _SEARCHED_MAX


def safe_path(folder: Path, name: str) -> Path:
    """`name` below `folder`, or ValueError: a manifest must never reach outside, by dots, root or link."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or any(p in {"..", "."} for p in name.split("/")) or "\\" in name:
        raise ValueError(f"{name!r} would lie outside {folder.name}/")
    if any(ord(c) < 32 or ord(c) == 127 for c in name) or "" in name.split("/"):
        raise ValueError(f"{name!r} is not a file name")
    path = folder.joinpath(*parts)
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{name!r} would lie outside {folder.name}/ by way of a link")
    return path


def download(store: Store, key: str, path: Path, *, size: int, sha256: str, moved: Callable[[int], None]) -> None:
    """`path` holds exactly these bytes afterwards, or Damaged is raised and it does not exist.

    A file that is there already and right is left alone, so that a second try only fetches what is missing.
    """
    if path.is_file() and not path.is_symlink() and path.stat().st_size == size and sha256_of(path) == sha256:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    store.download(key, path, progress=moved)
    actual = path.stat().st_size
    if actual != size:
        path.unlink()
        raise Damaged(f"has {actual} bytes instead of {size}")
    if sha256_of(path) != sha256:
        path.unlink()
        raise Damaged("does not match its sha256")
