"""The HTTP server: uvicorn, with limits on the memory and time that a client can occupy."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import httptools
import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from homing.http_server.settings import ServerSettings

_MAX_HEADERS = 100

_MAX_PIPELINED = 32
"""Maximum number of requests that may wait on a connection behind the current one."""

_PIECE_BYTES = 16 * 1024
"""Maximum number of bytes that one parser call gets. Limits are checked between calls."""

_FRAMING_BYTES = 32 * 1024

_FRAMING_PER_BYTE = 8
"""Chunk sizes, extensions and trailers may use _FRAMING_BYTES plus this many bytes per byte of the body."""

_SWEEP_S = 1.0

_SINGLE_HEADERS = frozenset(
    (
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"transfer-encoding",
    )
)
"""Headers that may not be repeated, because a proxy and Homing could interpret two values differently."""

_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

_NOT_HTTP = (400, "MALFORMED_REQUEST", "this is not HTTP")

_TOO_MANY_HEADERS = (431, "MALFORMED_REQUEST", f"the head has more than {_MAX_HEADERS} headers")


class ClientConnection(HttpToolsProtocol):
    """One client connection, with limits on the size and duration of its requests.

    `enforce_timeouts` enforces the time limits. It is called about once a second for every connection:

    - A head must arrive within `head_s`. On a new connection, this time starts immediately. For later
      requests it starts with the first byte of the head, or of line breaks before it, but never before the
      previous response is complete.
    - If a response was sent before the request's body was complete, the rest of the body must arrive within
      `head_s` too. Before the response, the application enforces its own time limit for the body.
    - A connection may be idle for `idle_s`. Any byte ends the idle time, and the limit for a head applies.
    - A client must read the data that was written to it within `write_s`.
    """

    waits_since: float | None
    """Loop time at which the wait for a head, or for the rest of an answered body, started. None if not
    waiting.
    """
    idle_since: float | None = None
    """Loop time since which the connection has been idle. None if it is not idle."""
    stuck_since: float | None = None
    """Loop time since which written data has waited for the client to read it. None if no data waits."""

    def __init__(self, *args: Any, settings: ServerSettings, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.headers = []
        self._max_connections = settings.max_connections
        self._max_head_bytes = settings.head_bytes
        self._piece_bytes = min(_PIECE_BYTES, settings.head_bytes)
        self._head_bytes = 0
        """Size of the current, incomplete head. Can be too large by up to one piece."""
        self._in_message = False
        """True from the end of a request's head until the end of its body."""
        self._framing_budget = 0
        """Remaining bytes that the current body may use for chunk sizes, chunk extensions and trailers."""
        self._rejection = _NOT_HTTP
        self._ends = False
        """True if the connection closes after the response in progress. Further input is dropped."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.waits_since = self.loop.time()
        if len(self.connections) > self._max_connections:
            self.refuse(503, "OVERLOADED", "too many connections are open; try again in a second")

    def data_received(self, data: bytes) -> None:
        if self.idle_since is not None:
            self.idle_since = None
            self.waits_since = self.loop.time()
        size = self._piece_bytes
        if len(data) <= size:
            self._feed(data)
            return
        for start in range(0, len(data), size):
            self._feed(data[start : start + size])

    def _feed(self, piece: bytes) -> None:
        """Parses one piece of input and checks the limits."""
        if self._ends or self.transport.is_closing():
            return
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as paused:  # the offer to upgrade is ignored, as HTTP allows
            self._feed(piece[paused.args[0] :])
            return
        except httptools.HttpParserError:
            self.logger.debug("Invalid HTTP request received.")
            self.refuse(*self._rejection)
            return
        if self._in_message:
            self._framing_budget -= len(piece)
            if self._framing_budget < 0:
                self.refuse(400, "MALFORMED_REQUEST", "the body has too many chunk extensions or trailers")
        elif self.waits_since is not None:
            self._head_bytes += len(piece)
            if self._head_bytes > self._max_head_bytes + self._piece_bytes:
                self.refuse(*self._head_too_long())
            elif len(self.headers) > _MAX_HEADERS:
                self.refuse(*_TOO_MANY_HEADERS)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.idle_since = None
        self._head_bytes = 0
        if self.waits_since is None:
            self.waits_since = self.loop.time()

    def on_headers_complete(self) -> None:
        self._check_head()
        self.waits_since = None
        self._head_bytes = 0
        self._in_message = True
        self._framing_budget = _FRAMING_BYTES
        super().on_headers_complete()
        self.headers = []  # collects trailers, which are dropped; the request keeps its own list

    def _check_head(self) -> None:
        """Raises _Rejected if the head is too long, is ambiguous or needs an unsupported feature."""
        headers = self.headers
        if self._head_bytes and self._exact_head_bytes() > self._max_head_bytes:
            self._reject(self._head_too_long())
        if len(headers) > _MAX_HEADERS:
            self._reject(_TOO_MANY_HEADERS)
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._reject(_NOT_HTTP)
        named = dict(headers)
        if len(named) != len(headers):
            self._check_repeated()
        coding = named.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or self.parser.get_http_version() != "1.1"):
            self._reject(_malformed("Transfer-Encoding: only chunked is supported, and only in HTTP/1.1"))
        if self.parser.should_upgrade():
            self._check_upgrade(named)

    def _head_too_long(self) -> tuple[int, str, str]:
        return 431, "MALFORMED_REQUEST", f"the head has more than {self._max_head_bytes} bytes"

    def _exact_head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _check_repeated(self) -> None:
        seen: set[bytes] = set()
        for name, _ in self.headers:
            if name in seen and name in _SINGLE_HEADERS:
                self._reject(_malformed(f"{name.decode('latin-1')}: is given twice; send it once"))
            seen.add(name)

    def _check_upgrade(self, named: Mapping[bytes, bytes]) -> None:
        """Rejects CONNECT, and upgrade requests with a body.

        The parser would treat the bytes after the head as another protocol.
        """
        has_body = b"transfer-encoding" in named or named.get(b"content-length", b"0").strip(b"0") != b""
        if has_body or b"upgrade" not in named:
            self._reject(_malformed("Upgrade and CONNECT are not supported; send the request without them"))

    def _reject(self, rejection: tuple[int, str, str]) -> NoReturn:
        """Stops the parser, so that `_feed` refuses the request."""
        self._rejection = rejection
        raise _Rejected

    def on_body(self, body: bytes) -> None:
        self._framing_budget += (1 + _FRAMING_PER_BYTE) * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_message = False
        if self.cycle.response_complete and not self.transport.is_closing():
            # The response was sent before the body ended: only now is the connection idle.
            self.waits_since = None
            self.idle_since = self.loop.time()

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        # Same as in uvicorn, but without its keep-alive timer: `enforce_timeouts` replaces it.
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self.idle_since = self.loop.time()

    def refuse(self, status: int, code: str, message: str) -> None:
        """Responds without calling the application, and closes the connection.

        If an earlier request still waits for its response, the client would take this response for that of
        the earlier request. In that case the earlier request is answered before the connection closes. If
        several requests wait, the connection closes without a response.
        """
        if self._is_answering() and not self._in_message and not self.pipeline:
            self.cycle.keep_alive = False
            self._ends = True
            return
        if self._may_answer():
            self.transport.write(_refusal(status, code, message))
        if self._is_answering():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _is_answering(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _may_answer(self) -> bool:
        if not self._is_answering():
            return not self._in_message  # if a body is still arriving, its request was already answered
        return self._in_message and not self.pipeline and not self.cycle.response_started

    def enforce_timeouts(self, now: float, head_s: float, idle_s: float, write_s: float) -> None:
        """Closes the connection if it is idle for too long, or if the client sends or reads too slowly."""
        if self.idle_since is not None and now - self.idle_since > idle_s:
            self.transport.close()
        if self.waits_since is not None:
            if self._is_answering():  # a pipelined head: its time starts after the response
                self.waits_since = now
            elif now - self.waits_since > head_s:
                self.waits_since = None
                self._end_waiting()
        if not self.transport.get_write_buffer_size():
            self.stuck_since = None
        elif self.stuck_since is None:
            self.stuck_since = now
        elif now - self.stuck_since > write_s:
            self.transport.abort()

    def _end_waiting(self) -> None:
        if self._head_bytes:
            self.refuse(408, "REQUEST_TIMEOUT", "the head of the request did not arrive in time")
        else:
            self.transport.close()


class _Rejected(Exception):
    """Raised inside a parser callback to stop the parser. `ClientConnection._rejection` has the response."""


def _malformed(message: str) -> tuple[int, str, str]:
    return 400, "MALFORMED_REQUEST", message


def _refusal(status: int, code: str, message: str) -> bytes:
    body = msgspec.json.encode({"error": {"code": code, "message": message}})
    retry = b"retry-after: 1\r\n" if status == 503 else b""
    head = b"HTTP/1.1 %d \r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (status, len(body))
    return head + retry + b"connection: close\r\n\r\n" + body


class HttpServer(uvicorn.Server):
    """Serves an application on sockets that are already bound, until `stop` is called.

    It installs no signal handlers.
    """

    def __init__(self, app: Any, settings: ServerSettings) -> None:
        config = uvicorn.Config(
            app,
            http=partial(ClientConnection, settings=settings),  # type: ignore[arg-type]
            interface="asgi3",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=-(-settings.stop_ms // 1000),
        )
        super().__init__(config)
        self._head_s = settings.head_ms / 1000
        self._idle_s = settings.keep_alive_ms / 1000
        self._write_s = settings.write_ms / 1000
        self._swept_at = 0.0

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        if now - self._swept_at >= _SWEEP_S:
            self._swept_at = now
            for connection in list(self.server_state.connections):
                if isinstance(connection, ClientConnection):
                    connection.enforce_timeouts(now, self._head_s, self._idle_s, self._write_s)
        return await super().on_tick(counter)

    @property
    def active_requests(self) -> int:
        """Number of requests in progress."""
        return len(self.server_state.tasks)

    @property
    def open_connections(self) -> int:
        """Number of connections that are open and not about to be closed."""
        return sum(not connection.transport.is_closing() for connection in self.server_state.connections)

    async def disconnect(self) -> None:
        """Closes all connections at once and cancels the requests in progress."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self, *, hard: bool = False) -> None:
        """Makes the server stop. It waits for requests in progress, or aborts them if `hard` is True."""
        self.should_exit = True
        self.force_exit = self.force_exit or hard


def open_listener(host: str, port: int) -> socket.socket:
    """Returns a listening socket. Raises OSError if the address is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def open_listeners(hosts: Iterable[str], port: int) -> list[socket.socket]:
    """Returns a listening socket for each host that is an address of this machine.

    Other hosts are skipped: in many containers, `localhost` has an IPv6 address although there is no IPv6.
    Raises OSError if no host is left, or if an address is not available for another reason.
    """
    opened: list[socket.socket] = []
    skipped: OSError | None = None
    try:
        for host in hosts:
            try:
                opened.append(open_listener(host, port))
            except OSError as error:
                if error.errno not in _NO_SUCH_ADDRESS:
                    raise
                skipped = error
        if not opened and skipped is not None:
            raise skipped
    except OSError:
        for listener in opened:
            listener.close()
        raise
    return opened
