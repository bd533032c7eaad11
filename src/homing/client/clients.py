"""The two clients: `Client` for ordinary code, `AsyncClient` for asyncio."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

from homing.client.async_calls import AsyncCalls
from homing.client.batches import AsyncBatches, SyncBatches
from homing.client.errors import ServiceUnreachable
from homing.client.requests import PreparedRequest, Retries, decode_response
from homing.client.sync_calls import SyncCalls
from homing.client.transport import Response, ServiceConnections

_T = TypeVar("_T")
_CONNECTIONS = 10
_TIMEOUT_S = 30.0


class Client(SyncCalls, SyncBatches):
    """A client for one service and one API key. Threads may share it, and connections are reused.

    If the service responds with an error, a call raises a `ServiceRefused`. If the code of the error is one
    of the engine's, the exception is also an instance of the engine's class (`NotFound`, `InvalidRequest`,
    …). If no response arrives, the call raises `ServiceUnreachable`. If the rate limit is exceeded, or
    the service is busy or unreachable, requests that are safe to repeat are retried. Sends are safe to
    repeat, because each has an idempotency key.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout_s: float = _TIMEOUT_S,
        connections: int = _CONNECTIONS,
        retries: Retries | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Creates a client. `timeout_s` limits each socket operation, so a call can take longer."""
        self._transport = ServiceConnections(url, key, timeout_s=timeout_s, connections=connections, tls=tls)
        self._retries = retries or Retries()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections that are not in use."""
        self._transport.close()

    def _exchange(self, kind: type[_T], request: PreparedRequest) -> _T:
        attempt = 0
        while True:
            attempt += 1
            result = _attempt(self._transport, request)
            wait_s = self._retries.wait_s(request, attempt, result, random.random())
            if wait_s is None:
                return _conclude(result, kind)
            time.sleep(wait_s)


class AsyncClient(AsyncCalls, AsyncBatches):
    """The asyncio version of `Client`. Requests run on a pool of threads, one per connection."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        timeout_s: float = _TIMEOUT_S,
        connections: int = _CONNECTIONS,
        retries: Retries | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Creates a client. The parameters are those of `Client`."""
        self._transport = ServiceConnections(url, key, timeout_s=timeout_s, connections=connections, tls=tls)
        self._retries = retries or Retries()
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="homing-client")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for the requests in flight and closes the connections."""
        await asyncio.to_thread(self._threads.shutdown)
        self._transport.close()

    async def _exchange(self, kind: type[_T], request: PreparedRequest) -> _T:
        loop, attempt = asyncio.get_running_loop(), 0
        while True:
            attempt += 1
            result = await loop.run_in_executor(self._threads, _attempt, self._transport, request)
            wait_s = self._retries.wait_s(request, attempt, result, random.random())
            if wait_s is None:
                return _conclude(result, kind)
            await asyncio.sleep(wait_s)


def _attempt(transport: ServiceConnections, request: PreparedRequest) -> Response | ServiceUnreachable:
    """Sends the request once and returns the response, or the error if there was none."""
    try:
        return transport.exchange(request.method, request.target, request.headers, request.body)
    except ServiceUnreachable as error:
        return error


def _conclude(result: Response | ServiceUnreachable, kind: type[_T]) -> _T:
    if isinstance(result, ServiceUnreachable):
        raise result
    return decode_response(result, kind)
