"""A small HTTP endpoint with a few read-only pages, for scrapers and probes.

It shares the event loop with a worker, and anyone who can reach its port can use it. Therefore everything
about a client is limited: the number of clients, the size of a request, and the time for sending it and for
reading the response.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Protocol, Self

import msgspec
from msgspec import Struct

from homing.core.errors import ConfigError
from homing.core.ports.observers import Readiness
from homing.telemetry.metrics import CONTENT_TYPE, Metrics

log = logging.getLogger("homing.endpoint")


_MAX_HEAD_BYTES = 8_192

_MAX_CLIENTS = 32

_CLIENT_TIMEOUT_S = 5.0

_PAGE_TIMEOUT_S = 10.0

_REQUEST = re.compile(rb"(?P<method>[A-Z]{1,16}) (?P<path>/[!-~]{0,2000}) HTTP/1\.[01]\r\n", re.ASCII)

_LISTEN = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):)?(?P<port>\d{1,5})")

_LOOPBACK = "127.0.0.1"


class PageResponse(Struct, frozen=True):
    """The response to a request for one page."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


PageFunction = Callable[[], Awaitable[PageResponse]]


class ListenAddress(Struct, frozen=True):
    """The address to listen on. Port 0 picks a free port."""

    host: str
    port: int


def parse_listen_address(text: str, where: str) -> ListenAddress:
    """Parses `HOST:PORT`, `[IPv6]:PORT` or `PORT`, which means 127.0.0.1. Raises `ConfigError` otherwise."""
    found = _LISTEN.fullmatch(text.strip())
    if found is None or int(found["port"]) > 65_535:
        raise ConfigError(where, f"is {text!r}; use HOST:PORT, such as 127.0.0.1:9464")
    return ListenAddress((found["host"] or _LOOPBACK).strip("[]"), int(found["port"]))


class MetricsEndpoint:
    """Serves pages by path while its `async with` block runs."""

    def __init__(
        self, listen: ListenAddress, pages: Mapping[str, PageFunction], *, client_s: float = _CLIENT_TIMEOUT_S
    ) -> None:
        """`client_s` is how many seconds a client has to send its request, and again to read the response."""
        self._listen = listen
        self._pages = pages
        self._client_s = client_s
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        listen = self._listen
        try:
            self._server = await asyncio.start_server(
                self._client, listen.host, listen.port, limit=_MAX_HEAD_BYTES, backlog=_MAX_CLIENTS
            )
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise ConfigError(
                "metrics.listen", f"cannot listen on {listen.host}:{listen.port}: {why}"
            ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "used outside its `async with` block"
        self._server.close()
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    @property
    def address(self) -> str:
        """The HOST:PORT that the endpoint listens on."""
        assert self._server is not None, "used outside its `async with` block"
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def clients(self) -> int:
        """The number of clients being served."""
        return len(self._clients)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this method as a task"
        try:
            if len(self._clients) >= _MAX_CLIENTS:
                return  # too many clients: those already connected take precedence
            self._clients.add(task)
            async with asyncio.timeout(self._client_s):
                head = await reader.readuntil(b"\r\n\r\n")
            answer, with_body = await self._answer(head)
            writer.write(_head(answer) + (answer.body if with_body else b""))
            async with asyncio.timeout(self._client_s):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client disconnected, was too slow or sent too much
        finally:
            self._clients.discard(task)
            writer.transport.abort()

    async def _answer(self, head: bytes) -> tuple[PageResponse, bool]:
        """Returns the response, and True if its body is to be sent."""
        request = _REQUEST.match(head)
        if request is None:
            return _plain(HTTPStatus.BAD_REQUEST), True
        with_body = request["method"] != b"HEAD"
        if request["method"] not in (b"GET", b"HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED), True
        page = self._pages.get(request["path"].partition(b"?")[0].decode("ascii"))
        if page is None:
            return _plain(HTTPStatus.NOT_FOUND), with_body
        try:
            async with asyncio.timeout(_PAGE_TIMEOUT_S):
                return await page(), with_body
        except Exception:
            log.exception("a page could not be created")
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR), with_body


def _plain(status: HTTPStatus) -> PageResponse:
    return PageResponse(f"{status.phrase}\n".encode(), status=status)


def _head(answer: PageResponse) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        *(["Allow: GET, HEAD"] if answer.status is HTTPStatus.METHOD_NOT_ALLOWED else []),
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


class ReportsReadiness(Protocol):
    """The part of the engine that the pages use."""

    async def readiness(self) -> Readiness: ...


def build_pages(metrics: Metrics, engine: ReportsReadiness) -> Mapping[str, PageFunction]:
    """Returns the pages `/metrics`, `/healthz` and `/readyz` by path."""

    async def show_metrics() -> PageResponse:
        return PageResponse(await metrics.page(), CONTENT_TYPE)

    async def show_health() -> PageResponse:
        """Liveness check: 200 while the process runs."""
        return PageResponse(b"ok\n")

    async def show_readiness() -> PageResponse:
        found = await engine.readiness()
        status = HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return PageResponse(msgspec.json.encode(found) + b"\n", "application/json", status)

    return {"/metrics": show_metrics, "/healthz": show_health, "/readyz": show_readiness}
