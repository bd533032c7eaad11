"""The ASGI application: finds the route, checks the caller, reads the body and calls the handler.

It also limits the number, duration and memory of the requests in progress.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from homing.api.http.bodies import ApiError, ApiResponse, Receive, read_body
from homing.api.http.errors import error_response_for
from homing.api.http.routing import Route, RouteTable, read_arguments
from homing.api.service import ANONYMOUS, ApiCall, Service, raw_path
from homing.core.access.scopes import Caller
from homing.core.ports.runtime import RandomSource
from homing.http_server.asgi import RequestIds, RequestObserver

log = logging.getLogger("homing.requests")


_ENCODER = msgspec.json.Encoder()

_JSON = ("application/json", "")

_COMMON = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]

_NOT_PRINTABLE = re.compile(r"[^ -~]")

_CLOSE = {"Connection": "close"}


class App:
    """Serves the given routes for one `Service`."""

    def __init__(
        self,
        service: Service,
        routes: Iterable[Route],
        *,
        random_source: RandomSource,
        watchers: Sequence[RequestObserver] = (),
    ) -> None:
        self.service = service
        self.active_requests = ActiveRequests(service.settings.max_requests, service.settings.buffer_bytes)
        self._read_s = service.settings.read_ms / 1000
        self._answer_s = service.settings.answer_ms / 1000
        self._table = RouteTable(routes)
        self._watchers = tuple(watchers)
        self._ids = RequestIds(random_source)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Any) -> None:
        if scope["type"] != "http":
            await _handle_other_protocol(scope, receive, send)
            return
        request = self._request(scope)
        observed = [(watcher, watcher.began(scope["headers"])) for watcher in self._watchers]
        try:
            answer, body = await self._respond(request, scope, receive)
        finally:
            self.active_requests.end(request)
        await send(_start(answer, body, request.id))
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
        if observed or log.isEnabledFor(logging.INFO):
            self._log(request, scope["method"], answer.status, observed)

    def _request(self, scope: Mapping[str, Any]) -> ActiveRequest:
        task = asyncio.current_task()
        assert task is not None, "the server runs each request in a task"
        now = task.get_loop().time()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        id = self._ids.choose(headers.get("x-request-id"))
        return ActiveRequest(id, task, headers, now, now + self._read_s)

    async def _respond(
        self, request: ActiveRequest, scope: Mapping[str, Any], receive: Receive
    ) -> tuple[ApiResponse[Any], bytes]:
        """Returns the response and its encoded body. Every exception becomes an error response."""
        try:
            self.active_requests.begin(request)
            answer = await self._handle(request, scope, receive)
            return answer, _body(answer)
        except asyncio.CancelledError:
            if not request.given_up:
                raise
            request.task.uncancel()
            return self._error_response(request, self._timeout_error(request))
        except Exception as error:
            return self._error_response(request, error)

    async def _handle(
        self, request: ActiveRequest, scope: Mapping[str, Any], receive: Receive
    ) -> ApiResponse[Any]:
        route, params = self._table.find(scope["method"], raw_path(scope))
        request.route = route
        if route.scopes:
            request.caller = await self._caller(route, request.headers)
        request.reading = True
        raw = await self._read(request, route, receive) if route.reads else b""
        request.reading = False
        request.until += self._answer_s
        call = ApiCall(
            service=self.service,
            caller=request.caller,
            method=scope["method"],
            scope=scope,
            headers=request.headers,
            raw=raw,
        )
        result = await route.handler(call, **read_arguments(route, call, params))
        return result if isinstance(result, ApiResponse) else ApiResponse(result, route.status)

    def _error_response(self, request: ActiveRequest, error: Exception) -> tuple[ApiResponse[Any], bytes]:
        answer = error_response_for(error, request.id)
        return answer, _body(answer)

    def _timeout_error(self, request: ActiveRequest) -> ApiError:
        settings = self.service.settings
        if request.reading:
            message = f"the body did not arrive within {settings.read_ms} ms"
            return ApiError("REQUEST_TIMEOUT", message, headers=_CLOSE)
        return ApiError("TIMEOUT", "the request took too long and was aborted; try again")

    def _log(
        self,
        request: ActiveRequest,
        method: str,
        status: int,
        observed: Sequence[tuple[RequestObserver, Any]],
    ) -> None:
        """Reports a request to the observers and logs one line.

        The line has no path parameters, query or body, because these may contain personal data.
        """
        took_s = request.task.get_loop().time() - request.began
        route = request.route
        for observer, began in observed:
            observer.ended(began, route.handler.__name__ if route else "", method, status, took_s)
        log.info(
            "%s %s %d %.1f ms %s",
            method if route else "-",
            route.path if route else "-",
            status,
            took_s * 1000,
            request.id,
            extra={"request_id": request.id, "tenant": request.caller.tenant, "who": request.caller.who},
        )

    async def _caller(self, route: Route, headers: Mapping[str, str]) -> Caller:
        gatekeeper = self.service.gatekeeper
        caller = await gatekeeper.caller(headers.get("authorization", ""))
        if caller is None:
            raise ApiError(
                "UNAUTHORIZED",
                "no valid API key; send Authorization: Bearer KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )
        for scope in route.scopes:
            if caller.may(scope):
                break
        else:
            needed = " or ".join(scope.value for scope in route.scopes)
            raise ApiError("FORBIDDEN", f"this API key needs the scope {needed}")
        if wait_ms := await gatekeeper.admit(caller):
            seconds = str(-(-wait_ms // 1000))
            raise ApiError(
                "RATE_LIMITED",
                f"this API key has exceeded its rate limit; retry in {seconds} s",
                headers={"Retry-After": seconds},
            )
        return caller

    async def _read(self, request: ActiveRequest, route: Route, receive: Receive) -> bytes:
        headers, settings = request.headers, self.service.settings
        media_type = headers.get("content-type", "")
        if media_type != "application/json":
            media_type = media_type.partition(";")[0].strip().lower()
        accepts_any = route.raw and not route.bodies
        if media_type not in (route.bodies or _JSON) and not accepts_any:
            supported = " or ".join(route.bodies or _JSON[:1])
            raise ApiError(
                "UNSUPPORTED_MEDIA_TYPE",
                f"Content-Type: {media_type!r} is not supported; send {supported}",
                field="Content-Type",
            )
        limit = route.max_bytes or (settings.batch_bytes if route.large else settings.body_bytes)
        return await read_body(
            receive, headers, limit=limit, hold=partial(self.active_requests.hold, request)
        )


def _body(answer: ApiResponse[Any]) -> bytes:
    value = answer.value
    if value is None:
        return b""
    return value if isinstance(value, bytes) else _ENCODER.encode(value)


def _start(answer: ApiResponse[Any], body: bytes, id: str) -> dict[str, Any]:
    headers = [*_COMMON, (b"x-request-id", id.encode("ascii"))]
    if answer.status != 204:  # a 204 response must not have a Content-Length
        headers.append((b"content-length", b"%d" % len(body)))
    if answer.value is not None:
        headers.append((b"content-type", answer.content_type.encode("latin-1")))
    if answer.headers:
        headers += [(name.lower().encode("ascii"), _safe(value)) for name, value in answer.headers.items()]
    return {"type": "http.response.start", "status": answer.status, "headers": headers}


def _safe(value: str) -> bytes:
    """Replaces all but printable ASCII in a header value with `?`, so that it cannot inject headers."""
    return _NOT_PRINTABLE.sub("?", value).encode("ascii")


async def _handle_other_protocol(scope: Mapping[str, Any], receive: Receive, send: Any) -> None:
    """Completes lifespan events without doing anything, and closes WebSockets."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    await receive()
    await send({"type": "websocket.close", "code": 1003})


