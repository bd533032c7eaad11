"""The ASGI application: finds the route, checks the caller, reads the body and calls the handler."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import msgspec

from homing.api.answers import Answer, ApiError
from homing.api.bodies import Receive, read_body
from homing.api.errors import answer_to
from homing.api.reading import arguments
from homing.api.routing import Route, Table
from homing.api.service import Call, Service, Watcher, sent_path
from homing.api.under_way import Request, UnderWay
from homing.core.access import Caller
from homing.core.ports import Chance

log = logging.getLogger("homing.requests")

_ENCODER = msgspec.json.Encoder()
_JSON = ("application/json", "")
_COMMON = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
_NOT_PRINTABLE = re.compile(r"[^ -~]")
_CLOSE = {"Connection": "close"}


class App:
    """Serves the given routes for one `Service`."""

    def __init__(
        self, service: Service, routes: Iterable[Route], *, chance: Chance, watchers: Sequence[Watcher] = ()
    ) -> None:
        self.service = service
        self.under_way = UnderWay(service.settings.max_requests, service.settings.buffer_bytes)
        self._read_s = service.settings.read_ms / 1000
        self._answer_s = service.settings.answer_ms / 1000
        self._table = Table(routes)
        self._watchers = tuple(watchers)
        self._series = f"r{chance.getrandbits(48):012x}"
        self._numbers = count(1)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Any) -> None:
        if scope["type"] != "http":
            await _handle_other_protocol(scope, receive, send)
            return
        request = self._request(scope)
        observed = [(watcher, watcher.began(scope["headers"])) for watcher in self._watchers]
        try:
            answer, body = await self._respond(request, scope, receive)
        finally:
            self.under_way.end(request)
        await send(_start(answer, body, request.id))
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
        if observed or log.isEnabledFor(logging.INFO):
            self._log(request, scope["method"], answer.status, observed)

    def _request(self, scope: Mapping[str, Any]) -> Request:
        task = asyncio.current_task()
        assert task is not None, "the server runs each request in a task"
        now = task.get_loop().time()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        id = headers.get("x-request-id")
        if id is None or not _REQUEST_ID.fullmatch(id):
            id = f"{self._series}-{next(self._numbers):x}"
        return Request(id, task, headers, now, now + self._read_s)

    async def _respond(
        self, request: Request, scope: Mapping[str, Any], receive: Receive
    ) -> tuple[Answer[Any], bytes]:
        """Returns the response and its encoded body. Every exception becomes an error response."""
        try:
            self.under_way.begin(request)
            answer = await self._handle(request, scope, receive)
            return answer, _body(answer)
        except asyncio.CancelledError:
            if not request.given_up:
                raise
            request.task.uncancel()
            return self._error_response(request, self._timeout_error(request))
        except Exception as error:
            return self._error_response(request, error)

    async def _handle(self, request: Request, scope: Mapping[str, Any], receive: Receive) -> Answer[Any]:
        route, params = self._table.find(scope["method"], sent_path(scope))
        request.route = route
        if route.scopes:
            request.caller = await self._caller(route, request.headers)
        raw = await self._read(request, route, receive) if route.reads else b""
        request.reading = False
        request.until += self._answer_s
        call = Call(
            service=self.service,
            caller=request.caller,
            method=scope["method"],
            scope=scope,
            headers=request.headers,
            raw=raw,
        )
        result = await route.handler(call, **arguments(route, call, params))
        return result if isinstance(result, Answer) else Answer(result, route.status)

    def _error_response(self, request: Request, error: Exception) -> tuple[Answer[Any], bytes]:
        answer = answer_to(error, request.id)
        return answer, _body(answer)

    def _timeout_error(self, request: Request) -> ApiError:
        settings = self.service.settings
        if request.reading:
            message = f"the body did not arrive within {settings.read_ms} ms"
            return ApiError("REQUEST_TIMEOUT", message, headers=_CLOSE)
        return ApiError("TIMEOUT", f"the request took longer than {settings.answer_ms} ms; try again")

    def _log(
        self, request: Request, method: str, status: int, observed: Sequence[tuple[Watcher, Any]]
    ) -> None:
        """Reports a request to the watchers and logs one line.

        The line has no path parameters, query or body, because these may contain personal data.
        """
        took_s = request.task.get_loop().time() - request.began
        route = request.route
        for watcher, began in observed:
            watcher.ended(began, route.handler.__name__ if route else "", method, status, took_s)
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

    async def _read(self, request: Request, route: Route, receive: Receive) -> bytes:
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
        limit = route.most_bytes or (settings.batch_bytes if route.large else settings.body_bytes)
        return await read_body(receive, headers, limit=limit, hold=partial(self.under_way.hold, request))


def _body(answer: Answer[Any]) -> bytes:
    value = answer.value
    if value is None:
        return b""
    return value if isinstance(value, bytes) else _ENCODER.encode(value)


def _start(answer: Answer[Any], body: bytes, id: str) -> dict[str, Any]:
    headers = [*_COMMON, (b"x-request-id", id.encode("ascii"))]
    if answer.status != 204:  # a 204 response must not have a Content-Length
        headers.append((b"content-length", b"%d" % len(body)))
    if answer.value is not None:
        headers.append((b"content-type", answer.content_type.encode("latin-1")))
    if answer.headers:
        headers += [(name.lower().encode("ascii"), _safe(value)) for name, value in answer.headers.items()]
    return {"type": "http.response.start", "status": answer.status, "headers": headers}


def _safe(value: str) -> bytes:
    """Returns a header value without line breaks and control characters, so that it cannot inject headers."""
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
