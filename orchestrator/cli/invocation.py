"""What holds for every command: --json, --debug, --config, --storage, wherever on the line they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

FLAGS = ("--json", "--debug")
VALUES = ("--config", "--storage")
EVERYWHERE = "Everywhere: --json  --debug  --config FILE  --storage URL"


@dataclass(slots=True)
class Invocation:
    """One call of the program: the options every command shares."""

    json: bool = False
    debug: bool = False
    config: str | None = None
    storage: str | None = None


_current = Invocation()


def current() -> Invocation:
    """The options of this call."""
    return _current


def take_common(argv: Sequence[str]) -> list[str]:
    """Remember the shared options and give back the rest of the line. Nothing after `--` is touched.

    They are taken out before typer sees the line, so that `tune --json ls` and `tune ls --json` mean the same, and a
    usage error can already be answered in JSON.
    """
    _current.json = _current.debug = False
    _current.config = _current.storage = None
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            return [*rest, word, *words]
        option, equals, value = word.partition("=")
        if word in FLAGS:
            setattr(_current, word.removeprefix("--"), True)
        elif option in VALUES:
            given = value if equals else next(words, None)
            if given is None:
                raise UsageError(f"{option} needs a value", hint="run `tune --help`")
            setattr(_current, option.removeprefix("--"), given)
        else:
            rest.append(word)
    return rest
