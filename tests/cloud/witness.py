"""Who looks over everybody's shoulder: the command lines of all processes, and what lies and runs on rented machines."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from tests.cloud.machine import MARK

KEPT_APART = frozenset({"secrets.json", "storage.json"})  # where an instance may keep keys, mode 0600, until its end
_PROGRAM = b"tests.cloud.machine"  # the host around a machine is no part of it
_LOOK_EVERY_S = 0.05
_FILES_EVERY = 6  # looks
_MOST_BYTES = 2**20  # larger files are weights


class Witness:
    """Samples until it is stopped; `places()` is everything seen, by name."""

    def __init__(self, machines: Sequence[Path]) -> None:
        self._machines = machines  # folders below which machines lie
        self._argv: set[bytes] = set()
        self._environments: dict[bytes, str] = {}
        self._files: dict[tuple[str, int, int], bytes] = {}
        self._apart: set[bytes] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def places(self) -> Iterator[tuple[str, bytes]]:
        for argv in list(self._argv):
            yield f"argv: {argv[:60]!r}", argv
        for environment, name in list(self._environments.items()):
            yield f"environment of {name}", environment
        for (name, _, _), data in list(self._files.items()):
            yield f"on the machine: {name}", data

    def kept_apart(self) -> bytes:
        """All that was ever in the files with keys."""
        return b"\n".join(self._apart)

    def argv_with(self, part: bytes) -> bool:
        """Whether such a program was seen at all."""
        return any(part in argv for argv in self._argv)

    def _watch(self) -> None:
        look = 0
        while not self._over.wait(_LOOK_EVERY_S):
            self._processes()
            if look % _FILES_EVERY == 0:
                self._look_at_files()
            look += 1
        self._look_at_files()

    def _processes(self) -> None:
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):  # it has ended
                    argv = (folder / "cmdline").read_bytes()
                    if argv and argv not in self._argv:
                        self._argv.add(argv)
                        self._environment(folder, argv)

    def _environment(self, folder: Path, argv: bytes) -> None:
        """Of a process in a machine. Its argv was read before: what is still about to become it has our environment."""
        if _PROGRAM in argv:
            return
        environment = (folder / "environ").read_bytes()
        inside = (f"HOME={under}/".encode() in environment for under in self._machines)  # the host has another home
        if MARK.encode() in environment and any(inside):
            self._environments[environment] = argv[:60].decode(errors="replace")

    def _look_at_files(self) -> None:
        for path in (path for under in self._machines for path in under.rglob("*")):
            with contextlib.suppress(OSError):
                about = path.lstat()
                seen = (str(path), about.st_mtime_ns, about.st_size)
                if not path.is_file() or about.st_size > _MOST_BYTES or seen in self._files:
                    continue
                if any(name in path.name for name in KEPT_APART):  # or a draft of it
                    self._apart.add(path.read_bytes())
                else:
                    self._files[seen] = path.read_bytes()
