"""Lists dead letters in the order in which operators should handle them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from msgspec.structs import replace

from homing.core.notifications import Filter, Notification, Page, Status
from homing.engine.operations.cursors import check_cursor, foreign_cursor
from homing.engine.tenant_api import TenantApi

_UNSEEN, _SEEN = "u:", "a:"
"""Prefixes of a cursor. They show in which part of the list a page ended: unacknowledged or acknowledged."""


async def fetch_dead_letters(
    queue: TenantApi,
    filter: Filter,
    *,
    acknowledged: bool | None = None,
    limit: int = 50,
    cursor: str | None = None,
    within: timedelta | None = None,
) -> Page:
    """Returns a page of dead letters: first unacknowledged, then acknowledged ones, each newest first.

    If `acknowledged` is not None, only acknowledged or only unacknowledged dead letters are listed. If
    `within` is given and a list takes longer, because few of many match the filter, only a bounded number of
    notifications is compared. The page is then marked as not complete, and its cursor continues after them.
    """
    parts = {_UNSEEN: False, _SEEN: True}
    if acknowledged is not None:
        parts = {mark: seen for mark, seen in parts.items() if seen is acknowledged}
    marks = list(parts)
    mark, after = (cursor[:2], cursor[2:] or None) if cursor else (marks[0], None)
    if mark not in parts:
        raise foreign_cursor()
    check_cursor(after)
    items: list[Notification] = []
    for at, part in enumerate(marks):
        if at < marks.index(mark):
            continue
        chosen = replace(filter, statuses=(Status.FAILED,), acknowledged=parts[part])
        page = await _read_part(queue, chosen, limit - len(items), after, within)
        items.extend(page.items)
        after = None
        if page.cursor is not None:
            return Page(items=tuple(items), cursor=part + page.cursor, complete=page.complete)
        if not page.complete:
            return Page(items=tuple(items), complete=False)
        if len(items) >= limit:
            return Page(items=tuple(items), cursor=marks[at + 1] if at + 1 < len(marks) else None)
    return Page(items=tuple(items))


async def _read_part(
    queue: TenantApi, filter: Filter, limit: int, cursor: str | None, within: timedelta | None
) -> Page:
    """Returns a page of the whole list or, if that takes longer than `within`, of a bounded search."""
    try:
        async with asyncio.timeout(None if within is None else within.total_seconds()):
            return await queue.list(filter, limit=limit, cursor=cursor)
    except TimeoutError:
        found = await queue.find("", filter, limit=limit, cursor=cursor)
        return Page(items=found.items, cursor=found.cursor, complete=found.complete)
