"""The lenient S3: moto behind a real HTTP port."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def running_moto() -> Iterator[str]:
    """The endpoint. Requests are served one at a time: moto checks a condition and writes in two steps."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = DomainDispatcherApplication(create_backend_app)
    one_at_a_time = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Any) -> Any:
        with one_at_a_time:
            return list(app(environ, start_response))

    server = make_server("127.0.0.1", 0, serve, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
