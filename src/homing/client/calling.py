"""What the calls of every subject are made with, in both kinds of client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

_T = TypeVar("_T")
_I = TypeVar("_I", covariant=True)


class Paged(Protocol[_I]):
    """A page of a list; `cursor` asks for what follows, None is the end."""

    @property
    def items(self) -> tuple[_I, ...]: ...
    @property
    def cursor(self) -> str | int | None: ...


class Calling:
    """Calls that wait for their answer."""

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
        raise NotImplementedError

    def _pages(self, kind: type[Paged[_I]], path: str, query: Struct) -> Iterator[_I]:
        """All of a list, page by page."""
        while True:
            page = self._ask(kind, "GET", path, query=query)
            yield from page.items
            if page.cursor is None:
                return
            query = replace(query, cursor=page.cursor)


class AsyncCalling:
    """The same for asyncio."""

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
        raise NotImplementedError

    async def _pages(self, kind: type[Paged[_I]], path: str, query: Struct) -> AsyncIterator[_I]:
        while True:
            page = await self._ask(kind, "GET", path, query=query)
            for item in page.items:
                yield item
            if page.cursor is None:
                return
            query = replace(query, cursor=page.cursor)
