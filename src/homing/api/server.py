"""The HTTP server under the application: uvicorn, with bounds on what a client may make it keep or await."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import uvicorn
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from homing.api.answers import ErrorBody, ErrorDetail

_HEAD_BYTES = 32 * 1024
_SWEEP_S = 1.0
_LONGEST_ANSWER_S = 60.0


class ServerSettings(Struct, frozen=True, kw_only=True):
    """How the server treats connections."""

    head_ms: int = 10_000
    """How long the head of a request may take to arrive."""
    keep_alive_ms: int = 75_000
    """How long a connection is kept while nothing is asked on it."""
    max_connections: int = 4_000
    stop_ms: int = 30_000
    """How long a stop waits for requests that are under way."""


class Connection(HttpToolsProtocol):
    """One client. Refuses heads that are too large, and knows since when it waits for one."""

    waits_since: float | None
    """For the rest of a head (the loop's time); None: it has come."""
    stuck_since: float | None = None
    """Since when an answer lies there unread."""

    def __init__(self, *args: Any, most: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most = most

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.waits_since = self.loop.time()
        self._head_bytes = 0
        if len(self.connections) > self._most:
            self.refuse(503, "OVERLOADED", "too many connections are open here; come again in a second")

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.waits_since is not None and self._is_too_long(data):
            self.refuse(431, "MALFORMED_REQUEST", f"the head has more than {_HEAD_BYTES} bytes")
            return
        super().data_received(data)
        if self.waits_since is not None:
            self._head_bytes += len(data)

    def _is_too_long(self, data: bytes) -> bool:
        room = _HEAD_BYTES - self._head_bytes
        return len(data) > room and data.find(b"\r\n\r\n", 0, max(0, room)) < 0

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        if self.waits_since is None:
            self.waits_since = self.loop.time()

    def on_headers_complete(self) -> None:
        self.waits_since = None
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """In the shape that all errors have."""
        self.refuse(400, "MALFORMED_REQUEST", "this is not HTTP")

    def refuse(self, status: int, code: str, message: str) -> None:
        """Answers without the application, and ends the connection."""
        body = msgspec.json.encode(ErrorBody(error=ErrorDetail(code=code, message=message)))
        retry = b"retry-after: 1\r\n" if status == 503 else b""
        head = b"HTTP/1.1 %d \r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (
            status,
            len(body),
        )
        self.transport.write(head + retry + b"connection: close\r\n\r\n" + body)
        self.transport.close()

    def look(self, now: float, head_s: float) -> None:
        """Ends it where the client takes too long to ask, or to read what it was told."""
        if self.waits_since is not None and now - self.waits_since > head_s:
            self.waits_since = None
            if self._head_bytes:
                self.refuse(408, "REQUEST_TIMEOUT", "the head of the request did not arrive in time")
            else:
                self.transport.close()
        if not self.transport.get_write_buffer_size():
            self.stuck_since = None
        elif self.stuck_since is None:
            self.stuck_since = now
        elif now - self.stuck_since > _LONGEST_ANSWER_S:
            self.transport.abort()


class Server(uvicorn.Server):
    """Serves an application on sockets that are already bound, until `stop` is called.

    Signals are the business of whoever runs it.
    """

    def __init__(self, app: Any, settings: ServerSettings) -> None:
        config = uvicorn.Config(
            app,
            http=partial(Connection, most=settings.max_connections),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=-(-settings.keep_alive_ms // 1000),
            timeout_graceful_shutdown=-(-settings.stop_ms // 1000),
        )
        super().__init__(config)
        self._head_s = settings.head_ms / 1000
        self._swept_at = 0.0

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        if now - self._swept_at >= _SWEEP_S:
            self._swept_at = now
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.look(now, self._head_s)
        return await super().on_tick(counter)

    @property
    def under_way(self) -> int:
        """Requests that are being answered."""
        return len(self.server_state.tasks)

    def stop(self, *, hard: bool = False) -> None:
        """No new connections; what is under way ends, or (`hard`) does not."""
        self.should_exit = True
        self.force_exit = self.force_exit or hard


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; raises OSError where it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(2048)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made
