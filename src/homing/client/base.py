"""Base classes of the generated calls: they send a request, and iterate over the pages of a list."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Protocol, TypeVar, Unpack

from msgspec import Struct
from msgspec.structs import replace

from homing.client.requests import PreparedRequest, RequestOptions, prepare_request

_T = TypeVar("_T")
_I = TypeVar("_I", covariant=True)


class ItemPage(Protocol[_I]):
    """One page of a list."""

    @property
    def items(self) -> tuple[_I, ...]: ...
    @property
    def cursor(self) -> str | int | None:
        """Cursor of the next page. None on the last page."""


class SyncBase:
    """Base of the synchronous calls. `Client` implements `_exchange`."""

    def _exchange(self, kind: type[_T], request: PreparedRequest) -> _T:
        """Sends a request, with retries, and decodes the response body as `kind`."""
        raise NotImplementedError

    def _request(self, kind: type[_T], method: str, path: str, **options: Unpack[RequestOptions]) -> _T:
        """Encodes and sends a request. The options are those of `prepare_request`."""
        return self._exchange(kind, prepare_request(method, path, **options))

    def _iterate(self, kind: type[ItemPage[_I]], path: str, query: Struct) -> Iterator[_I]:
        """Yields every item of a list and fetches each page when it is needed."""
        while True:
            page = self._request(kind, "GET", path, query=query)
            yield from page.items
            if page.cursor is None:
                return
            query = replace(query, cursor=page.cursor)


class AsyncBase:
    """Base of the asyncio calls. `AsyncClient` implements `_exchange`."""

    async def _exchange(self, kind: type[_T], request: PreparedRequest) -> _T:
        """Sends a request, with retries, and decodes the response body as `kind`."""
        raise NotImplementedError

    async def _request(self, kind: type[_T], method: str, path: str, **options: Unpack[RequestOptions]) -> _T:
        """Encodes and sends a request. The options are those of `prepare_request`."""
        return await self._exchange(kind, prepare_request(method, path, **options))

    async def _iterate(self, kind: type[ItemPage[_I]], path: str, query: Struct) -> AsyncIterator[_I]:
        """Yields every item of a list and fetches each page when it is needed."""
        while True:
            page = await self._request(kind, "GET", path, query=query)
            for item in page.items:
                yield item
            if page.cursor is None:
                return
            query = replace(query, cursor=page.cursor)
