"""Where RunPod's key and address come from."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import CredentialsMissing
from orchestrator.providers import asking
from orchestrator.providers.asking import stripped

KEY_VARIABLE = "RUNPOD_API_KEY"
URL_VARIABLE = "TUNE_RUNPOD_API_URL"
DEFAULT_URL = "https://api.runpod.io"
HINT = f"make a key at https://console.runpod.io/user/settings and set {KEY_VARIABLE}"


def api_key(environ: Mapping[str, str]) -> tuple[str, str]:
    """The key, and where it was found. An empty variable counts as not set. Raises CredentialsMissing."""
    path = Path(os.path.expanduser("~/.runpod/config.toml"))  # noqa: PTH111 - Path's own raises where there is no home
    told = stripped(environ.get(KEY_VARIABLE, ""))
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
    return stripped(found) if isinstance(found, str) else ""


def base_url(environ: Mapping[str, str], options: Mapping[str, str]) -> str:
    """The address under which `/v2` and `/graphql` lie. Raises UsageError for what is none."""
    return asking.base_url(
        environ, options, variable=URL_VARIABLE, provider="runpod", default=DEFAULT_URL, version="/v2"
    )
