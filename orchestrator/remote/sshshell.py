"""Commands for a shell far away: quoted whatever they hold, framed so that nothing else passes for their output."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import RemoteError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_MAX_BYTES = 128_000  # Linux takes at most 128 KiB in one argument (MAX_ARG_STRLEN), and a command is one


@dataclass(frozen=True, slots=True)
class Framed:
    """A command whose output lies, on each stream, between two lines that nobody else can write.

    The first line tells the process id of the shell that runs it, the last one the exit code. In the text of the
    command itself, which a shell that echoes or a `ps` may show, neither stands in this form.
    """

    command: bytes
    mark: str

    def pid(self, stream: bytes | bytearray) -> int | None:
        """The process id of the shell that runs the command, once it has started."""
        found = self._begin(stream)
        return int(found[1]) if found else None

    def code(self, stream: bytes | bytearray, since: int = 0) -> int | None:
        """The exit code, once the command has ended. `since`: all before was looked through already."""
        found = re.compile(rb">>tune %s (\d+)\n" % self.mark.encode()).search(stream, max(0, since - 80))
        return int(found[1]) if found else None

    def inside(self, stream: bytes | bytearray) -> bytes:
        """What the command itself wrote; login banners and the like are cut away."""
        begin = self._begin(stream)
        if begin is None:
            return b""
        end = stream.rfind(b">>tune %s " % self.mark.encode(), begin.end())
        return bytes(memoryview(stream)[begin.end() : end if end >= 0 else len(stream)])

    def _begin(self, stream: bytes | bytearray) -> re.Match[bytes] | None:
        return re.compile(rb"<<tune %s (\d+)\n" % self.mark.encode()).search(stream)


def framed(script: str) -> Framed:
    """A POSIX sh script, made ready to be handed to whatever shell the user has."""
    mark = secrets.token_hex(12)
    begin, end = (f"printf '%s %s\\n' '{sign}tune {mark}'" for sign in ("<<", ">>"))
    whole = f"{begin} $$; {begin} $$ >&2\n(\n{script}\n)\ncode=$?; {end} $code; {end} $code >&2; exit $code"
    try:
        command = f"exec sh -c {shlex.quote(whole)}".encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
        raise RemoteError(f"a command that no system can hold: {e}") from None
    if len(command) > _MAX_BYTES:
        raise RemoteError(f"a command of {len(command)} bytes is longer than {_MAX_BYTES}")
    return Framed(command, mark)


def with_home(argv: Sequence[str], env: Mapping[str, str], *, token: str) -> str:
    """A script that runs a program, argument by argument, in the tune home if there is one yet."""
    if not argv or any("\0" in word for word in (*argv, *env.values())):
        raise RemoteError(f"not a command: {list(argv)[:1]}")
    if argv[0].startswith("-"):
        raise RemoteError(f"not a program: {argv[0]!r}")  # `exec` would take it for an option of its own
    for name in env:
        if not _NAME.fullmatch(name):
            raise RemoteError(f"not a name for a variable: {name!r}")
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    where = (
        f'if home=$(cat "$HOME/.tune/"{shlex.quote(token)} 2>/dev/null)\n'
        'then cd "$home" >/dev/null || exit 127; else cd; fi\n'
    )
    return f"{where}{exports}exec </dev/null\nexec {shlex.join(argv)}"


def kill_command(pid: int) -> bytes:
    """Ends a shell and everything that it has started and that has not left it since.

    Who is about to start another process is stopped first. Where the kernel does not tell of children, it is the
    process group that ends.
    """
    tree = "end() { kill -STOP $1; for child in $(cat /proc/$1/task/*/children); do end $child; done; kill -KILL $1; }"
    return f"exec sh -c {shlex.quote(f'exec 2>/dev/null; {tree}; end {pid}; kill -KILL -- -{pid}; exit 0')}".encode()
