"""Commands for a shell far away: quoted whatever they hold, framed so that nothing else passes for their output."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import RemoteError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Framed:
    """A command whose output, on both streams, lies between two lines that nobody else can write."""

    command: str
    begin: bytes
    end: bytes

    def inside(self, stream: bytes) -> bytes:
        """What the command itself wrote; login banners and the like are cut away."""
        _, found, rest = stream.partition(self.begin)
        if not found:
            return b""
        rest = rest.partition(b"\n")[2]  # the rest of the first line: the shell's process id
        return rest.rpartition(self.end)[0] if self.end in rest else rest

    def is_whole(self, stdout: bytes) -> bool:
        """Whether the command came to its end."""
        return self.end in stdout

    def pid(self, stdout: bytes) -> int | None:
        """The process id of the shell that runs the command, once it has started."""
        told = stdout.partition(self.begin)[2].partition(b"\n")[0].strip()
        return int(told) if told.isdigit() else None


def framed(script: str) -> Framed:
    """A POSIX sh script, made ready to be handed to whatever shell the user has."""
    mark = secrets.token_hex(12)
    begin, end = f"<<tune {mark} ", f">>tune {mark}\n"
    whole = (
        f"printf '%s%s\\n' '{begin}' $$; printf '%s%s\\n' '{begin}' $$ >&2\n"
        f"(\n{script}\n)\n"
        f"code=$?; printf '%s\\n' '{end[:-1]}'; printf '%s\\n' '{end[:-1]}' >&2; exit $code"
    )
    return Framed(f"exec sh -c {shlex.quote(whole)}", begin.encode(), end.encode())


def with_home(argv: Sequence[str], env: Mapping[str, str], *, token: str) -> str:
    """A script that runs a program, argument by argument, in the tune home if there is one yet."""
    if not argv or any("\0" in word for word in (*argv, *env.values())):
        raise RemoteError(f"not a command: {list(argv)[:1]}")
    for name in env:
        if not _NAME.fullmatch(name):
            raise RemoteError(f"not a name for a variable: {name!r}")
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    where = f'home=$(cat "$HOME/.tune/"{shlex.quote(token)} 2>/dev/null) && cd "$home" 2>/dev/null || cd'
    return f"{where}\n{exports}exec </dev/null\nexec {shlex.join(argv)}"


def kill_command(pid: int) -> str:
    """Ends a shell and everything that it has started and that has not left it since."""
    tree = "end() { for child in $(cat /proc/$1/task/*/children 2>/dev/null); do end $child; done; kill -KILL $1; }"
    return f"exec 2>/dev/null; {tree}; end {pid}; exit 0"
