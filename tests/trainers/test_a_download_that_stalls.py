"""A model's download that stands still is an error soon, and goes on where it was."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from orchestrator.trainers.trl import ENVIRONMENT

WEIGHTS = bytes(range(256)) * 4096 * 25  # the library takes 10 MiB at a time, and goes on after the last whole one
COMMIT = "a" * 40


@dataclass
class Hub:
    """Sends 99 % of the weights and then nothing more, as often as it is told to."""

    stalls: int
    asked: list[str] = field(default_factory=list)  # the ranges
    over: threading.Event = field(default_factory=threading.Event)
    url: str = ""


@pytest.fixture
def hub(request: pytest.FixtureRequest) -> Iterator[Hub]:
    made = Hub(stalls=request.param)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_HEAD(self) -> None:
            self._head(200, len(WEIGHTS))

        def do_GET(self) -> None:
            told = self.headers.get("Range", "")
            made.asked.append(told)
            start = int(told.removeprefix("bytes=").rstrip("-")) if told else 0
            self._head(206 if told else 200, len(WEIGHTS) - start)
            if made.stalls:
                made.stalls -= 1
                self.wfile.write(WEIGHTS[start : max(start, len(WEIGHTS) * 99 // 100)])
                self.wfile.flush()
                made.over.wait(60)
                self.close_connection = True
                return
            self.wfile.write(WEIGHTS[start:])

        def _head(self, status: int, length: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.send_header("ETag", f'"{hashlib.sha256(WEIGHTS).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield made
    made.over.set()
    server.shutdown()
    server.server_close()


def download(hub: Hub, folder: Path) -> subprocess.CompletedProcess[str]:
    """By the library, in a trainer's environment; only its minute is a second here."""
    assert float(ENVIRONMENT["HF_HUB_DOWNLOAD_TIMEOUT"]) <= 120
    code = "from huggingface_hub import hf_hub_download as get; print(get('org/model', 'model.safetensors'))"
    env = {**ENVIRONMENT, "HF_HUB_DOWNLOAD_TIMEOUT": "1", "HF_ENDPOINT": hub.url, "HF_HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("hub", [2], indirect=True)
def test_it_goes_on_where_it_stood_still(hub: Hub, tmp_path: Path) -> None:
    done = download(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == WEIGHTS
    assert len(hub.asked) == 3
    assert hub.asked[0] == ""
    assert all(asked.startswith("bytes=") for asked in hub.asked[1:]), "nothing is fetched twice"


@pytest.mark.parametrize("hub", [99], indirect=True)
def test_it_ends_where_nothing_comes_any_more(hub: Hub, tmp_path: Path) -> None:
    done = download(hub, tmp_path)
    assert done.returncode != 0, "the trainer leaves before its first step: another host is tried"
    assert 2 < len(hub.asked) < 12
