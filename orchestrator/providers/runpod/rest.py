"""RunPod's HTTP, one request at a time: the key in a header, one deadline, no redirect followed, nothing sent twice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import orchestrator
from orchestrator.clock import Clock, SystemClock
from orchestrator.providers.asking import NOT_JSON, in_words, kind_of, never_left, one_line, parsed

if TYPE_CHECKING:
    import requests

CONNECT_TIMEOUT_S = 10.0  # their edge answers within a second, or not at all
MAX_BYTES = 32 * 2**20  # a catalogue is below 1 MB; whatever sends more is not the API
_WINDOW = re.compile(r"r=(\d+)\s*;\s*t=(\d+)")  # `RateLimit: "minute";r=0;t=12, "hour";r=2800;t=1812`


class Refused(Exception):
    """The API itself said no: the status, and its words."""

    def __init__(self, status: int, text: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.retry_after_s = retry_after_s


class Unheard(Exception):
    """No answer worth believing. Unless `was_sent` is False, the request may have had its effect."""

    def __init__(self, text: str, *, was_sent: bool = True) -> None:
        super().__init__(text)
        self.text = text
        self.was_sent = was_sent


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back over the wire."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Rest:
    """The way to RunPod: `base_url` is where `/v2` and `/graphql` lie. Safe for many threads."""

    base_url: str
    key: str = field(repr=False)
    clock: Clock = field(default_factory=SystemClock)

    def call(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        """The answer's JSON, numbers as Decimal; None where a success has no body. Raises Refused or Unheard."""
        return self._believed(self._send(method, path, timeout_s=timeout_s, query=query or {}, body=body))

    def graphql(self, query: str, variables: Mapping[str, Any], *, timeout_s: float) -> Mapping[str, Any]:
        """The `data` of an answer of the older API. Values travel as variables, never inside the query."""
        body = {"query": query, "variables": dict(variables)}
        told = self.call("POST", "/graphql", timeout_s=timeout_s, body=body)
        errors = told.get("errors") if isinstance(told, dict) else None
        if errors:
            first = errors[0] if isinstance(errors, list) else errors
            text = first.get("message") if isinstance(first, dict) else first
            raise Refused(200, self._clean(str(text)))
        if not isinstance(told, dict) or not isinstance(told.get("data"), dict):
            raise Unheard("an answer without data")
        data: Mapping[str, Any] = told["data"]
        return data

    def _send(
        self, method: str, path: str, *, timeout_s: float, query: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> Reply:
        import requests

        ends = self.clock.monotonic() + timeout_s
        headers = {"Accept": "application/json", "User-Agent": f"spot-tune/{orchestrator.__version__}"}
        try:
            with (
                requests.Session() as session,
                session.request(
                    method,
                    self.base_url + path,
                    params=dict(query),
                    json=body,
                    headers=headers,
                    auth=self._sign,
                    timeout=(min(CONNECT_TIMEOUT_S, timeout_s), timeout_s),
                    allow_redirects=False,
                    stream=True,
                ) as response,
            ):
                return Reply(response.status_code, response.headers, b"".join(self._chunks(response, ends)))
        except (requests.RequestException, OSError) as e:
            # Without its cause: that holds the request, and with it the key.
            raise Unheard(in_words(e), was_sent=not never_left(e)) from None

    def _sign(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """As an `auth`, because requests would put a `~/.netrc` entry for the host above a mere header."""
        request.headers["Authorization"] = f"Bearer {self.key}"
        return request

    def _chunks(self, response: requests.Response, ends: float) -> Iterator[bytes]:
        size = 0
        for chunk in response.iter_content(16384):
            size += len(chunk)
            if size > MAX_BYTES or self.clock.monotonic() > ends:
                raise Unheard("the answer is too long" if size > MAX_BYTES else "the answer took too long")
            yield chunk

    def _believed(self, reply: Reply) -> Any:
        """The JSON of a success. A refusal counts only in the API's own form: proxies in between say no, too."""
        told = parsed(reply.body) if reply.body.strip() else None
        if 200 <= reply.status < 300:
            if told is NOT_JSON:
                raise Unheard(f"HTTP {reply.status} with {kind_of(reply.body)} instead of JSON")
            return told
        text = self._clean(_words(told)) or f"HTTP {reply.status}"
        if reply.status == 429:  # an edge in front of the API may be the one that says so
            raise Refused(429, text, retry_after_s=_retry_after_s(reply.headers))
        if 400 <= reply.status < 500 and _words(told):
            raise Refused(reply.status, text)
        raise Unheard(
            f"HTTP {reply.status}: {text}" if _words(told) else f"HTTP {reply.status} with {kind_of(reply.body)}"
        )

    def _clean(self, text: str) -> str:
        return one_line(text, self.key)


def _words(told: Any) -> str:
    """What a refusal says: `{title, status, detail, errors}` in v2, `{error, status}` in v1; empty if it is neither."""
    if not isinstance(told, dict):
        return ""
    said = next((str(told[name]) for name in ("detail", "error", "message", "title") if told.get(name)), "")
    problems = told.get("errors")
    if isinstance(problems, list) and problems:
        said = ": ".join(filter(None, [said, "; ".join(map(str, problems))]))
    return said


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait: Retry-After, else when the window that is used up begins anew."""
    told = headers.get("Retry-After", "").strip()
    if told.isascii() and told.isdigit():
        return float(told)
    try:
        return max(0.0, (parsedate_to_datetime(told) - parsedate_to_datetime(headers["Date"])).total_seconds())
    except (KeyError, TypeError, ValueError):
        pass
    used_up = [float(t) for r, t in _WINDOW.findall(headers.get("RateLimit", "")) if int(r) == 0]
    return max(used_up, default=None)
