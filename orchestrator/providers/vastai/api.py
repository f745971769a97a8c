"""Vast.ai's HTTP through its SDK's client, one request at a time: nothing sent twice, every answer doubted."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any

from orchestrator.clock import Clock, SystemClock
from orchestrator.errors import ProviderRejected
from orchestrator.providers.asking import in_words, kind_of, never_left, one_line, parsed

if TYPE_CHECKING:
    import requests

SDK_HINT = "pip install 'vastai>=1.9,<2'"
_ONCE = 1  # the SDK's `retry` counts tries; its default of 3 sends a create three times, and 0 crashes (vastai 1.9.1)
_THRESHOLD = re.compile(r"threshold=(\d+(?:\.\d+)?)")  # "API requests too frequent endpoint threshold=4.5"


class Refused(Exception):
    """The API itself said no: the status, its word for the reason, and its words for people.

    `contract`: what was rented all the same. `is_own`: the answer has the API's own form, not just any JSON.
    """

    def __init__(
        self,
        status: int,
        code: str,
        text: str,
        *,
        is_own: bool = True,
        contract: int | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text
        self.is_own = is_own
        self.contract = contract
        self.retry_after_s = retry_after_s


class Unheard(Exception):
    """No answer worth believing. Unless `was_sent` is False, the request may have had its effect."""

    def __init__(self, text: str, *, was_sent: bool = True, contract: int | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.was_sent = was_sent
        self.contract = contract


@dataclass(frozen=True, slots=True)
class Api:
    """The way to Vast.ai: `base_url` is where `/api/v0` and `/api/v1` lie. Safe for many threads."""

    base_url: str
    key: str = field(repr=False)
    clock: Clock = field(default_factory=SystemClock)

    def call(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Mapping[str, Any]:
        """The JSON object of a success, fractions as Decimal. Raises Refused or Unheard. Below /api/v0 by itself."""
        import requests

        client = sdk().VastAI(api_key=self.key, server_url=self.base_url, retry=_ONCE).client
        send = {"GET": client.get, "POST": client.post, "PUT": client.put, "DELETE": client.delete}[method]
        arguments = {"query_args": dict(query or {}), "json_data": body, "timeout": timeout_s}
        try:
            response: requests.Response = send(path, **arguments)
        except requests.RequestException as e:
            raise Unheard(self._clean(in_words(e)), was_sent=not never_left(e)) from None
        return self._believed(response)

    def _believed(self, response: requests.Response) -> Mapping[str, Any]:
        """A 200 may hold `success: false`; an error may hold what was rented; a proxy's page is neither yes nor no."""
        status, said = response.status_code, parsed(response.content)
        answer: Mapping[str, Any] = said if isinstance(said, dict) else {}
        words, contract = self._clean(_words(answer)), contract_of(answer)
        is_good = 200 <= status < 300
        if is_good and answer and answer.get("success") is not False:
            return answer
        is_refusal = status in (401, 429) or (status < 500 and bool(words or answer.get("success") is False))
        if not is_refusal:
            raise Unheard(words or f"HTTP {status} with {kind_of(response.content)}", contract=contract)
        raise Refused(
            status,
            str(answer.get("error") or ""),
            words or ("rented, and not started" if contract else f"HTTP {status}"),
            is_own="success" in answer,
            contract=contract,
            retry_after_s=_retry_after_s(response.headers, answer, response.content),
        )

    def _clean(self, text: str) -> str:
        return one_line(text, self.key)


def check_sdk() -> None:
    """Raises ProviderRejected without a usable SDK, loading nothing.

    `vastai-sdk` 0.2 calls home when it is imported, swallows errors and puts the key into URLs; it has no `vastai` of
    at least 1.0 beside it.
    """
    try:
        version = metadata.version("vastai")
    except metadata.PackageNotFoundError:
        raise ProviderRejected("the package vastai is not installed", hint=SDK_HINT) from None
    if int(version.partition(".")[0] or 0) < 1:
        raise ProviderRejected(f"vastai {version} is too old to be trusted with money", hint=SDK_HINT)


def sdk() -> Any:
    """The official package, without what its import does to logging: a handler on stderr, and a level of its own."""
    logger = logging.getLogger("vastai")
    before = logger.level, logger.propagate, list(logger.handlers)
    try:
        import vastai
    except ImportError as e:
        raise ProviderRejected(f"vastai cannot be loaded: {e}", hint=SDK_HINT) from None
    logger.level, logger.propagate, logger.handlers[:] = before
    return vastai


def contract_of(answer: Mapping[str, Any]) -> int | None:
    """The id of what was rented, if an answer tells one: also answers that say no."""
    told = answer.get("new_contract")
    return told if isinstance(told, int) and not isinstance(told, bool) and told > 0 else None


def _words(answer: Mapping[str, Any]) -> str:
    """`{success, error, msg}`; rate limits come as `{detail}`."""
    parts = [str(answer[name]) for name in ("error", "msg", "detail", "message") if answer.get(name)]
    return ": ".join(parts)


def _retry_after_s(headers: Mapping[str, str], answer: Mapping[str, Any], body: bytes) -> float | None:
    """Seconds to wait: the header, else the field of newer answers, else the spacing that the text names."""
    found = _THRESHOLD.search(body[:2000].decode(errors="replace"))
    for told in (headers.get("Retry-After"), answer.get("retry_after"), found and found[1]):
        try:
            seconds = float(told)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    return None
