"""How a rented instance starts: it lets us in, knows how to end itself, and keeps its deadline, whoever else dies."""

from __future__ import annotations

import base64
import gzip
import shlex
from dataclasses import dataclass
from importlib import resources

from orchestrator.errors import ProviderRejected
from orchestrator.types import LaunchSpec, Token

MAX_CHARACTERS = 4000  # Vast.ai takes 4096 for its start command and arguments together
_MAX_FOREGROUND = 8000  # RunPod names no limit; only a gateway's long address comes near the other one
_MARK = "tune-boot"  # in the command line of a first process of ours, before and after the script replaces itself
_DEADLINE = "TUNE_DEADLINE_S"


@dataclass(frozen=True, slots=True)
class Farewell:
    """How an instance ends itself: one HTTP call with the key that the marketplace has put on it.

    `{id}` in the URLs and the body stands for the instance's own id. The fallback is a POST, for a key that the first
    way does not take.
    """

    id_variable: str
    key_variable: str
    url: str
    fallback_url: str = ""
    fallback_body: str = ""


NO_FAREWELL = Farewell("", "", "")


def boot_script(spec: LaunchSpec, token: Token, farewell: Farewell, *, foreground: bool) -> str:
    """POSIX sh, about 4,000 characters at most, to be run by `sh -c` at every start of the container.

    `foreground`: it is the container's first process and stays; otherwise it leaves a loop behind and returns.
    """
    values = {
        "token": token,
        "mode": "foreground" if foreground else "background",
        "public_key": spec.public_key,
        "proof_secret": spec.proof_secret,
        "deadline_s": spec.env.get(_DEADLINE, str(int(spec.deadline_s))),
        "id_name": farewell.id_variable,
        "key_name": farewell.key_variable,
        "start_sh": _slim(spec.start_command),
        "farewell_sh": _slim(farewell_script(farewell), is_indented=True),
    }
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    text += _slim(_read("let_in.sh") + _read("boot.sh") if foreground else _read("boot.sh"))
    packed = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
    script = f": {_MARK}; f=$(mktemp -t {_MARK}.XXXXXX) && echo {packed}|base64 -d|gzip -dc>$f && exec sh $f"
    limit = _MAX_FOREGROUND if foreground else MAX_CHARACTERS
    if len(script) > limit:
        raise ProviderRejected(f"a start command of {len(script)} characters is longer than {limit}")
    return script


def farewell_script(farewell: Farewell) -> str:
    """What `farewell.sh` holds on the instance."""
    lines = [
        f"{name}={_filled(text)}"
        for name, text in (
            ("url", farewell.url),
            ("fallback_url", farewell.fallback_url),
            ("fallback_body", farewell.fallback_body),
        )
    ]
    head, _, rest = _read("farewell.sh").partition("ask() {")
    return f"{head}{chr(10).join(lines)}\nask() {{{rest}"


def _filled(text: str) -> str:
    """A shell word in which `{id}` is the value of $id."""
    return '"$id"'.join(shlex.quote(part) for part in text.split("{id}")) if text else "''"


def _slim(script: str, *, is_indented: bool = False) -> str:
    """Without comment lines, blank ones and, but for Python in a script, indentation: every character counts."""
    lines = [line if is_indented else line.lstrip() for line in script.splitlines()]
    kept = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return "\n".join(kept) + "\n" if kept else ""


def _read(name: str) -> str:
    return resources.files("orchestrator.providers").joinpath(name).read_text(encoding="utf-8")
