"""The two clients: `Client` for ordinary code, `AsyncClient` for asyncio."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from msgspec import Struct

from homing.client.asking import Ask, Retries, ask, read
from homing.client.async_calls import AsyncCalls
from homing.client.batches import AsyncBatches, Batches
from homing.client.calls import Calls
from homing.client.errors import ServiceUnreachable
from homing.client.wire import Reply, Wire

_T = TypeVar("_T")
_CONNECTIONS = 10
_TIMEOUT_S = 30.0


class Client(Calls, Batches):
    """One service, with one API key. Threads may share it; connections are kept and used again.

    A call that fails raises: the engine's own errors by their code (`NotFound`, `InvalidRequest`, …), each
    also a `ServiceRefused`; `ServiceUnreachable` where no answer came. What may be done twice is tried
    again when the service is busy or out of reach; a send is, by the idempotency key that it always has.
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
        """`timeout_s` is for each step on the wire; a call may wait and be tried again beyond it."""
        self._wire = Wire(url, key, timeout_s=timeout_s, connections=connections, tls=tls)
        self._retries = retries or Retries()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes its connections."""
        self._wire.close()

    def _ask(
        self,
        kind: type[_T],
        method: str,
        path: str,
        *,
        query: Struct | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        keyed: bool = False,
        content_type: str = "application/json",
    ) -> _T:
        asked = ask(
            method,
            path,
            query=query,
            body=body,
            headers=headers,
            keyed=keyed,
            content_type=content_type,
        )
        attempt = 0
        while True:
            attempt += 1
            ended = _tried(self._wire, asked)
            wait_s = self._retries.wait_s(asked, attempt, ended, random.random())
            if wait_s is None:
                return _concluded(ended, kind)
            time.sleep(wait_s)


class AsyncClient(AsyncCalls, AsyncBatches):
    """The same for asyncio. Its requests wait on threads, as many as it has connections."""

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
        """As for `Client`."""
        self._wire = Wire(url, key, timeout_s=timeout_s, connections=connections, tls=tls)
        self._retries = retries or Retries()
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="homing-client")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for what is under way and closes its connections."""
        await asyncio.to_thread(self._threads.shutdown)
        self._wire.close()

    async def _ask(
        self,
        kind: type[_T],
        method: str,
        path: str,
        *,
        query: Struct | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        keyed: bool = False,
        content_type: str = "application/json",
    ) -> _T:
        asked = ask(
            method,
            path,
            query=query,
            body=body,
            headers=headers,
            keyed=keyed,
            content_type=content_type,
        )
        loop, attempt = asyncio.get_running_loop(), 0
        while True:
            attempt += 1
            ended = await loop.run_in_executor(self._threads, _tried, self._wire, asked)
            wait_s = self._retries.wait_s(asked, attempt, ended, random.random())
            if wait_s is None:
                return _concluded(ended, kind)
            await asyncio.sleep(wait_s)


def _tried(wire: Wire, asked: Ask) -> Reply | ServiceUnreachable:
    """One attempt, whatever its end."""
    try:
        return wire.exchange(asked.method, asked.target, asked.headers, asked.body)
    except ServiceUnreachable as error:
        return error


def _concluded(ended: Reply | ServiceUnreachable, kind: type[_T]) -> _T:
    if isinstance(ended, ServiceUnreachable):
        raise ended
    return read(ended, kind)
