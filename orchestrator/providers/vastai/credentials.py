"""Where Vast.ai's key and address come from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator.errors import CredentialsMissing
from orchestrator.providers import asking
from orchestrator.providers.asking import stripped

KEY_VARIABLE = "VAST_API_KEY"
URL_VARIABLE = "TUNE_VASTAI_API_URL"
DEFAULT_URL = "https://console.vast.ai"
HINT = f"make a key at https://cloud.vast.ai/manage-keys/ and set {KEY_VARIABLE}"


def api_key(environ: Mapping[str, str]) -> tuple[str, str]:
    """The key, and where it was found. An empty variable or file counts as not set. Raises CredentialsMissing.

    The places and their order are those of Vast.ai's own tools (vastai 1.9, `_resolve_api_key`).
    """
    places = [f"${KEY_VARIABLE}", *map(str, _files(environ))]
    for place in places:
        key = stripped(environ.get(KEY_VARIABLE, "") if place == places[0] else _read(Path(place)))
        if not key:
            continue
        if not key.isascii() or not key.isprintable() or " " in key:
            raise CredentialsMissing(f"what {place} holds is not a Vast.ai key", hint=HINT)
        return key, place
    raise CredentialsMissing(f"no Vast.ai key: none of {', '.join(places)} holds one", hint=HINT)


def base_url(environ: Mapping[str, str], options: Mapping[str, str]) -> str:
    """The address under which `/api/v0` and `/api/v1` lie. Raises UsageError for what is none."""
    return asking.base_url(
        environ, options, variable=URL_VARIABLE, provider="vastai", default=DEFAULT_URL, version="/api/v0"
    )


def _files(environ: Mapping[str, str]) -> list[Path]:
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path's own raises where there is no home
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return [config / "vastai" / "vast_api_key", home / ".vast_api_key"]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as e:  # the error's own text may quote the file
        raise CredentialsMissing(
            f"no Vast.ai key: ${KEY_VARIABLE} is not set and {path} cannot be read ({type(e).__name__})", hint=HINT
        ) from None