_CHECK_INTERVAL_S = 0.25


class ActiveRequest(Struct, eq=False):
    """A request in progress."""

    id: str
    task: asyncio.Task[None]
    headers: Mapping[str, str]
    began: float
    """Loop time at which the request started."""
    until: float
    """Loop time after which the request is aborted."""
    route: Route | None = None
    """The matching route. None until it is found, or if no route matches."""
    caller: Caller = ANONYMOUS
    """The authenticated caller. `ANONYMOUS` before authentication, and on routes that need no key."""
    reading: bool = False
    """True while the body arrives."""
    given_up: bool = False
    """True if the request was aborted because its time was up."""
    held_bytes: int = 0
    """Number of bytes of memory that are reserved for the body."""


class ActiveRequests:
    """All requests in progress.

    One timer checks all deadlines, because a timer per request would cost as much as a simple response.
    """

    def __init__(self, most: int, max_bytes: int) -> None:
        self._most = most
        self._most_bytes = max_bytes
        self._held_bytes = 0
        self._all: set[ActiveRequest] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._all)

    @property
    def held_bytes(self) -> int:
        """Number of bytes of memory that are reserved for the bodies of all requests in progress."""
        return self._held_bytes

    def begin(self, request: ActiveRequest) -> None:
        """Adds a request. Raises `ApiError` if too many requests are in progress."""
        if len(self._all) >= self._most:
            raise ApiError("OVERLOADED", "too many requests are in progress; try again in a second")
        self._all.add(request)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_INTERVAL_S, self._check_deadlines)

    def end(self, request: ActiveRequest) -> None:
        """Removes a request and releases its memory."""
        self._all.discard(request)
        self._held_bytes -= request.held_bytes
        request.held_bytes = 0

    def hold(self, request: ActiveRequest, more_bytes: int) -> None:
        """Reserves memory for a request's body. Raises `ApiError` if all bodies together exceed the limit."""
        if self._held_bytes + more_bytes > self._most_bytes:
            raise ApiError(
                "OVERLOADED", "too many large request bodies are in progress; try again in a second"
            )
        request.held_bytes += more_bytes
        self._held_bytes += more_bytes

    def _check_deadlines(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for request in self._all:
            if request.until < now and not request.given_up:
                request.given_up = True
                request.task.cancel()
        self._timer = loop.call_later(_CHECK_INTERVAL_S, self._check_deadlines) if self._all else None
