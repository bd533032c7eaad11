"""Base classes of the generated calls: they send a request, and iterate over the pages of a list."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

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
    """Base of the synchronous calls. `Client` implements `_request`."""

    def _request(
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
        """Sends one request, with retries, and decodes the response body as `kind`."""
        raise NotImplementedError

    def _iterate(self, kind: type[ItemPage[_I]], path: str, query: Struct) -> Iterator[_I]:
        """Yields every item of a list and fetches each page when it is needed."""
        while True:
            page = self._request(kind, "GET", path, query=query)
            yield from page.items
            if page.cursor is None:
                return
            query = replace(query, cursor=page.cursor)


class AsyncBase:
    """Base of the asyncio calls. `AsyncClient` implements `_request`."""

    async def _request(
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
        """Sends one request, with retries, and decodes the response body as `kind`."""
        raise NotImplementedError

    async def _iterate(self, kind: type[ItemPage[_I]], path: str, query: Struct) -> AsyncIterator[_I]:
        """Yields every item of a list and fetches each page when it is needed."""
        while True:
            page = await self._request(kind, "GET", path, query=query)
            for item in page.items:
                yield item
            if page.cursor is None:
                return
            query = replace(query, cursor=page.cursor)
