"""Downloads that are checked, into places that were checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from orchestrator.storage.base import Store

_CHUNK = 1 << 20


class Damaged(Exception):
    """What was downloaded is not what the manifest promises."""


def sha256_of(path: Path) -> str:
    """The file's hash; memory stays bounded."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


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
