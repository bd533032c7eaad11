"""The function that source 003 calls over HTTP. It answers 401 to requests without the right secret."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import msgspec

SECRET_HEADER = "x-trigger-secret"


class EdgeFunction:
    """A web server on a free port, used as a context manager."""

    def __init__(self, secret: str) -> None:
        self.notifications: list[dict[str, Any]] = []
        self.refused = 0
        edge = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                is_valid = self.headers[SECRET_HEADER] == secret
                if is_valid:
                    edge.notifications.append(msgspec.json.decode(body))
                else:
                    edge.refused += 1
                self.send_response(200 if is_valid else 401)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                """Prints nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
