"""Files over SSH: by SFTP where the server has it, else through a plain command."""

from __future__ import annotations

import contextlib
import secrets
import shlex
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol

from orchestrator.errors import RemoteError
from orchestrator.remote.base import Completed
from orchestrator.remote.sshcall import fuse, words

if TYPE_CHECKING:
    import paramiko


class Exec(Protocol):
    """Run a POSIX sh script there."""

    def __call__(self, script: str, *, timeout_s: float, stdin: bytes = b"") -> Completed: ...


class Files:
    """Writes files on one connection, and remembers which way works on it."""

    def __init__(self, transport: paramiko.Transport, exec_: Exec, *, sftp_within_s: float) -> None:
        """`sftp_within_s`: a server that has said nothing by then counts as one without SFTP."""
        self._transport = transport
        self._exec = exec_
        self._sftp_within_s = sftp_within_s
        self._client: paramiko.SFTPClient | None = None
        self.has_sftp: bool | None = None  # None: not tried yet

    def put(self, path: str, data: bytes, *, mode: int, timeout_s: float) -> None:
        """Write a file at an absolute path: under another name first, where nobody else can look into it."""
        with fuse(timeout_s, self._transport.close) as hard:
            try:
                if not self._by_sftp(path, data, mode):
                    self._by_command(path, data, mode, timeout_s)
            except RemoteError:
                if hard.has_blown:
                    raise RemoteError(
                        f"{path} did not arrive within {timeout_s:g} s; the connection is closed"
                    ) from None
                raise

    def _by_sftp(self, path: str, data: bytes, mode: int) -> bool:
        """False where the server has no SFTP, or one that does not work."""
        import paramiko

        try:
            client = self._sftp()
            if client is None:
                return False
            _put(client, path, data, mode)
        except (paramiko.SSHException, paramiko.SFTPError, EOFError, OSError) as e:
            channel = self._client.get_channel() if self._client else None
            is_its_answer = isinstance(e, OSError) and channel is not None and not channel.closed
            if is_its_answer or not self._transport.is_active():
                raise RemoteError(f"cannot write {path}: {words(e)}") from e
            self.has_sftp, self._client = False, None
            return False
        return True

    def _sftp(self) -> paramiko.SFTPClient | None:
        """A client, kept for the next file; None where the server offers none."""
        import paramiko

        if self.has_sftp is None:
            channel = self._transport.open_session(timeout=self._sftp_within_s)
            with fuse(self._sftp_within_s, channel.close):
                try:
                    channel.invoke_subsystem("sftp")
                    self._client = paramiko.SFTPClient(channel)
                except BaseException:
                    channel.close()
                    raise
            self.has_sftp = True
        return self._client

    def _by_command(self, path: str, data: bytes, mode: int, timeout_s: float) -> None:
        folder = PurePosixPath(path).parent
        script = (
            f"path={shlex.quote(path)}\nfolder={shlex.quote(str(folder))}\ndraft={shlex.quote(_private(folder))}\n"
            'mkdir -p -- "$folder" || exit 1\n'
            '[ ! -d "$path" ] || { echo "there is a folder of that name" >&2; exit 1; }\n'
            "trap 'rm -f -- \"$draft\"' EXIT\n"
            '(umask 077 && set -C && cat >"$draft") || exit 1\n'
            f'[ "$(wc -c <"$draft")" -eq {len(data)} ] || {{ echo "it was cut short" >&2; exit 1; }}\n'
            '{ sync "$draft" || sync; } 2>/dev/null\n'
            f'chmod {mode:o} "$draft" && mv -f -- "$draft" "$path"'
        )
        done = self._exec(script, timeout_s=timeout_s, stdin=data)
        if done.exit_code != 0:
            raise RemoteError(f"cannot write {path}: {done.stderr.decode(errors='replace').strip()}")


def _put(client: paramiko.SFTPClient, path: str, data: bytes, mode: int) -> None:
    """The draft lies in a folder that is private from its first moment: SFTP gives a new file no mode of its own.

    There is no fsync: paramiko has no call for it.
    """
    folder = PurePosixPath(path).parent
    _make_folders(client, folder)
    private = _private(folder)
    draft = f"{private}/draft"
    client.mkdir(private, 0o700)
    try:
        with client.open(draft, "wx") as file:
            file.set_pipelined(pipelined=True)
            file.write(data)
        _check_size(client, draft, len(data))
        client.chmod(draft, mode)
        client.posix_rename(draft, path)
    except BaseException:
        with contextlib.suppress(OSError, EOFError):
            client.remove(draft)
        raise
    finally:
        with contextlib.suppress(OSError, EOFError):
            client.rmdir(private)


def _check_size(client: paramiko.SFTPClient, path: str, wanted: int) -> None:
    written = client.stat(path).st_size  # a pipelined write tells of no error
    if written != wanted:
        raise OSError(f"{written} of {wanted} bytes arrived")


def _make_folders(client: paramiko.SFTPClient, folder: PurePosixPath) -> None:
    """Like mkdir -p. What is there already is left as it is."""
    missing = []
    while True:
        try:
            client.stat(str(folder))
            break
        except FileNotFoundError:
            missing.append(folder)
            folder = folder.parent
    for path in reversed(missing):
        try:
            client.mkdir(str(path), 0o755)
        except OSError:
            client.stat(str(path))  # somebody else was faster, or it really cannot be made


def _private(folder: PurePosixPath) -> str:
    return str(folder / f".tune-{secrets.token_hex(8)}")
