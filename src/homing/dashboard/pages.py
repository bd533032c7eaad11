"""The pages as an ASGI application: Starlette's routes, with limits, headers and a log line around them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from homing.core.ports.runtime import RandomSource
from homing.dashboard.home_page import HomePage
from homing.http_server.asgi import RequestIds, RequestObserver

log = logging.getLogger("homing.requests")

PATHS = ("/",)
"""Paths of pages outside `PREFIX`."""

PREFIX = "/ui/"
"""Start of the paths of all other pages, and of the files that pages need."""

_MAX_REQUESTS = 100

_ANSWER_S = 10.0

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of every page: only our own style sheets may be loaded."""

_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode("ascii")),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]


class Pages:
    """Serves all pages. Their requests have their own limit, so that pages do not displace API requests."""

    def __init__(
        self, home: HomePage, *, random_source: RandomSource, watchers: Sequence[RequestObserver] = ()
    ) -> None:
        self._home = home
        self._ids = RequestIds(random_source)
        self._watchers = tuple(watchers)
        self._active = 0
        self._app = Starlette(
            routes=[
                Route("/", self.show_home),
                Route("/ui/pages.css", self.show_style),
            ]
        )
        self._app.router.redirect_slashes = False

    async def show_home(self, request: Request) -> Response:
        """Shows what this service is, whether it is healthy, and where to go next."""
        return await self._home.respond(request)

    async def show_style(self, request: Request) -> Response:
        """Returns the style sheet of all pages."""
        return Response(_file("pages.css"), media_type="text/css")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        page = _PageRequest(self._ids.choose(_header(scope, b"x-request-id")), scope, send)
        observed = [(watcher, watcher.began(scope["headers"])) for watcher in self._watchers]
        began_s = asyncio.get_running_loop().time()
        self._active += 1
        try:
            await self._respond(page, receive)
        finally:
            self._active -= 1
        took_s = asyncio.get_running_loop().time() - began_s
        for observer, began in observed:
            observer.ended(began, page.operation, scope["method"], page.status, took_s)
        log.info(
            "%s %s %d %.1f ms %s",
            scope["method"] if page.operation else "-",
            page.operation or "-",
            page.status,
            took_s * 1000,
            page.id,
            extra={"request_id": page.id},
        )

    async def _respond(self, page: _PageRequest, receive: Any) -> None:
        if self._active > _MAX_REQUESTS:
            await page.fail(receive, 503, "Too many pages are being shown. Try again in a second.")
            return
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._app(page.scope, receive, page.send)
        except TimeoutError:
            await page.fail(receive, 503, "The page took too long. Try again.")
        except Exception as error:
            log.error(
                "request %s failed: %s",
                page.id,
                type(error).__name__,
                exc_info=error,
                extra={"request_id": page.id},
            )
            await page.fail(receive, 500, "An unexpected error occurred. The log has the details.")


class _PageRequest:
    """One request. Adds the headers of all pages to its response."""

    def __init__(self, id: str, scope: dict[str, Any], send: Any) -> None:
        self.id = id
        self.scope = scope
        self.status = 0
        self._send = send

    @property
    def operation(self) -> str:
        """Name of the function that creates the page. Empty if there is no such page."""
        return getattr(self.scope.get("endpoint"), "__name__", "")

    async def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = [*_HEADERS, (b"x-request-id", self.id.encode("ascii"))]
            message = {**message, "headers": [*message["headers"], *own]}
        await self._send(message)

    async def fail(self, receive: Any, status: int, text: str) -> None:
        """Sends an error, unless a response was already started."""
        if not self.status:
            headers = {"Retry-After": "1"} if status == 503 else None
            await PlainTextResponse(f"{text}\n", status, headers)(self.scope, receive, self.send)


def _header(scope: Mapping[str, Any], name: bytes) -> str | None:
    return next((value.decode("latin-1") for own, value in scope["headers"] if own == name), None)


@cache
def _file(name: str) -> bytes:
    return resources.files("homing.dashboard").joinpath("static", name).read_bytes()
