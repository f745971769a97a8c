"""Keys as file names, one to one, so that `a` and `a/b` can both be stored and nothing is lost on the way.

Most keys look the same on disk. A `%` becomes `%25`, which leaves a lone `%` at the end free to mark the odd ones: a
folder whose name has a dot, and an object whose name has none. So folder and object never want the same name, and the
store's own folder, `%tune`, is no key's name at all.
"""

from __future__ import annotations

from orchestrator.errors import StorageError

OWN_FOLDER = b"%tune"
MAX_NAME_BYTES = 255  # every common Linux file system
_MARK = b"%"


def encoded(key: str) -> list[bytes]:
    """The path of a checked key below the root, folder by folder."""
    *folders, last = key.split("/")
    path = [encoded_folder(part) for part in folders]
    name = _escaped(last)
    return [*path, _fitting(name if b"." in name else name + _MARK)]


def encoded_folder(part: str) -> bytes:
    name = _escaped(part)
    return _fitting(name + _MARK if b"." in name else name)


def decoded(name: bytes, *, is_folder: bool) -> str | None:
    """The part of a key that a file name stands for; None for what the store did not write."""
    marked = name.endswith(_MARK)
    bare = name[:-1] if marked else name
    if not bare or (b"." in bare) == (marked != is_folder):
        return None
    try:
        part = bare.replace(b"%25", b"%").decode()
    except UnicodeDecodeError:
        return None
    return part if _escaped(part) == bare else None


def _escaped(part: str) -> bytes:
    return part.encode().replace(b"%", b"%25")


def _fitting(name: bytes) -> bytes:
    if len(name) > MAX_NAME_BYTES:
        raise StorageError(
            f"a name of {len(name)} bytes is too long for a file: {name[:40].decode(errors='replace')}…",
            hint=f"keep every part of the name under {MAX_NAME_BYTES} bytes",
        )
    return name
