"""An HTTP server for tests that injects faults over real sockets.

    async with FaultServer(script=lambda received: RESET_AFTER_READING) as server:
        ...  # send to server.url
        assert server.times("key-1") == 1

The action for each request is a value (`ServerAction`), so a test can describe it in one line. The server
keeps every request that it received.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Literal, Self

from msgspec import Struct

KEY_HEADERS = ("webhook-id", "idempotency-key", "x-idempotency-key")
"""Headers that may carry an idempotency key, in order of precedence."""


class ReceivedRequest(Struct, frozen=True, kw_only=True):
    """One request that the server received."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Header values by header name in lower case."""
    body: bytes = b""
    connection: int = 0
    """Number of the connection that carried the request, starting at 1."""

    @property
    def key(self) -> str | None:
        """Returns the idempotency key from one of `KEY_HEADERS`, or None if the request has none."""
        return next((self.headers[name] for name in KEY_HEADERS if name in self.headers), None)


class ServerAction(Struct, frozen=True, kw_only=True):
    """What the server does with one request: whether to read it, what to write, and what to do afterwards."""

    reads: bool = True
    """True if the server reads the whole request. If False, it reads only the head and the request counts as
    refused."""
    writes: bytes = b""
    """Raw bytes written to the connection, valid HTTP or not."""
    pause_ms: int = 0
    """Pause after each byte, in milliseconds. 0 writes everything at once."""
    then: Literal["keep", "close", "reset", "hang"] = "keep"
    """What happens to the connection afterwards."""


def answer(
    status: int = 200,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    then: Literal["keep", "close", "reset"] = "keep",
) -> ServerAction:
    """Returns an action that sends a correct response."""
    return ServerAction(
        writes=_http(status, {"content-length": str(len(body)), **(headers or {})}) + body, then=then
    )


def throttle(retry_after: str, status: int = 429, body: bytes = b"") -> ServerAction:
    """Returns a response with a `Retry-After` header, given in seconds or as an HTTP date."""
    return answer(status, body, {"retry-after": retry_after})


def wrong_length(status: int = 200, body: bytes = b"ok", *, length: int) -> ServerAction:
    """Returns a response whose `Content-Length` does not match its body."""
    return ServerAction(writes=_http(status, {"content-length": str(length)}) + body, then="close")


def drip(act: ServerAction, pause_ms: int = 50) -> ServerAction:
    """Returns the same response, sent byte by byte with a pause after each byte."""
    return ServerAction(writes=act.writes, pause_ms=pause_ms, then=act.then)


def after_continue(act: ServerAction) -> ServerAction:
    """Returns the same response, preceded by `100 Continue`."""
    return ServerAction(writes=b"HTTP/1.1 100 Continue\r\n\r\n" + act.writes, then=act.then)


def html_page(status: int = 200) -> ServerAction:
    """Returns a response with an HTML page, as proxies and captive portals send it."""
    page = b"<!doctype html><html><body><h1>Welcome</h1></body></html>"
    return answer(status, page, {"content-type": "text/html; charset=utf-8"})


def huge_body(status: int = 200, size: int = 4 * 1024 * 1024) -> ServerAction:
    """Returns a response with a JSON body of about `size` bytes, more than a client should read."""
    return answer(status, b'{"x":"' + b"a" * size + b'"}', {"content-type": "application/json"})


