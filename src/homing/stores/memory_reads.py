"""The read methods of the memory store, and the rows that they read."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from heapq import nsmallest
from itertools import islice

from msgspec import msgpack

from homing.core.lifecycle import views
from homing.core.lifecycle.rows import Row
from homing.core.notifications import Filter, History, Message, Notification, Page, Status
from homing.core.ports.runtime import Clock
from homing.core.statistics import ErrorGroup, RollUp, Tally
from homing.stores.common.codec import count_fitting
from homing.stores.memory_keys import MemoryKeys
from homing.stores.memory_ledger import Ledger, Outbox
from homing.stores.memory_receipts import Receipts
from homing.stores.memory_schedule import Kept, Schedule

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MemoryReads:
    """The stored notifications, by id and by tenant, and the read methods of the store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, Kept] = {}
        self._ids: dict[str, list[str]] = {}
        """Sorted ids of each tenant. Purged ids are removed once they outnumber the others."""
        self._purged_ids: dict[str, int] = {}
        self._keys = MemoryKeys()
        self._schedule = Schedule(self._kept)
        self._ledger = Ledger()
        self._outbox = Outbox()
        self._receipts = Receipts()

    async def get(self, tenant: str, id: str) -> History | None:
        kept = self._find(tenant, id)
        if kept is None:
            return None
        history = views.history(kept.row, decode_message(kept.message), kept.attempts, kept.causes)
        _part_with(kept.row)
        return history

    async def list(self, tenant: str, filter: Filter, *, limit: int = 50, cursor: str | None = None) -> Page:
        matches = matcher(filter)
        ids = self._ids.get(tenant, [])
        end = len(ids) if cursor is None else bisect_left(ids, cursor)
        found: list[Kept] = []
        for position in range(end - 1, -1, -1):
            kept = self._kept.get(ids[position])
            if kept is not None and matches(kept.row):
                found.append(kept)
                if len(found) > limit:
                    break
        return _page(found, limit)

    async def waiting(self, tenant: str, *, limit: int = 50, ready: bool | None = None) -> Page:
        now = self._clock.now_ms()
        due = (
            (kept.row.due_at, kept.row.id)
            for kept in self._of(tenant)
            if kept.row.due_at is not None and (ready is None or ready is (kept.row.due_at <= now))
        )
        soonest = [self._kept[id] for _, id in nsmallest(limit, due)]
        return Page(items=_page(soonest, limit).items)

    async def tallies(self, tenant: str | None) -> tuple[Tally, ...]:
        return self._ledger.tallies(tenant)

    async def error_groups(self, tenant: str, *, limit: int = 50) -> tuple[ErrorGroup, ...]:
        groups: dict[tuple[str, str, str], list[Row]] = {}
        for kept in self._of(tenant):
            row = kept.row
            if row.status is Status.FAILED:
                # An error text may contain the recipient, so errors with a code are grouped by the code.
                key = (row.reason or "", row.error_code or "", "" if row.error_code else row.last_error or "")
                groups.setdefault(key, []).append(row)
        most_first = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
        return tuple(_group(members) for _, members in most_first[:limit])

    async def roll_ups(self, tenant: str | None, *, since_ms: int) -> tuple[RollUp, ...]:
        return self._ledger.roll_ups(tenant, self._clock.now_ms() - since_ms)

    async def oldest_retry_at(self, tenant: str | None) -> datetime | None:
        return views.optional_moment(self._schedule.oldest_retry_at(tenant))

    async def silent(
        self, status: Status, providers: Collection[str], *, after: int, until: int, limit: int
    ) -> tuple[tuple[str, str], ...]:
        rows = (self._kept[id].row for id in self._schedule.silent(status, after, until))
        found = ((row.tenant, row.id) for row in rows if row.provider in providers)
        return tuple(islice(found, max(0, limit)))

    async def tenants(self) -> tuple[str, ...]:
        return self._ledger.tenants()

    async def size(self) -> Mapping[str, int]:
        return {
            "notifications": len(self._kept),
            "keys": len(self._keys),
            "receipts": len(self._receipts),
            "outbox": len(self._outbox),
            "bytes": sum(len(kept.message) for kept in self._kept.values()),
            "schema_version": 0,
        }

    def _find(self, tenant: str, id: str) -> Kept | None:
        """Returns the notification, or None if it does not exist or belongs to another tenant."""
        kept = self._kept.get(id)
        return kept if kept is not None and kept.row.tenant == tenant else None

    def _of(self, tenant: str) -> Iterator[Kept]:
        """Returns a tenant's notifications, the oldest first."""
        for id in self._ids.get(tenant, ()):
            kept = self._kept.get(id)
            if kept is not None:
                yield kept

    def _enroll(self, kept: Kept) -> None:
        id, tenant = kept.row.id, kept.row.tenant
        self._kept[id] = kept
        ids = self._ids.setdefault(tenant, [])
        if not ids or id > ids[-1]:  # the usual case, as ids increase with time
            ids.append(id)
        else:
            insort(ids, id)

    def _strike(self, kept: Kept) -> None:
        id, tenant = kept.row.id, kept.row.tenant
        del self._kept[id]
        self._purged_ids[tenant] = self._purged_ids.get(tenant, 0) + 1
        if 2 * self._purged_ids[tenant] > len(self._ids[tenant]):
            self._ids[tenant] = [id for id in self._ids[tenant] if id in self._kept]
            self._purged_ids[tenant] = 0


encode_message = msgpack.Encoder().encode
decode_message = msgpack.Decoder(Message).decode


def matcher(filter: Filter) -> Callable[[Row], bool]:
    """Returns a function that tests whether a row matches the filter. `created_until` is exclusive."""
    wanted = {
        name: value
        for name in ("channel", "type", "provider", "batch_id", "address", "reason", "error_code")
        if (value := getattr(filter, name)) is not None
    }
    created_from = _microseconds(filter.created_from)
    created_until = _microseconds(filter.created_until)

    def matches(row: Row) -> bool:
        return (
            (not filter.statuses or row.status in filter.statuses)
            and all(getattr(row, name) == value for name, value in wanted.items())
            and (filter.acknowledged is None or filter.acknowledged is (row.acknowledged_at is not None))
            and (created_from is None or row.created_at * 1000 >= created_from)
            and (created_until is None or row.created_at * 1000 < created_until)
        )

    return matches


def _microseconds(at: datetime | None) -> int | None:
    return None if at is None else (at - _EPOCH) // timedelta(microseconds=1)


def _page(found: Sequence[Kept], limit: int) -> Page:
    """Returns the notifications, as many as the limit and the maximum size of a page allow."""
    items = tuple(map(_show, found[: min(limit, count_fitting(len(kept.message) for kept in found))]))
    return Page(items=items, cursor=items[-1].id if items and len(items) < len(found) else None)


def _show(kept: Kept) -> Notification:
    shown = views.notification(kept.row, decode_message(kept.message))
    _part_with(kept.row)
    return shown


def _part_with(row: Row) -> None:
    """Replaces `engagement` by a copy, because a reader now holds the original dict."""
    row.engagement = dict(row.engagement)


def _group(members: Sequence[Row]) -> ErrorGroup:
    newest = max(members, key=lambda row: (row.failed_at or 0, row.id))
    return ErrorGroup(
        reason=newest.reason,
        error_code=newest.error_code,
        last_error=newest.last_error,
        count=len(members),
        unacknowledged=sum(row.acknowledged_at is None for row in members),
        newest_at=views.optional_moment(newest.failed_at or newest.updated_at),
        example_id=newest.id,
    )
