"""Records the effects of changes to rows: counts, hourly sums, attempts, causes and events.

The records of one call are collected and written together, in the transaction that changes the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pymongo import UpdateOne

from homing.core.lifecycle.events import NOTIFICATION_FAILED, Event
from homing.core.lifecycle.outcomes import AttemptRecord, RegistryPut
from homing.core.lifecycle.row_events import events_of, has_events
from homing.core.lifecycle.rows import Change
from homing.core.notifications import Message, Status
from homing.stores.common.change_effects import (
    EMPTY_MESSAGE,
    HOUR_MS,
    LATENESS_SUMS,
    MINUTE_MS,
    SUMS,
    ChangeCounts,
    registry_rows,
)
from homing.stores.common.codec import decode_message, decode_value, encode
from homing.stores.common.sinks import SINK_EVENT_FIELDS, sink_event_rows
from homing.stores.mongo.documents import (
    COUNTED_AS,
    Document,
    attempt_document,
    cause_document,
    read_attempt,
)
from homing.stores.mongo.schema import (
    ATTEMPTS,
    CAUSES,
    COUNTERS,
    MESSAGES,
    NOTIFICATIONS,
    REGISTRY,
    SINK_EVENTS,
)
from homing.stores.mongo.transaction import MongoTransaction, SessionDatabase

TALLY, ROLL_UP, MINUTE, GOAL = "tally", "roll-up", "minute", "goal"
"""Kinds of counters."""

_HOURLY = frozenset(SUMS)

TallyCell = tuple[str, str, int]
"""Tenant, status and number of attempts of a tally."""

_ORDER_PER_MS = 1 << 20
"""Number of places in the outbox per millisecond."""


class MongoChangeRecorder:
    """Collects the changes of one call. Call `write` last, after the rows themselves are written."""

    def __init__(self, tx: MongoTransaction) -> None:
        self._tx = tx
        self._counts = ChangeCounts()
        self._uncounted: Counter[TallyCell] = Counter()
        self._attempts: list[Document] = []
        self._causes: list[Document] = []
        self._details: dict[str, tuple[Message, list[AttemptRecord]]] = {}
        """Messages and attempts of failed notifications by id, for the event `NotificationFailed`."""
        self._made: list[Event] = []

    async def record(self, change: Change) -> None:
        """Records one change. Must be called before the same row is changed again."""
        await self.record_all((change,))

    async def record_all(self, changes: Iterable[Change], number: int = 1) -> None:
        """Records changes of different rows.

        Each change stands for `number` changes with the same effect on counts. If `number` is not 1, the
        changes must have no attempt, cause or event.
        """
        subscribed = self._tx.subscribed
        for change in changes:
            self._counts.add(change, number)
            row = change.row
            if change.attempt is not None:
                self._attempts.append(attempt_document(row.id, row.changes, change.attempt))
            if change.cause is not None:
                self._causes.append(cause_document(row.id, row.changes, change.cause))
            if subscribed and has_events(change, subscribed):
                self._made += await self._events_of(change)

    def count_leases(self, documents: Iterable[Document]) -> None:
        """Counts the leases of rows that change now, if it has not been done since their claim.

        `documents` are those before the change. The field `COUNTED_AS` must be removed with it.
        """
        for one in documents:
            if (counted := one.get(COUNTED_AS)) is not None:
                _move_lease(self._uncounted, one["tenant"], counted, one["attempts"], 1)

    async def read_and_count_leases(self, ids: Collection[str]) -> None:
        """Reads these rows, which change now, and counts their leases."""
        if ids:
            self.count_leases(
                await self._tx.db.find(
                    NOTIFICATIONS, {"_id": {"$in": list(ids)}}, fields=("tenant", "attempts", COUNTED_AS)
                )
            )

    async def prefetch_failure_details(self, ids: Collection[str]) -> None:
        """Reads the event details of rows that are about to fail, with one query for all of them."""
        if ids and NOTIFICATION_FAILED in self._tx.subscribed:
            self._details.update(await _read_details(self._tx, ids))

    def add_failure_details(self, id: str, message: Message) -> None:
        """Passes the event details of a new row that is a dead letter from the start and not yet written."""
        self._details[id] = (message, [])

    async def write(self) -> None:
        """Writes everything that was recorded."""
        db = self._tx.db
        await db.insert(ATTEMPTS, self._attempts)
        await db.insert(CAUSES, self._causes)
        await db.bulk_write(COUNTERS, [*self._tally_updates(), *self._sum_updates()])
        await write_events(self._tx, self._made)

    def _tally_updates(self) -> list[UpdateOne]:
        """Moves the counts from the tallies of the old status and attempts to those of the new ones."""
        cells: dict[TallyCell, int] = dict(self._uncounted)
        for (tenant, _, _, before, attempts_before, after, attempts, *_), kind in self._counts.kinds.items():
            if before is not None:
                left = (tenant, before.value, attempts_before)
                cells[left] = cells.get(left, 0) - kind.number
            entered = (tenant, after.value, attempts)
            cells[entered] = cells.get(entered, 0) + kind.number
        return [
            add_to_tally(self._tx.shard, *cell, {"count": number}) for cell, number in cells.items() if number
        ]

    def _sum_updates(self) -> list[UpdateOne]:
        shard, now = self._tx.shard, self._tx.now
        hour_at, minute_at = now - now % HOUR_MS, now - now % MINUTE_MS
        totals: dict[tuple[str, str, str], dict[str, int]] = {}
        goals: dict[tuple[str, str], dict[str, int]] = {}
        for (tenant, channel, provider, *_), kind in self._counts.kinds.items():
            if not kind.sums:
                continue
            total = totals.setdefault((tenant, channel.value, provider), {})
            for name, number in kind.sums.items():
                _increase(total, name, number * kind.number)
            if kind.attempt_ms:
                _increase(total, "attempt_ms", kind.attempt_ms)
            if kind.goal is not None:
                mode, met, bucket = kind.goal
                _increase(total, LATENESS_SUMS[bucket], kind.number)
                _increase(goals.setdefault((tenant, mode), {}), "met" if met else "missed", kind.number)
        updates = []
        for (tenant, channel_name, provider), total in totals.items():
            whose = {"tenant": tenant, "channel": channel_name, "provider": provider}
            hourly = {name: number for name, number in total.items() if name in _HOURLY}
            updates.append(_add(shard, ROLL_UP, {"hour_at": hour_at, **whose}, hourly))
            updates.append(_add(shard, MINUTE, {"minute_at": minute_at, **whose}, total))
        for (tenant, mode), goal in goals.items():
            place = {"tenant": tenant, "hour_at": hour_at, "mode": mode}
            updates.append(_add(shard, GOAL, place, goal))
        return updates

    async def _events_of(self, change: Change) -> list[Event]:
        if change.row.status is not Status.FAILED or NOTIFICATION_FAILED not in self._tx.subscribed:
            return events_of(change, self._tx.subscribed, EMPTY_MESSAGE, ())
        id = change.row.id
        if id not in self._details:
            self._details.update(await _read_details(self._tx, (id,)))
        message, attempts = self._details[id]
        if change.attempt is not None:
            attempts.append(change.attempt)
        return events_of(change, self._tx.subscribed, message, attempts)


def add_to_tally(
    shard: int, tenant: str, status: str, attempts: int, numbers: Mapping[str, int]
) -> UpdateOne:
    """Returns the update that adds numbers to the tally of a tenant, a status and a number of attempts."""
    return _add(shard, TALLY, {"tenant": tenant, "status": status, "attempts": attempts}, numbers)


async def uncounted_leases(db: SessionDatabase, condition: Mapping[str, Any]) -> dict[TallyCell, int]:
    """Returns what to add to tallies, because rows were leased since their last change in a transaction.

    `condition` chooses the rows, for example those of a tenant.
    """
    place = {"tenant": "$tenant", "attempts": "$attempts", "counted": f"${COUNTED_AS}"}
    found = await db.aggregate(
        NOTIFICATIONS,
        (
            {"$match": {"lease_until": {"$exists": True}, COUNTED_AS: {"$exists": True}, **condition}},
            {
                "$project": {
                    "tenant": 1,
                    "attempts": 1,
                    f"{COUNTED_AS}.status": 1,
                    f"{COUNTED_AS}.attempts": 1,
                }
            },
            {"$group": {"_id": place, "number": {"$sum": 1}}},
        ),
    )
    cells: Counter[TallyCell] = Counter()
    for one in found:
        key = one["_id"]
        _move_lease(cells, key["tenant"], key["counted"], key["attempts"], one["number"])
    return cells


def _move_lease(
    cells: Counter[TallyCell], tenant: str, counted: Mapping[str, Any], attempts: int, number: int
) -> None:
    cells[tenant, counted["status"], counted["attempts"]] -= number
    cells[tenant, Status.SENDING.value, attempts] += number


def _increase(numbers: dict[str, int], name: str, by: int) -> None:
    numbers[name] = numbers.get(name, 0) + by


def _add(shard: int, kind: str, place: Mapping[str, Any], numbers: Mapping[str, int]) -> UpdateOne:
    key = encode((shard, kind, *place.values()))
    return UpdateOne(
        {"_id": key}, {"$inc": dict(numbers), "$setOnInsert": {"kind": kind, **place}}, upsert=True
    )


async def write_events(tx: MongoTransaction, events: Collection[Event]) -> None:
    """Writes events to the outbox of each sink that gets them.

    An event whose id is already there is a repetition and is skipped. The events of a notification come after
    those that still wait, even if the clock of another server is behind.
    """
    rows = list(sink_event_rows(tx.sinks, events)) if events else []
    if not rows:
        return
    documents: list[Document] = []
    for values in rows:
        found = dict(zip(SINK_EVENT_FIELDS, values, strict=True))
        documents.append({"_id": encode((found["sink"], found["id"])), **found})
    keys = [one["_id"] for one in documents]
    known = {one["_id"] for one in await tx.db.find(SINK_EVENTS, {"_id": {"$in": keys}}, fields=("_id",))}
    last = await _last_places(tx, documents)
    place, new = tx.now * _ORDER_PER_MS, []
    for one in documents:
        if one["_id"] in known:
            continue
        known.add(one["_id"])
        about = one["notification_id"]
        one["order"] = place = max(place, last.get(about, 0)) + 1
        if about is not None:
            last[about] = place
        new.append(one)
    await tx.db.insert(SINK_EVENTS, new)


async def _last_places(tx: MongoTransaction, documents: Iterable[Document]) -> dict[str | None, int]:
    """Returns the last place in the outbox of each notification that has events there."""
    about = sorted({one["notification_id"] for one in documents if one["notification_id"] is not None})
    if not about:
        return {}
    found = await tx.db.aggregate(
        SINK_EVENTS,
        (
            {"$match": {"notification_id": {"$in": about}}},
            {"$group": {"_id": "$notification_id", "order": {"$max": "$order"}}},
        ),
    )
    return {one["_id"]: one["order"] for one in found}


async def write_registry_puts(tx: MongoTransaction, puts: Iterable[RegistryPut], who: str = "homing") -> None:
    """Merges the registry entries of settlements or receipts into the stored ones. New fields win."""
    rows = registry_rows(puts, tx.now, who)
    if not rows:
        return
    keys = {(tenant, kind, key): encode((tenant, kind, key)) for tenant, kind, key, *_ in rows}
    found = {one["_id"]: one for one in await tx.db.find(REGISTRY, {"_id": {"$in": list(keys.values())}})}
    updates = []
    for tenant, kind, key, value, writes, now, author in rows:
        id = encode((tenant, kind, key))
        before = decode_value(found[id]["value"]) if id in found else {}
        merged = _merge_patch(before, decode_value(str(value)))
        changed = {"value": encode(merged), "updated_at": now, "updated_by": author}
        place = {"tenant": tenant, "kind": kind, "key": key}
        updates.append(
            UpdateOne(
                {"_id": id},
                {"$set": changed, "$inc": {"version": writes}, "$setOnInsert": place},
                upsert=True,
            )
        )
    await tx.db.bulk_write(REGISTRY, updates)


def _merge_patch(before: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Merges JSON objects by RFC 7396, as SQLite's json_patch does: null removes a field."""
    merged = dict(before)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            inner = merged.get(name)
            merged[name] = _merge_patch(inner if isinstance(inner, dict) else {}, value)
        else:
            merged[name] = value
    return merged


async def attempts_of(tx: MongoTransaction, ids: Collection[str]) -> dict[str, list[AttemptRecord]]:
    """Returns the attempts of each notification, the oldest first, by id."""
    found: dict[str, list[AttemptRecord]] = {id: [] for id in ids}
    for one in await tx.db.find(ATTEMPTS, {"of": {"$in": list(ids)}}, sort=(("of", 1), ("change", 1))):
        found[one["of"]].append(read_attempt(one))
    return found


async def messages_of(tx: MongoTransaction, ids: Collection[str]) -> dict[str, Message]:
    """Returns the messages of these notifications, by id."""
    found = await tx.db.find(MESSAGES, {"_id": {"$in": list(ids)}})
    return {one["_id"]: decode_message(one["message"]) for one in found}


async def _read_details(
    tx: MongoTransaction, ids: Collection[str]
) -> dict[str, tuple[Message, list[AttemptRecord]]]:
    attempts, messages = await attempts_of(tx, ids), await messages_of(tx, ids)
    return {id: (messages[id], attempts[id]) for id in ids}
