"""Which keys a store takes. The same everywhere, so that a run can move from one store to another."""

from __future__ import annotations

import re

from orchestrator.errors import StorageError

MAX_KEY_BYTES = 1024  # S3's limit, for the root's prefix and the key together
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def checked_key(key: str) -> str:
    """The key itself, or StorageError saying what is wrong with it."""
    fault = _fault(key) or ("a part between slashes is empty" if not all(key.split("/")) else "")
    if fault or not key:
        raise StorageError(f"not a key: {key!r}: {fault or 'it is empty'}")
    return key


def checked_prefix(prefix: str) -> str:
    """A beginning of keys, which may be empty or end anywhere."""
    fault = _fault(prefix) or ("a part between slashes is empty" if "//" in prefix else "")
    if fault:
        raise StorageError(f"not a key prefix: {prefix!r}: {fault}")
    return prefix


def checked_folder(prefix: str) -> str:
    """A prefix that is empty or ends in a slash."""
    if prefix and not prefix.endswith("/"):
        raise StorageError(f"not a folder: {prefix!r}: it must end in '/'")
    return checked_prefix(prefix)


def _fault(text: str) -> str:
    if text.startswith("/"):
        return "it starts with '/'; keys are relative to the store's root"
    if _CONTROL.search(text):
        return "it holds a control character"
    if any(part in (".", "..") for part in text.split("/")):
        return "'.' and '..' are not names"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "it holds half a character (a lone surrogate)"
    return f"{size} bytes are more than {MAX_KEY_BYTES}" if size > MAX_KEY_BYTES else ""
