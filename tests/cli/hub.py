"""A hub on loopback that answers as the real one does: status and `X-Error-Code` (huggingface_hub 1.x, utils/_http.py)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeHub:
    """Open, gated and private repositories; tokens; who they belong to."""

    url: str = ""
    open: set[str] = field(default_factory=lambda: {"models/me/open", "datasets/me/rows"})
    gated: set[str] = field(default_factory=lambda: {"models/big/gated"})
    private: set[str] = field(default_factory=lambda: {"models/me/private"})
    tokens: dict[str, dict[str, Any]] = field(default_factory=dict)  # token -> what whoami says
    accepted: set[str] = field(default_factory=set)  # tokens that may read what is gated
    status: int = 0  # answer everything with it
    knows_auth_check: bool = True
    asked: list[tuple[str, bool]] = field(default_factory=list)  # path, whether a token came along

    def answer(self, path: str, token: str) -> tuple[int, str, Any]:
        """Status, error code, body."""
        self.asked.append((path, bool(token)))
        if self.status:
            return self.status, "", {}
        if token and token not in self.tokens:
            return 401, "", {"error": "Invalid credentials in Authorization header"}
        if path == "/api/whoami-v2":
            return (200, "", self.tokens[token]) if token else (401, "", {})
        kind, _, rest = path.removeprefix("/api/").partition("/")
        name = "/".join(rest.split("/")[:2])
        repo, what = f"{kind}/{name}", rest.removeprefix(name)
        is_there = repo in self.open | self.gated or (token and repo in self.private)
        if not is_there:
            return (404 if token else 401), "RepoNotFound", {}
        if what.startswith("/revision/"):
            return (200, "", {}) if what in ("/revision/main", "/revision/v1") else (404, "RevisionNotFound", {})
        if what == "/auth-check":
            if not self.knows_auth_check:
                return 404, "", {}
            if repo in self.gated and token not in self.accepted:
                return (403 if token else 401), "GatedRepo", {}
        return 200, "", {}


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            status, code, body = hub.answer(self.path, token)
            data = json.dumps(body).encode()
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
