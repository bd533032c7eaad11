"""The pages as an ASGI application: Starlette's routes, with limits, headers and a log line around them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Any
from urllib.parse import urlencode, urlsplit

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route as StarletteRoute

from homing.core.errors import (
    CommandRefused,
    HomingError,
    NotFound,
    StoreError,
    VersionConflict,
)
from homing.core.ports.runtime import RandomSource
from homing.dashboard.home_page import HomePage
from homing.dashboard.live import FORM_TOKEN_PLACE, LiveFeed
from homing.dashboard.rendering import render
from homing.dashboard.sign_in import COOKIE, SignIn
from homing.dashboard.static_files import MEDIA_TYPES, respond_with_file
from homing.dashboard.visits import (
    DashboardTools,
    ScreenRoute,
    Screens,
    Visit,
    explain_problem,
    own_page,
    read_form,
)
from homing.engine.access.web_sessions import WebSession
from homing.http_server.asgi import RequestIds, RequestObserver

log = logging.getLogger("homing.requests")

PATHS = ("/",)
"""Paths of pages outside `PREFIX`."""

PREFIX = "/ui/"
"""Start of the paths of all other pages, and of the files that pages need."""

_MAX_REQUESTS = 100

_ANSWER_S = 10.0

_LIVE = "/ui/live/"

_UNEXPECTED = "An unexpected error occurred. The log has the details."

_EXPORT, _EXPORT_S = "/ui/export", 120.0

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; frame-src 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of every page: only our own files may be loaded, and nothing inline is run."""

_HEADERS = {
    b"cache-control": b"no-store",
    b"content-security-policy": CONTENT_SECURITY_POLICY.encode("ascii"),
    b"cross-origin-opener-policy": b"same-origin",
    b"referrer-policy": b"same-origin",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}
"""Headers of every response that does not have its own.

The referrer policy is not `no-referrer`, because browsers then send `Origin: null` with our own forms.
"""

_STATUSES: tuple[tuple[type[HomingError], int], ...] = (
    (NotFound, 404),
    (CommandRefused, 409),
    (VersionConflict, 409),
    (StoreError, 503),
    (HomingError, 422),
)


