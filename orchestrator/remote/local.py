"""The way into a local instance: its folder and its environment, with no network in between."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from orchestrator import processes
from orchestrator.clock import Clock, SystemClock
from orchestrator.errors import RemoteError
from orchestrator.remote.base import Completed
from orchestrator.types import Instance

if TYPE_CHECKING:
    import psutil

_COMMAND = "TUNE_REMOTE_COMMAND"  # marks what one `run` has started, so that its timeout ends that and nothing else
_LAST_WORDS_S = 5  # after everybody was killed, the pipes close at once; more means that a stranger holds them


def connect(instance: Instance) -> LocalRemote:
    """Reach an instance of the local provider."""
    return LocalRemote(instance.address)


class LocalRemote:
    """One local instance, reachable as long as its host lives."""

    def __init__(self, address: Mapping[str, str], *, clock: Clock | None = None) -> None:
        """`address`: paths of the tune home, the boot file, the lock of the living, and the mark of the ending."""
        try:
            self._home, self._boot, self._alive, self._ending = (
                Path(address[name]) for name in ("home", "boot", "alive", "ending")
            )
        except KeyError as e:
            raise RemoteError(f"not the address of a local instance: {e} is missing") from None
        self._clock = clock or SystemClock()

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60) -> Completed:
        """Run a program in the tune home, with the instance's environment. At the timeout its whole tree is killed."""
        self._require_life()
        mark = secrets.token_hex(8)
        try:
            inside = json.loads(self._boot.read_bytes())["env"]
            child = subprocess.Popen(
                list(argv),
                cwd=self._home,
                env={**inside, **(env or {}), processes.MARKER: inside[processes.MARKER], _COMMAND: mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError) as e:
            self._require_life()
            code = 127 if isinstance(e, FileNotFoundError) else 126  # as a shell would answer
            return Completed(code, b"", f"{argv[0]}: {e.strerror}\n".encode(errors="surrogateescape"))
        except (OSError, ValueError, KeyError, IndexError, TypeError) as e:
            raise RemoteError(f"cannot run {list(argv)[:1]}: {e}") from e
        with child:
            try:
                self._require_life()  # again: whoever ends the instance sees this program, or we see the end
                out, err = child.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                self._end(child, mark)
                self._require_life()
                raise RemoteError(f"{argv[0]} did not end within {timeout_s:g} s and was killed") from None
            except BaseException:
                self._end(child, mark)
                raise
        self._require_life()  # the answer of a program that was killed with its instance is none
        code = child.returncode
        return Completed(128 - code if code < 0 else code, out, err)

    def put(self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = 120) -> None:  # noqa: ARG002
        """Write a file below the tune home, atomically.

        Every step goes through open folders, never through the path again: an instance that goes away in between is
        not brought back as an empty folder, and no link inside leads out.
        """
        parts = self._parts(path)
        self._require_life()
        try:
            with self._folder(parts[:-1]) as folder:
                temporary = f".{parts[-1][:200]}.{secrets.token_hex(4)}"
                fd = os.open(
                    temporary,
                    os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                    0o600,
                    dir_fd=folder,
                )
                try:
                    with os.fdopen(fd, "wb") as out:
                        out.write(data)
                        out.flush()
                        os.fchmod(out.fileno(), mode)
                        os.fsync(out.fileno())
                    os.replace(temporary, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(temporary, dir_fd=folder)
                    raise
                os.fsync(folder)
        except (OSError, ValueError) as e:
            self._require_life()
            raise RemoteError(f"cannot write {path!r}: {e}") from e

    def close(self) -> None:
        """Nothing is held open."""

    def _require_life(self) -> None:
        try:
            lives = processes.lock_is_held(self._alive) and not self._ending.exists()
        except OSError as e:
            raise RemoteError(f"cannot look at the instance: {e}") from e
        if not lives:
            raise RemoteError(f"the instance at {self._home.parent} is gone or stopped")

    def _parts(self, path: str) -> tuple[str, ...]:
        pure = PurePosixPath(path)
        with contextlib.suppress(ValueError):
            pure = pure.relative_to(self._home)
        if pure.is_absolute() or ".." in pure.parts or not pure.name:
            raise RemoteError(f"{path!r} does not lie below the tune home")
        return pure.parts

    @contextlib.contextmanager
    def _folder(self, parts: Sequence[str]) -> Iterator[int]:
        """An open folder below the home, made on the way."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        fd = os.open(self._home, flags)
        try:
            for part in parts:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=fd)
                below = os.open(part, flags | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    def _end(self, child: subprocess.Popen[bytes], mark: str) -> None:
        def members() -> list[psutil.Process]:
            return [*processes.marked(mark, name=_COMMAND), *processes.descendants(child.pid)]

        if child.poll() is None:  # not collected yet, so the number is still its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
        processes.end_all(members, clock=self._clock)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=_LAST_WORDS_S)
