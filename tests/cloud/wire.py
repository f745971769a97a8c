"""The HTTP side of a fake marketplace: routes, JSON, a log of what was asked, and faults on command.

A marketplace is a subclass that lists its `routes`. It answers on loopback from threads of this process. What its own
code gets wrong is kept in `crashes`, and raised when it is closed: a fake that fails must not pass for a marketplace
that does.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.cloud.faults import Fault, Faults

_SECRET_HEADERS = ("authorization", "cookie", "x-api-key")
_SILENCE_ENDS_S = 0.05  # how often a silent answer looks whether its caller has left


@dataclass(frozen=True, slots=True)
class Request:
    """What came in. Header names are in lower case."""

    call: str
    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    parts: Mapping[str, str] = field(default_factory=dict)  # named parts of the route's pattern

    @property
    def bearer(self) -> str:
        """The key it was sent with."""
        scheme, _, key = self.headers.get("authorization", "").partition(" ")
        return key.strip() if scheme.lower() == "bearer" else ""

    def json(self) -> Any:
        """ValueError for anything else."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes out."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, plain: Any, status: int = 200, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(status, json.dumps(plain).encode(), headers=named)


class Refusal(Exception):
    """Raised by a handler instead of returning: the answer is final and nothing has changed."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Route:
    """`{name}` in a path stands for one segment."""

    method: str
    path: str
    call: str  # its name in faults and in the log
    handler: Callable[[Request], Answer]

    def match(self, method: str, path: str) -> Mapping[str, str] | None:
        if method != self.method:
            return None
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(self.path))
        found = re.fullmatch(pattern, path)
        return found.groupdict() if found else None


@dataclass(frozen=True, slots=True)
class Logged:
    """A call as the log keeps it, without keys."""

    call: str
    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    by: str  # whose key it came with, as the marketplace calls its holder
    status: int = 0  # of the answer; 0: there was none
    fault: str = ""


class Wire:
    """A server on loopback. Handlers run one at a time, under `lock`."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.log: list[Logged] = []
        self.crashes: list[str] = []
        self.lock = threading.RLock()
        self._closing = threading.Event()
        outer = self

        class Handler(_Handler):
            wire = outer

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    # What a marketplace says

    def routes(self) -> Sequence[Route]:
        """Asked once per call."""
        raise NotImplementedError

    def identify(self, request: Request) -> str:
        """Whose key a call came with: `account`, `instance 17`, or nothing."""
        return ""

    def error_body(self, status: int) -> bytes:
        """The page for a status that the marketplace itself did not mean."""
        return json.dumps({"error": status}).encode()

    # What tests use

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def calls(self, name: str) -> list[Logged]:
        with self.lock:
            return [logged for logged in self.log if logged.call == name]

    def close(self) -> None:
        """Stop answering; raises if the fake itself has crashed."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        assert not self.crashes, "\n".join(self.crashes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # One call

    def serve(self, request: Request) -> tuple[Answer | None, Fault | None]:
        """None: no answer at all, in the way of the fault."""
        found, handler = self._find(request)
        fault = self.faults.take(found.call)
        answer = None if fault and not fault.has_effect else self._handle(handler, found)
        if fault:
            answer = self._spoil(fault)
        with self.lock:
            self.log.append(self._logged(found, answer, fault))
        return answer, fault

    def _find(self, request: Request) -> tuple[Request, Callable[[Request], Answer]]:
        for route in self.routes():
            parts = route.match(request.method, request.path)
            if parts is not None:
                return replace(request, call=route.call, parts=parts), route.handler
        return request, lambda _: Answer(404, self.error_body(404))

    def _handle(self, handler: Callable[[Request], Answer], request: Request) -> Answer:
        try:
            with self.lock:
                return handler(request)
        except Refusal as e:
            return e.answer
        except Exception:
            with self.lock:
                self.crashes.append(f"{request.method} {request.path}\n{traceback.format_exc()}")
            return Answer(500, self.error_body(500))

    def _spoil(self, fault: Fault) -> Answer | None:
        if fault.is_silent or fault.is_reset:
            return None
        body = self.error_body(fault.status) if fault.body is None else fault.body
        return Answer(fault.status, body, fault.content_type, fault.headers)

    def _logged(self, request: Request, answer: Answer | None, fault: Fault | None) -> Logged:
        open_headers = {name: value for name, value in request.headers.items() if name not in _SECRET_HEADERS}
        return Logged(
            request.call, request.method, request.path, request.query, open_headers, request.body,
            by=self.identify(request), status=answer.status if answer else 0, fault=str(fault or ""),
        )  # fmt: skip

    def wait_until_left(self, connection: socket.socket) -> None:
        """Say nothing until the caller has hung up, or the server is closed."""
        connection.settimeout(_SILENCE_ENDS_S)
        while not self._closing.is_set():
            try:
                if not connection.recv(1, socket.MSG_PEEK):
                    return
            except TimeoutError:
                continue
            except OSError:
                return


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that hangs up is none of our business."""


class _Handler(BaseHTTPRequestHandler):
    wire: Wire
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        request = Request(
            call="unknown",
            method=self.command,
            path=url.path,
            query=parse_qs(url.query, keep_blank_values=True),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=self.rfile.read(length),
        )
        answer, fault = self.wire.serve(request)
        if answer is not None:
            self._send(answer)
            return
        self.close_connection = True
        if fault and fault.is_silent:
            self.wire.wait_until_left(self.connection)
        with contextlib.suppress(OSError):  # a reset instead of an orderly end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        if answer.body:
            self.send_header("Content-Type", answer.content_type)
        if answer.status != 204:
            self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def log_message(self, *_: object) -> None:
        """Nothing on stderr: calls are in the log."""