class Pages:
    """Serves all pages. Their requests have their own limit, so that pages do not displace API requests."""

    def __init__(
        self,
        home: HomePage,
        *,
        random_source: RandomSource,
        watchers: Sequence[RequestObserver] = (),
        tools: DashboardTools | None = None,
        sign_in: SignIn | None = None,
        screens: Sequence[Screens] = (),
    ) -> None:
        self._home = home
        self._ids = RequestIds(random_source)
        self._watchers = tuple(watchers)
        self._active = 0
        self._tools = tools
        self._sign_in = sign_in
        self.feed = LiveFeed()
        self._live = {name: part for one in screens for name, part in one.live_parts.items()}
        routes = [
            StarletteRoute("/", self.show_home),
            *(StarletteRoute(f"/ui/{name}", self.show_file) for name in MEDIA_TYPES),
        ]
        if sign_in is not None:
            routes += [
                StarletteRoute("/ui/", self.show_start),
                StarletteRoute("/ui/sign-in", self.show_sign_in),
                StarletteRoute("/ui/sign-in", self.sign_in, methods=["POST"]),
                StarletteRoute("/ui/sign-out", self.sign_out, methods=["POST"]),
                StarletteRoute(f"{_LIVE}{{name}}", self.stream),
                *(self._route(route) for one in screens for route in one.routes),
            ]
        self._app = Starlette(routes=routes, exception_handlers=_HANDLERS)
        self._app.router.redirect_slashes = False

    async def show_home(self, request: Request) -> Response:
        """Shows the dashboard to a person who is signed in, and the state of the service to all others."""
        sign_in = self._sign_in
        if sign_in is not None and "text/html" in request.headers.get("accept", ""):
            known = COOKIE in request.cookies and await sign_in.find(request)
            if known or sign_in.is_open_to(request):
                return RedirectResponse("ui/now", 303)
        return await self._home.respond(request)

    async def show_file(self, request: Request) -> Response:
        """Returns the style sheet or a script."""
        return respond_with_file(request.url.path.removeprefix(PREFIX), request)

    async def show_start(self, request: Request) -> Response:
        """Leads to the first screen."""
        return RedirectResponse("now", 303)

    async def show_sign_in(self, request: Request) -> Response:
        """Shows the form that signs in, or uses a link."""
        assert self._sign_in is not None
        return await self._sign_in.show(request)

    async def sign_in(self, request: Request) -> Response:
        """Signs in with a key or token."""
        assert self._sign_in is not None
        return await self._sign_in.submit(request)

    async def sign_out(self, request: Request) -> Response:
        """Ends the session."""
        assert self._sign_in is not None
        return await self._sign_in.leave(request)

    async def stream(self, request: Request) -> Response:
        """Streams the updates of one part of a screen."""
        assert self._sign_in is not None
        assert self._tools is not None
        sign_in, part = self._sign_in, self._live.get(request.path_params["name"])
        session = await sign_in.find(request, used=False)
        if part is None or session is None:
            return PlainTextResponse("", 404 if part is None else 401)
        if not any(session.caller.may(scope) for scope in part.scopes):
            return PlainTextResponse("", 403)
        query = {name: value for name, value in request.query_params.items() if name != "done"}
        caller = session.caller
        key = (part.path, caller.tenant, caller.scopes, request.url.path, tuple(sorted(query.items())))
        if self.feed.is_full(key, caller.tenant):
            return PlainTextResponse("", 503, {"Retry-After": "10"})
        visit = _LiveVisit(self._tools, request, session)

        async def is_valid() -> bool:
            return await sign_in.find(request, used=False) is not None

        events: AsyncIterator[str] = self.feed.watch(
            key, caller.tenant, lambda: part.handler(visit), is_valid, session.form_token
        )
        return StreamingResponse(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    def _route(self, route: ScreenRoute) -> StarletteRoute:
        async def endpoint(request: Request) -> Response:
            return await self._visit(route, request)

        update_wrapper(endpoint, route.handler)
        return StarletteRoute(route.path, endpoint, methods=[route.method])

    async def _visit(self, route: ScreenRoute, request: Request) -> Response:
        """Checks session, scope and, for an action, the form. Then calls the handler."""
        assert self._sign_in is not None
        assert self._tools is not None
        session = await self._sign_in.find(request)
        if session is None:
            if route.method == "POST" or "hx-request" in request.headers:
                return _problem(request, 401, "Your session has ended", "Sign in again.")
            return await self._sign_in.ask(request)
        visit = Visit(self._tools, request, session)
        try:
            fields = await read_form(request) if route.method == "POST" else {}
            if route.method == "POST" and not self._sign_in.is_own_form(request, session, fields):
                return _problem(
                    request, 403, "This form is not valid", "Open the page again, and repeat the action."
                )
            if not any(session.caller.may(scope) for scope in route.scopes):
                needed = " or ".join(scope.value for scope in route.scopes)
                return _problem(request, 403, "Not allowed", f"Your key needs the scope {needed}.")
            arguments = dict(request.path_params)
            answer = route.handler(visit, **arguments, **({"form": fields} if route.method == "POST" else {}))
            found: Response = await answer
            return found
        except HomingError as error:
            return _failure(request, error)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        page = _PageRequest(self._ids.choose(_header(scope, b"x-request-id")), scope, send)
        observed = [(watcher, watcher.began(scope["headers"])) for watcher in self._watchers]
        began_s = asyncio.get_running_loop().time()
        streams = scope["path"].startswith(_LIVE)  # they last for hours, and have a limit of their own
        self._active += not streams
        try:
            exports = scope["path"] == _EXPORT
            await self._respond(page, receive, None if streams else _EXPORT_S if exports else _ANSWER_S)
        finally:
            self._active -= not streams
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

    async def _respond(self, page: _PageRequest, receive: Any, within_s: float | None) -> None:
        if self._active > _MAX_REQUESTS:
            await page.fail(receive, 503, "Too many pages are being shown. Try again in a second.")
            return
        try:
            async with asyncio.timeout(within_s):
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
            await page.fail(receive, 500, _UNEXPECTED)


class _LiveVisit(Visit):
    """The visit of a stream. Its addresses are those of the page that shows the part."""

    def __init__(self, tools: DashboardTools, request: Request, session: WebSession) -> None:
        super().__init__(tools, request, replace(session, form_token=FORM_TOKEN_PLACE))

    @property
    def depth(self) -> int:
        return self.query.get("at", "")[:100].count("/")


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
            given = {name for name, _ in message["headers"]}
            own = [(name, value) for name, value in _HEADERS.items() if name not in given]
            own.append((b"x-request-id", self.id.encode("ascii")))
            message = {**message, "headers": [*message["headers"], *own]}
        await self._send(message)

    async def fail(self, receive: Any, status: int, text: str) -> None:
        """Sends an error, unless a response was already started."""
        if not self.status:
            headers = {"Retry-After": "1"} if status == 503 else None
            await PlainTextResponse(f"{text}\n", status, headers)(self.scope, receive, self.send)


def _no_page(request: Request, error: Exception) -> Response:
    return _problem(request, 404, "Not found", "There is no page at this address.")


def _only_a_form(request: Request, error: Exception) -> Response:
    text = "This address only takes a form. Open the page with the form again."
    return _problem(request, 405, "Not a page", text)


def _unexpected(request: Request, error: Exception) -> Response:
    return _problem(request, 500, "Unexpected error", _UNEXPECTED)


_HANDLERS: dict[Any, Callable[[Request, Exception], Response]] = {
    404: _no_page,
    405: _only_a_form,
    500: _unexpected,
}
"""Status → function that returns the page for it. An unexpected error is logged afterwards."""


def _failure(request: Request, error: HomingError) -> Response:
    status = next(status for kind, status in _STATUSES if isinstance(error, kind))
    titles = {404: "Not found", 409: "Not possible", 503: "The store does not answer"}
    text = (
        explain_problem(error)
        if status != 503
        else "Try again in a moment. The log of the service has the details."
    )
    return _problem(request, status, titles.get(status, "Not valid"), text)


def _problem(request: Request, status: int, title: str, text: str) -> Response:
    base, before = "../" * (request.url.path.count("/") - 2), _page_before(request)
    back = base + before if before else ""
    sign_in = f"{base}sign-in" + (f"?{urlencode({'next': before})}" if before else "")
    page = render("problem.html", title=title, text=text, base=base, back=back, sign_in=sign_in)
    return HTMLResponse(page, status)


def _page_before(request: Request) -> str:
    """Returns the address of the page with the form or link that led here, or nothing.

    Browsers name it only if it is a page of this service.
    """
    before, host = urlsplit(request.headers.get("referer", "")), request.headers.get("host", "")
    _, found, path = before.path.partition(PREFIX)
    return own_page(path, before.query) if found and before.netloc == host else ""


def _header(scope: Mapping[str, Any], name: bytes) -> str | None:
    return next((value.decode("latin-1") for own, value in scope["headers"] if own == name), None)
