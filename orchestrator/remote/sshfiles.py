"""Files over SSH: by SFTP where the server has it, else through a plain command."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import stat
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol

from orchestrator.errors import RemoteError
from orchestrator.remote.base import Completed

if TYPE_CHECKING:
    import paramiko

_OPEN_TIMEOUT_S = 20.0  # a server without SFTP mostly says so at once; one that says nothing has none either


class Exec(Protocol):
    """Run a POSIX sh script there."""

    def __call__(self, script: str, *, timeout_s: float, stdin: bytes = b"") -> Completed: ...


class Files:
    """Writes files on one connection, and remembers which way works on it."""

    def __init__(self, transport: paramiko.Transport, exec_: Exec) -> None:
        self._transport = transport
        self._exec = exec_
        self._has_sftp = True

    def put(self, path: str, data: bytes, *, mode: int, timeout_s: float) -> None:
        """Write a file at an absolute path: under another name first, with its mode set before the content."""
        if self._has_sftp:
            with self._sftp(timeout_s) as sftp:
                if sftp is not None:
                    _put(sftp, path, data, mode)
                    return
            self._has_sftp = False
        self._put_by_command(path, data, mode=mode, timeout_s=timeout_s)

    @contextlib.contextmanager
    def _sftp(self, timeout_s: float) -> Iterator[paramiko.SFTPClient | None]:
        """A client, or None where the server offers none."""
        import paramiko

        client = None
        try:
            channel = self._transport.open_session(timeout=_OPEN_TIMEOUT_S)
            channel.settimeout(_OPEN_TIMEOUT_S)
            channel.invoke_subsystem("sftp")
            client = paramiko.SFTPClient(channel)
            channel.settimeout(timeout_s)
        except (paramiko.SSHException, EOFError, OSError) as e:
            if not self._transport.is_active():
                raise RemoteError(f"the connection broke: {str(e) or type(e).__name__}") from e
        try:
            yield client
        except (paramiko.SSHException, EOFError, OSError) as e:
            raise RemoteError(f"a file could not be written: {str(e) or type(e).__name__}") from e
        finally:
            if client is not None:
                client.close()

    def _put_by_command(self, path: str, data: bytes, *, mode: int, timeout_s: float) -> None:
        draft = _draft(path)
        script = (
            f"umask 077\npath={shlex.quote(path)}\ndraft={shlex.quote(draft)}\n"
            'mkdir -p -- "$(dirname -- "$path")" || exit 1\n'
            "trap 'rm -f -- \"$draft\"' EXIT\n"
            f': > "$draft" && chmod {mode:o} "$draft" && cat > "$draft" || exit 1\n'
            f'[ "$(wc -c < "$draft")" -eq {len(data)} ] || {{ echo "cut short" >&2; exit 1; }}\n'
            '{ sync "$draft" || sync; } 2>/dev/null\n'
            'mv -f -- "$draft" "$path"'
        )
        done = self._exec(script, timeout_s=timeout_s, stdin=data)
        if done.exit_code != 0:
            raise RemoteError(f"cannot write {path}: {done.stderr.decode(errors='replace').strip()}")


def _put(sftp: paramiko.SFTPClient, path: str, data: bytes, mode: int) -> None:
    _make_folders(sftp, PurePosixPath(path).parent)
    draft = _draft(path)
    try:
        with sftp.open(draft, "wx") as file:
            sftp.chmod(draft, mode | stat.S_IWUSR)
            file.set_pipelined(pipelined=True)
            file.write(data)
        _check_size(sftp, draft, len(data))
        sftp.chmod(draft, mode)
        sftp.posix_rename(draft, path)
    except BaseException:
        with contextlib.suppress(OSError, EOFError):
            sftp.remove(draft)
        raise


def _check_size(sftp: paramiko.SFTPClient, path: str, wanted: int) -> None:
    written = sftp.stat(path).st_size
    if written != wanted:
        raise RemoteError(f"{path}: {written} of {wanted} bytes arrived")


def _make_folders(sftp: paramiko.SFTPClient, folder: PurePosixPath) -> None:
    """Like mkdir -p. What is there already is left as it is."""
    missing = []
    while True:
        try:
            sftp.stat(str(folder))
            break
        except FileNotFoundError:
            missing.append(folder)
            folder = folder.parent
    for path in reversed(missing):
        try:
            sftp.mkdir(str(path), 0o755)
        except OSError:
            sftp.stat(str(path))  # somebody else was faster, or it really cannot be made


def _draft(path: str) -> str:
    pure = PurePosixPath(path)
    return str(pure.with_name(f".{pure.name[:100]}.{secrets.token_hex(4)}"))
