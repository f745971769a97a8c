"""A web server that keeps what it is asked, and answers what it is told."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    head: dict[str, str]
    body: bytes


@dataclass
class Web:
    """`answers` by method, 200 where there is none; `gate` closed: it keeps everybody waiting."""

    answers: dict[str, int] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        web = self
        self.gate.set()

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                web.asked.append(Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                web.gate.wait(60)
                self.send_response(web.answers.get(self.command, 200))
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_PUT = do_POST = do_DELETE = answer

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
