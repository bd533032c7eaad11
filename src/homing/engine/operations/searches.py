"""Searches for notifications by any text that an operator has: an id, an address, a batch and so on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from homing.core.errors import InvalidRequest, NotFound, StoreBusy
from homing.core.notifications import Filter, Notification, Page
from homing.core.plain_values import plain_text
from homing.core.ports.stores import Backend
from homing.core.request_decoding import read_filter
from homing.core.search import (
    BatchView,
    SearchKind,
    SearchResult,
    count_batch,
    needs_scan,
    plan_search,
)
from homing.engine.operations.cursors import check_cursor

_MAX_LIMIT = 1_000

_SCANNED = 5_000
"""Maximum number of notifications that one page of a search compares if it has no index."""

_COUNTED = 5_000
"""Maximum number of notifications of a batch that are counted."""

_WITHIN_S = 5.0
"""Maximum time of one page of a search."""

MOST_EXPORTED = 100_000


class SearchOperations:
    """Searches among the notifications of one tenant."""

    def __init__(self, tenant: str, *, backend: Backend) -> None:
        self._tenant = tenant
        self._backend = backend

    async def find(
        self,
        text: str = "",
        filter: Filter | Mapping[str, Any] | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> SearchResult:
        """Returns a page of the notifications that the text may mean, newest first.

        The text is an id or its beginning, an address, the id of a recipient, a batch or a provider's
        message, or `key=value` in the metadata. Without a text, the filter alone selects. A page compares a
        bounded number of notifications in a bounded time. If that was not enough, its `complete` is False.
        """
        chosen = Filter() if filter is None else read_filter(filter)
        if not 1 <= limit <= _MAX_LIMIT:
            raise InvalidRequest("limit", f"is {limit}; it must be between 1 and {_MAX_LIMIT}")
        check_cursor(cursor)
        searches = plan_search(text, chosen) if text.strip() else {None: chosen}
        kinds = tuple(kind for kind in searches if kind is not None)
        pages: list[Page] = []
        for one in searches.values():
            try:
                async with asyncio.timeout(_WITHIN_S):
                    pages.append(await self._page(one, limit, cursor))
            except (TimeoutError, StoreBusy):
                pages.append(Page(items=(), complete=False))
        return _merge(pages, limit, kinds)

    async def find_all(
        self,
        text: str = "",
        filter: Filter | Mapping[str, Any] | None = None,
        *,
        most: int = MOST_EXPORTED,
    ) -> AsyncIterator[Notification]:
        """Yields everything that a search finds, newest first, at most `most` notifications.

        Goes on where a page is not complete, so it may take long.
        """
        cursor: str | None = None
        while most > 0:
            page = await self.find(text, filter, limit=min(most, 500), cursor=cursor)
            for one in page.items:
                yield one
            most -= len(page.items)
            if page.cursor is None or (page.cursor == cursor and not page.items):
                return
            cursor = page.cursor

    async def batch(self, id: str) -> BatchView:
        """Returns the notifications of a batch, counted by status and channel. Counts at most 5,000.

        Raises `NotFound` if the tenant has no notification of this batch.
        """
        found: list[Notification] = []
        cursor: str | None = None
        while len(found) < _COUNTED:
            page = await self._backend.list(
                self._tenant, Filter(batch_id=plain_text(id, "id")), limit=_MAX_LIMIT, cursor=cursor
            )
            found += page.items
            cursor = page.cursor
            if cursor is None:
                break
        if not found:
            raise NotFound(f"there is no batch {id} for tenant {self._tenant!r}")
        return count_batch(id, found, complete=cursor is None)

    async def batches(self) -> tuple[BatchView, ...]:
        """Returns the batches of the newest 1,000 notifications, the newest first.

        The numbers are of these notifications: the oldest batch may have more.
        """
        page = await self._backend.list(self._tenant, Filter(), limit=_MAX_LIMIT)
        found: dict[str, list[Notification]] = {}
        for one in page.items:
            found.setdefault(one.batch_id, []).append(one)
        oldest = page.items[-1].batch_id if page.cursor is not None else None
        return tuple(count_batch(id, those, complete=id != oldest) for id, those in found.items())

    async def _page(self, filter: Filter, limit: int, cursor: str | None) -> Page:
        scan = _SCANNED if needs_scan(filter) else None
        return await self._backend.list(self._tenant, filter, limit=limit, cursor=cursor, scan=scan)


def _merge(pages: list[Page], limit: int, kinds: tuple[SearchKind, ...]) -> SearchResult:
    """Merges the pages of several filters that begin at the same cursor."""
    found = {one.id: one for page in pages for one in page.items}
    newest = sorted(found.values(), key=lambda one: one.id, reverse=True)
    # What is older than the last item of a page with a cursor may be on the next page of that filter.
    ends = [page.cursor for page in pages if page.cursor is not None]
    from_id = max(ends, default=None)
    items = [one for one in newest if from_id is None or one.id >= from_id][:limit]
    more = len(items) < len(newest) or bool(ends)
    last = items[-1].id if len(items) == limit and more else from_id
    return SearchResult(
        items=tuple(items),
        cursor=last if more else None,
        complete=all(page.complete for page in pages),
        compared_with=kinds,
    )