def _http(status: int, headers: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Whatever\r\n{lines}\r\n".encode("latin-1")


OK = answer(200, b"ok")

RESET_BEFORE_READING = ServerAction(reads=False, then="reset")

RESET_AFTER_READING = ServerAction(then="reset")

HANG_BEFORE_READING = ServerAction(reads=False, then="hang")

HANG_AFTER_READING = ServerAction(then="hang")

EMPTY = ServerAction(then="close")
"""Closes the connection without a response."""

GARBAGE = ServerAction(writes=bytes(range(256)) * 4, then="close")

HALF_A_HEAD = ServerAction(writes=b"HTTP/1.1 200 OK\r\nContent-Le", then="close")

CHUNKED_NONSENSE = ServerAction(
    writes=_http(200, {"transfer-encoding": "chunked"}) + b"zz\r\nnot a chunk\r\n", then="close"
)

CLOSE_AFTER_ANSWER = answer(200, b"ok", then="close")
"""Closes the connection after a response that does not announce the close."""


Script = Callable[[ReceivedRequest], ServerAction]
"""Chooses the action for a request. Called after the head was read and before the body."""


class FaultServer:
    """An HTTP server on a free port of 127.0.0.1, or of `listen`. `script` chooses the action per request.

    Without a script, the server takes the actions given to `play` one by one, and then `otherwise` for
    every further request.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        otherwise: ServerAction = OK,
        listen: str = "127.0.0.1",
    ) -> None:
        self._script = script or self._next
        self._tls = tls
        self._listen = listen
        self._otherwise = otherwise
        self._acts: list[ServerAction] = []
        self.on_connect: ServerAction | None = None
        """Action taken on every new connection before anything is read. None for no action."""
        self.received: list[ReceivedRequest] = []
        """Requests that were read completely, in the order of arrival."""
        self.refused: list[ReceivedRequest] = []
        """Requests of which only the head was read."""
        self.connections = 0
        self._request_received = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._listen, 0, ssl=self._tls, limit=65536)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Returns the base URL of the server."""
        return f"{'https://localhost' if self._tls else 'http://127.0.0.1'}:{self.port}"

    async def stop(self) -> None:
        """Stops listening and drops all open connections. Later connection attempts are refused."""
        if self._server is not None:
            for _ in range(5):  # lets connections that are already established reach `_serve`
                await asyncio.sleep(0)
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None

    def play(self, *acts: ServerAction) -> None:
        """Adds actions for the next requests."""
        self._acts.extend(acts)

    async def wait_for_requests(self, count: int, within_s: float = 60.0) -> None:
        """Waits until `count` requests were received completely.

        Raises TimeoutError after `within_s` seconds.
        """
        async with asyncio.timeout(within_s), self._request_received:
            await self._request_received.wait_for(lambda: len(self.received) >= count)

    def times(self, key: str) -> int:
        """Returns how many complete requests had this idempotency key."""
        return sum(1 for one in self.received if one.key == key)

    @property
    def by_key(self) -> Counter[str]:
        """Returns the number of complete requests per idempotency key."""
        return Counter(one.key for one in self.received if one.key is not None)

    def _next(self, received: ReceivedRequest) -> ServerAction:
        return self._acts.pop(0) if self._acts else self._otherwise

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        try:
            goes_on = self.on_connect is None or await self._perform(self.on_connect, writer)
            while goes_on:
                goes_on = await self._exchange(reader, writer, number)
        except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the client disconnected, or the server is stopping
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> bool:
        head = await _head(reader, number)
        act = self._script(head)
        if act.reads:
            whole = await _with_body(head, reader)
            async with self._request_received:
                self.received.append(whole)
                self._request_received.notify_all()
        else:
            self.refused.append(head)
        return await self._perform(act, writer)

    async def _perform(self, act: ServerAction, writer: asyncio.StreamWriter) -> bool:
        """Performs an action. Returns True if the connection stays open for another request."""
        for piece in _pieces(act):
            writer.write(piece)
            await writer.drain()
            if act.pause_ms:
                await asyncio.sleep(act.pause_ms / 1000)
        if act.then == "hang":
            await asyncio.Event().wait()
        if act.then == "reset":
            _reset(writer)
        elif act.then == "close":
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        return act.then == "keep"


async def _head(reader: asyncio.StreamReader, number: int) -> ReceivedRequest:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ", 2)
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.lower()] = value.strip()
    return ReceivedRequest(method=method, path=path, headers=headers, connection=number)


async def _with_body(head: ReceivedRequest, reader: asyncio.StreamReader) -> ReceivedRequest:
    body = await reader.readexactly(int(head.headers.get("content-length", "0")))
    return ReceivedRequest(
        method=head.method, path=head.path, headers=head.headers, body=body, connection=head.connection
    )


def _pieces(act: ServerAction) -> Iterable[bytes]:
    if not act.writes:
        return ()
    return (bytes([byte]) for byte in act.writes) if act.pause_ms else (act.writes,)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes the connection with RST instead of FIN."""
    raw: socket.socket | None = writer.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def refusing_url() -> str:
    """Returns a local URL with a port that refuses connections as long as this process lives."""
    return f"http://127.0.0.1:{_refusing_port()}"


@cache
def _refusing_port() -> int:
    """Returns a port that does not listen, but is taken at every address, so that no program gets it."""
    taken = socket.socket()
    taken.bind(("", 0))
    atexit.register(taken.close)
    return int(taken.getsockname()[1])
