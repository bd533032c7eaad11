"""Lists dead letters in the order in which operators should handle them."""

from __future__ import annotations

from msgspec.structs import replace

from homing.core.errors import InvalidRequest
from homing.core.notifications import Filter, Notification, Page, Status
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
) -> Page:
    """Returns a page of dead letters: first unacknowledged, then acknowledged ones, each newest first.

    If `acknowledged` is not None, only acknowledged or only unacknowledged dead letters are listed.
    """
    parts = {_UNSEEN: False, _SEEN: True}
    if acknowledged is not None:
        parts = {mark: seen for mark, seen in parts.items() if seen is acknowledged}
    marks = list(parts)
    mark, after = (cursor[:2], cursor[2:] or None) if cursor else (marks[0], None)
    if mark not in parts:
        raise InvalidRequest("cursor", "is not a cursor of this list; use one that the list returned")
    items: list[Notification] = []
    for at, part in enumerate(marks):
        if at < marks.index(mark):
            continue
        chosen = replace(filter, statuses=(Status.FAILED,), acknowledged=parts[part])
        page = await queue.list(chosen, limit=limit - len(items), cursor=after)
        items.extend(page.items)
        after = None
        if page.cursor is not None:
            return Page(items=tuple(items), cursor=part + page.cursor)
        if len(items) >= limit:
            return Page(items=tuple(items), cursor=marks[at + 1] if at + 1 < len(marks) else None)
    return Page(items=tuple(items))
