"""The ASGI application: find the route, let the caller in, read, do, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from homing.api.answers import Answer, ApiError
from homing.api.bodies import Receive, read_body
from homing.api.errors import answer_to
from homing.api.routing import Route, Table, arguments
from homing.api.service import NOBODY, Call, Service
from homing.core.access import Caller
from homing.core.ids import uuid7
from homing.core.ports import Chance, Clock

_ENCODER = msgspec.json.Encoder()
_JSON = ("application/json", "")
_COMMON = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


class App:
    """Serves one `Service` over the routes it is given."""

    def __init__(self, service: Service, routes: Iterable[Route], *, clock: Clock, chance: Chance) -> None:
        self.service = service
        self._table = Table(routes)
        self._clock = clock
        self._chance = chance
        self._under_way = 0

    @property
    def under_way(self) -> int:
        """Requests that are being answered."""
        return self._under_way

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Any) -> None:
        if scope["type"] != "http":
            await _refuse_protocol(scope, receive, send)
            return
        self._under_way += 1
        try:
            answer = await self._answered(scope, receive)
        finally:
            self._under_way -= 1
        await self._send(answer, scope, send)

    async def _answered(self, scope: Mapping[str, Any], receive: Receive) -> Answer[Any]:
        settings = self.service.settings
        try:
            if self._under_way > settings.max_requests:
                raise ApiError("OVERLOADED", "too many requests are under way; come again in a second")
            async with asyncio.timeout(settings.answer_ms / 1000):
                return await self._done(scope, receive)
        except TimeoutError:
            return answer_to(ApiError("TIMEOUT", f"no answer within {settings.answer_ms} ms; try again"))
        except Exception as error:
            return answer_to(error)

    async def _done(self, scope: Mapping[str, Any], receive: Receive) -> Answer[Any]:
        route, params = self._table.find(scope["method"], scope["path"])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        caller = await self._caller(route, headers) if route.scopes else NOBODY
        call = Call(
            service=self.service,
            caller=caller,
            method=scope["method"],
            url=_url(scope, headers, self.service.settings.public_url),
            headers=headers,
            raw=await self._read(route, headers, receive),
        )
        result = await route.handler(
            call, **arguments(route, call, params, scope["query_string"].decode("latin-1"))
        )
        return result if isinstance(result, Answer) else Answer(result, route.status)

    async def _caller(self, route: Route, headers: Mapping[str, str]) -> Caller:
        gatekeeper = self.service.gatekeeper
        caller = await gatekeeper.caller(headers.get("authorization", ""))
        if caller is None:
            raise ApiError(
                "UNAUTHORIZED",
                "no valid key; send Authorization: Bearer KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if not any(caller.may(scope) for scope in route.scopes):
            needed = " or ".join(scope.value for scope in route.scopes)
            raise ApiError("FORBIDDEN", f"this key may not do that; it needs the scope {needed}")
        if wait_ms := await gatekeeper.admit(caller):
            seconds = str(-(-wait_ms // 1000))
            raise ApiError(
                "RATE_LIMITED",
                f"the rate of this key is used up; come again in {seconds} s",
                headers={"Retry-After": seconds},
            )
        return caller

    async def _read(self, route: Route, headers: Mapping[str, str], receive: Receive) -> bytes:
        if route.body is None and not route.raw:
            return b""
        said = headers.get("content-type", "").partition(";")[0].strip().lower()
        if not route.raw and said not in _JSON:
            raise ApiError(
                "UNSUPPORTED_MEDIA_TYPE",
                f"Content-Type: {said!r} is not understood; send {route.body_type}",
                field="Content-Type",
            )
        settings = self.service.settings
        limit = settings.batch_bytes if route.large else settings.body_bytes
        return await read_body(receive, headers, limit=limit, within_ms=settings.read_ms)

    async def _send(self, answer: Answer[Any], scope: Mapping[str, Any], send: Any) -> None:
        value = answer.value
        body = b"" if value is None else value if isinstance(value, bytes) else _ENCODER.encode(value)
        id = uuid7(self._clock.now_ms(), self._chance.getrandbits(74))
        headers = [*_COMMON, (b"x-request-id", id.encode()), (b"content-length", b"%d" % len(body))]
        if value is not None:
            headers.append((b"content-type", answer.content_type.encode("latin-1")))
        if answer.headers:
            headers += [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in answer.headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _url(scope: Mapping[str, Any], headers: Mapping[str, str], public_url: str) -> str:
    """As the caller knows it: signatures of providers are over the public one."""
    query = scope["query_string"].decode("latin-1")
    path = scope.get("raw_path") or scope["path"].encode()
    base = public_url.rstrip("/") or f"{scope.get('scheme', 'http')}://{headers.get('host', '')}"
    return f"{base}{path.decode('latin-1')}{f'?{query}' if query else ''}"


async def _refuse_protocol(scope: Mapping[str, Any], receive: Receive, send: Any) -> None:
    """Start and stop are the server's own; other protocols than HTTP are not spoken here."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    await receive()
    await send({"type": "websocket.close", "code": 1003})
