"""Known secrets never reach a screen, a log or a file that this program writes."""

from __future__ import annotations

import os
import re
from functools import cache

_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIAL", re.IGNORECASE
)
_PLAIN_NAME = re.compile(r"(_FILE|_PATH|_DIR|_URL|_URI|_HOST|_REGION)$", re.IGNORECASE)  # say where a secret is
_SHORTEST = 6  # shorter values would blank out ordinary words
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def secret_values() -> dict[str, str]:
    """Value -> name of every environment variable that holds a secret, longest value first."""
    found = {
        value: name
        for name, value in os.environ.items()
        if _SECRET_NAME.search(name) and not _PLAIN_NAME.search(name) and len(value.strip()) >= _SHORTEST
    }
    return dict(sorted(found.items(), key=lambda pair: -len(pair[0])))


@cache
def _pattern(values: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, values)))


def redact(text: str) -> str:
    """The text with the value of every secret variable replaced by its name."""
    known = secret_values()
    if not known:
        return text
    return _pattern(tuple(known)).sub(lambda found: f"[{known[found[0]]}]", text)


def harmless(text: str) -> str:
    """The text without what could steer a terminal. New lines and tabs stay; a carriage return becomes a new line."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
