"""What marketplaces have in common as seen over HTTP: whether a request can have had an effect, and what came back.

Each adapter knows its own words; this is what none of them may judge differently from the others.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

from orchestrator.errors import UsageError

TEXT_CHARS = 300  # of the marketplace's words, for people
NOT_JSON: Any = object()


def never_left(error: BaseException) -> bool:
    """Whether the request cannot have reached anybody: no connection, or none that could be trusted."""
    import requests
    from urllib3.exceptions import NewConnectionError

    if isinstance(error, (requests.ConnectTimeout, requests.exceptions.InvalidURL)):
        return True
    seen: list[BaseException] = [error]
    for found in seen:
        if isinstance(found, (NewConnectionError, ssl.SSLCertVerificationError)):
            return True
        below = [*found.args, getattr(found, "reason", None), found.__cause__, found.__context__]
        seen += [e for e in below if isinstance(e, BaseException) and not any(e is old for old in seen)]
    return False


def in_words(error: Exception) -> str:
    """What went wrong on the line. Never the error's own text: that may quote the request."""
    import requests

    if isinstance(error, requests.exceptions.SSLError):
        return "no trusted connection: its TLS certificate or its encryption is refused here"
    if never_left(error):
        return "no connection"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    return f"the connection broke ({type(error).__name__})"


def parsed(body: bytes) -> Any:
    """The JSON, fractions as Decimal; NOT_JSON for whatever is none, nothing at all included."""
    try:
        return json.loads(body, parse_float=Decimal, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return NOT_JSON


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def kind_of(body: bytes) -> str:
    """What a body is that is not the JSON one had asked for."""
    start = body.lstrip()[:20].lower()
    if not start:
        return "no body"
    if start.startswith((b"<!doctype", b"<html")):
        return "a web page"
    return "other text" if parsed(body) is NOT_JSON else "another JSON than expected"


def one_line(text: str, key: str) -> str:
    """Somebody else's words, of bounded length, that cannot hold the key, whatever was echoed."""
    return " ".join(text.replace(key, "***").split())[:TEXT_CHARS]


def stripped(text: str) -> str:
    """A value from a file or a variable, without what editors and shells leave around it."""
    return text.removeprefix("\ufeff").strip()


def base_url(
    environ: Mapping[str, str], options: Mapping[str, str], *, variable: str, provider: str, default: str, version: str
) -> str:
    """Where an API lies: the variable, else the option `api_url`, else the default. Raises UsageError for what is none.

    `version` is the end of the path that some give along, and that is added to each request anyway.
    """
    told, source = stripped(environ.get(variable, "")), f"${variable}"
    if not told:
        told, source = stripped(options.get("api_url", "")), f"{provider}'s option api_url"
    if not told:
        return default
    if not _is_address(told):
        raise UsageError(f"{source} is not the address of an API", hint=f"such as {default}")
    return told.rstrip("/").removesuffix(version).rstrip("/")


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    is_bare = not (parts.query or parts.fragment or parts.username)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and is_bare
