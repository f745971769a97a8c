"""Where RunPod's key and address come from."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.errors import CredentialsMissing, UsageError

KEY_VARIABLE = "RUNPOD_API_KEY"
URL_VARIABLE = "TUNE_RUNPOD_API_URL"
DEFAULT_URL = "https://api.runpod.io"
HINT = f"make a key at https://console.runpod.io/user/settings and set {KEY_VARIABLE}"


def api_key(environ: Mapping[str, str]) -> tuple[str, str]:
    """The key, and where it was found. An empty variable counts as not set. Raises CredentialsMissing."""
    path = Path(os.path.expanduser("~/.runpod/config.toml"))  # noqa: PTH111 - Path's own raises where there is no home
    told = _stripped(environ.get(KEY_VARIABLE, ""))
    source = f"${KEY_VARIABLE}"
    if not told:
        told, source = _from_file(path), str(path)
    if not told:
        raise CredentialsMissing(f"no RunPod key: neither ${KEY_VARIABLE} nor {path} holds one", hint=HINT)
    if not told.isascii() or not told.isprintable() or " " in told:
        raise CredentialsMissing(f"what {source} holds is not a RunPod key", hint=HINT)
    return told, source


def _from_file(path: Path) -> str:
    """As RunPod's SDK writes it (`api_key` under `[default]`), or `runpodctl config` does (`apikey` at the top)."""
    try:
        told: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as e:  # the error's own text may quote the file
        raise CredentialsMissing(
            f"no RunPod key: ${KEY_VARIABLE} is not set and {path} cannot be read ({type(e).__name__})", hint=HINT
        ) from None
    default = told.get("default")
    found = (default.get("api_key") if isinstance(default, dict) else None) or told.get("apikey")
    return _stripped(found) if isinstance(found, str) else ""


def _stripped(text: str) -> str:
    return text.removeprefix("\ufeff").strip()


def base_url(environ: Mapping[str, str], options: Mapping[str, str]) -> str:
    """The address under which `/v2` and `/graphql` lie. Raises UsageError for what is none."""
    told = _stripped(environ.get(URL_VARIABLE, ""))
    source = f"${URL_VARIABLE}"
    if not told:
        told, source = _stripped(options.get("api_url", "")), "runpod's option api_url"
    if not told:
        return DEFAULT_URL
    if not _is_address(told):
        raise UsageError(f"{source} is not the address of an API", hint=f"such as {DEFAULT_URL}")
    return told.rstrip("/").removesuffix("/v2").rstrip("/")  # its documentation gives the base with the version


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    is_bare = not (parts.query or parts.fragment or parts.username)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and is_bare
