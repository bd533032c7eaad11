"""A small HTTP endpoint with a few read-only pages, for scrapers and probes.

It shares the event loop with a worker, and anyone who can reach its port can use it. Therefore everything
about a client is limited: the number of clients, the size of a request, and the time for sending it and for
reading the response.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Self

import msgspec
from msgspec import Struct

from homing.core.errors import ConfigError
from homing.core.ports.observers import ReportsReadiness
from homing.http_server.listen_address import ListenAddress
from homing.http_server.server import HttpServer, open_listeners
from homing.http_server.settings import ServerSettings
from homing.telemetry.metrics import CONTENT_TYPE, Metrics

log = logging.getLogger("homing.endpoint")


_MAX_HEAD_BYTES = 8_192

_MAX_CLIENTS = 32

_CLIENT_TIMEOUT_S = 5.0

_PAGE_TIMEOUT_S = 10.0


class PageResponse(Struct, frozen=True):
    """The response to a request for one page."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


PageFunction = Callable[[], Awaitable[PageResponse]]


class MetricsEndpoint:
    """Serves pages by path while its `async with` block runs."""

    def __init__(
        self, listen: ListenAddress, pages: Mapping[str, PageFunction], *, client_s: float = _CLIENT_TIMEOUT_S
    ) -> None:
        """`client_s` is how many seconds a client has to send its request, and again to read the response."""
        client_ms = round(client_s * 1000)
        self._listen = listen
        self._server = HttpServer(
            _PageApp(pages),
            ServerSettings(
                head_bytes=_MAX_HEAD_BYTES,
                head_ms=client_ms,
                keep_alive_ms=client_ms,
                write_ms=client_ms,
                max_connections=_MAX_CLIENTS,
            ),
        )
        self._serving: asyncio.Task[None] | None = None
        self.address = ""
        """The HOST:PORT that the endpoint listens on. Empty outside its `async with` block."""

    async def __aenter__(self) -> Self:
        listeners = await self._open_listeners()
        host, port = listeners[0].getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._serving = asyncio.create_task(self._server.serve(listeners))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._serving is not None, "used outside its `async with` block"
        self._server.stop(hard=True)
        await self._server.disconnect()
        await self._serving
        self.address = ""

    @property
    def clients(self) -> int:
        """The number of connected clients."""
        return self._server.open_connections

    async def _open_listeners(self) -> list[socket.socket]:
        """Returns one listening socket for each address of the host; `localhost` usually has two."""
        host, port = self._listen.host, self._listen.port
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return open_listeners(dict.fromkeys(str(address[0]) for *_, address in found), port)
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise ConfigError("metrics.listen", f"cannot listen on {host}:{port}: {why}") from None


class _PageApp:
    """The ASGI application: one response per connection."""

    def __init__(self, pages: Mapping[str, PageFunction]) -> None:
        self._pages = pages

    async def __call__(self, scope: Mapping[str, Any], receive: object, send: Any) -> None:
        try:
            answer = await self._respond(scope)
        except asyncio.CancelledError:
            return  # the endpoint is closing and the client is already disconnected
        headers = [
            (b"content-type", answer.content_type.encode("ascii")),
            (b"content-length", b"%d" % len(answer.body)),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
            (b"connection", b"close"),
        ]
        if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": answer.status.value, "headers": headers})
        body = b"" if scope["method"] == "HEAD" else answer.body
        await send({"type": "http.response.body", "body": body})

    async def _respond(self, scope: Mapping[str, Any]) -> PageResponse:
        if scope["http_version"] not in ("1.0", "1.1"):
            return _plain(HTTPStatus.BAD_REQUEST)
        if scope["method"] not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        page = self._pages.get(scope["raw_path"].decode("latin-1"))
        if page is None:
            return _plain(HTTPStatus.NOT_FOUND)
        try:
            async with asyncio.timeout(_PAGE_TIMEOUT_S):
                return await page()
        except Exception:
            log.exception("a page could not be created")
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


def _plain(status: HTTPStatus) -> PageResponse:
    return PageResponse(f"{status.phrase}\n".encode(), status=status)


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
