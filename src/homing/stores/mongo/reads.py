"""The read queries: single notifications, lists by filter, counts, error groups and roll-ups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from homing.core.lifecycle import views
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.notifications import Channel, Filter, History, Mode, Page, Reason, Status
from homing.core.statistics import (
    ErrorGroup,
    GoalRollUp,
    MinuteRollUp,
    RollUp,
    Tally,
    Unacknowledged,
    WaitingGroups,
)
from homing.stores.common.change_effects import GOAL_SUMS, HOUR_MS, MINUTE_SUMS, SUMS
from homing.stores.common.codec import count_fitting, decode_message
from homing.stores.common.minute_roll_ups import build_minute_roll_up, first_minute
from homing.stores.common.searches import end_scan
from homing.stores.common.waiting_groups import WaitingRow, build_waiting_groups
from homing.stores.mongo.change_recorder import (
    GOAL,
    MINUTE,
    ROLL_UP,
    TALLY,
    attempts_of,
    messages_of,
    uncounted_leases,
)
from homing.stores.mongo.documents import Document, read_cause, read_row, read_rows
from homing.stores.mongo.schema import CAUSES, COUNTERS, MESSAGES, NOTIFICATIONS
from homing.stores.mongo.search import NEWEST_FIRST, search_for
from homing.stores.mongo.transaction import MongoTransaction, Sort

_ORDER = {status: number for number, status in enumerate(Status)}


async def get(tx: MongoTransaction, tenant: str, id: str) -> History | None:
    """Returns one notification with its history, or None if it does not exist or has another tenant."""
    found = await tx.db.find(NOTIFICATIONS, {"_id": id, "tenant": tenant})
    if not found:
        return None
    causes = [
        read_cause(one) for one in await tx.db.find(CAUSES, {"of": id}, sort=(("of", 1), ("change", 1)))
    ]
    message = (await messages_of(tx, (id,)))[id]
    return views.history(read_row(found[0]), message, (await attempts_of(tx, (id,)))[id], causes)


async def find_missing(tx: MongoTransaction, ids: Collection[str]) -> frozenset[str]:
    """Returns those of the ids under which no notification is stored."""
    found = await tx.db.find(NOTIFICATIONS, {"_id": {"$in": list(ids)}}, fields=("_id",))
    return frozenset(ids) - {one["_id"] for one in found}


async def list_page(
    tx: MongoTransaction,
    tenant: str,
    filter: Filter,
    limit: int,
    cursor: str | None,
    oldest_first: bool = False,
    scan: int | None = None,
) -> Page:
    """Returns a page of the notifications that match the filter, the newest first or the oldest first.

    With `scan`, compares at most this many notifications with the filter, unless an index finds them. All
    metadata is indexed.
    """
    search = await search_for(tx, tenant, filter, filter.statuses)
    order: Sort = (("_id", 1),) if oldest_first else NEWEST_FIRST
    last = None
    if scan is not None and not filter.metadata:
        compared: Document = {"tenant": tenant}
        if cursor is not None:
            compared["_id"] = {"$gt" if oldest_first else "$lt": cursor}
        found = await tx.db.aggregate(
            MESSAGES,
            (
                {"$match": compared},
                {"$sort": dict(order)},
                {"$skip": max(0, scan - 1)},
                {"$limit": 1},
                {"$project": {"_id": 1}},
            ),
        )
        last = found[0]["_id"] if found else None
    ids: list[str] = []
    async for page in search.pages(tx, limit + 1, oldest_first=oldest_first, after=cursor, until=last):
        ids += page
        if len(ids) > limit:
            break
    return end_scan(await _page(tx, ids, limit), last)


async def waiting(tx: MongoTransaction, tenant: str | None, limit: int, ready: bool | None) -> Page:
    """Returns waiting notifications of one tenant, or of all if it is None, the earliest due first.

    `ready` selects those due now (True), those due later (False) or both (None).
    """
    condition: Document = {"queue": {"$exists": True}, **_of_tenant(tenant)}
    if ready is not None:
        condition["due_at"] = {"$lte" if ready else "$gt": tx.now}
    return await _sorted_page(tx, condition, (("due_at", 1), ("_id", 1)), limit)


async def count_due(tx: MongoTransaction, tenant: str | None) -> dict[Status, int]:
    """Returns the number of due notifications of one tenant, or of all if it is None, by status."""
    found = await tx.db.aggregate(
        NOTIFICATIONS,
        (
            {
                "$match": {
                    "queue": {"$exists": True},
                    "due_at": {"$lte": tx.now},
                    **_of_tenant(tenant),
                }
            },
            {"$group": {"_id": "$status", "count": {"$sum": 1}}},
        ),
    )
    return {Status(one["_id"]): one["count"] for one in found}


async def retrying(tx: MongoTransaction, tenant: str, limit: int) -> Page:
    """Returns notifications that wait for a retry, that with the oldest last attempt first."""
    condition = {"tenant": tenant, "rare": Status.RETRYING.value}
    return await _sorted_page(tx, condition, (("last_attempt_at", 1), ("_id", 1)), limit)


async def tallies(tx: MongoTransaction, tenant: str | None) -> tuple[Tally, ...]:
    """Returns the number of notifications per status and number of attempts, in life-cycle order."""
    sums = {name: {"$sum": f"${name}"} for name in ("count", "purged")}
    found = await tx.db.aggregate(
        COUNTERS,
        (
            {"$match": {"kind": TALLY, **_of_tenant(tenant)}},
            {"$group": {"_id": {"status": "$status", "attempts": "$attempts"}, **sums}},
        ),
    )
    cells = {(one["_id"]["status"], one["_id"]["attempts"]): [one["count"], one["purged"]] for one in found}
    for (_, status, attempts), number in (await uncounted_leases(tx.db, _of_tenant(tenant))).items():
        cells.setdefault((status, attempts), [0, 0])[0] += number
    counted = [
        Tally(Status(status), attempts, count, purged)
        for (status, attempts), (count, purged) in cells.items()
        if count or purged
    ]
    return tuple(sorted(counted, key=lambda tally: (_ORDER[tally.status], tally.attempts)))


async def error_groups(
    tx: MongoTransaction, tenant: str, limit: int, status: Status, newest: int | None = None
) -> tuple[ErrorGroup, ...]:
    """Returns the dead letters, or what waits for a retry, grouped by error, the largest group first."""
    at = {"$ifNull": ["$failed_at", "$last_attempt_at", 0]}
    code: Document = {"$ifNull": ["$error_code", ""]}
    text = {"$cond": [{"$eq": [code, ""]}, {"$ifNull": ["$last_error", ""]}, ""]}
    open_ones = {
        "$cond": [
            {
                "$and": [
                    {"$eq": ["$status", Status.FAILED.value]},
                    {"$eq": [{"$type": "$acknowledged_at"}, "missing"]},
                ]
            },
            1,
            0,
        ]
    }
    found = await tx.db.aggregate(
        NOTIFICATIONS,
        (
            {"$match": {"tenant": tenant, "rare": status.value}},
            *(() if newest is None else ({"$sort": {"_id": -1}}, {"$limit": max(1, newest)})),
            {
                "$group": {
                    "_id": {"reason": {"$ifNull": ["$reason", ""]}, "code": code, "text": text},
                    "count": {"$sum": 1},
                    "unacknowledged": {"$sum": open_ones},
                    "last_hour": {"$sum": {"$cond": [{"$gt": [at, tx.now - HOUR_MS]}, 1, 0]}},
                    "last_two": {"$sum": {"$cond": [{"$gt": [at, tx.now - 2 * HOUR_MS]}, 1, 0]}},
                    "newest": {
                        "$max": {
                            "at": at,
                            "id": "$_id",
                            "reason": "$reason",
                            "code": "$error_code",
                            "text": "$last_error",
                        }
                    },
                }
            },
            {"$sort": {"count": -1, "_id.reason": 1, "_id.code": 1, "_id.text": 1}},
            {"$limit": max(1, limit)},
        ),
    )
    return tuple(
        ErrorGroup(
            reason=None if one["newest"].get("reason") is None else Reason(one["newest"]["reason"]),
            error_code=one["newest"].get("code"),
            last_error=one["newest"].get("text"),
            count=one["count"],
            unacknowledged=one["unacknowledged"],
            newest_at=views.optional_moment(one["newest"]["at"]),
            example_id=one["newest"]["id"],
            last_hour=one["last_hour"],
            hour_before=one["last_two"] - one["last_hour"],
        )
        for one in found
    )


async def roll_ups(tx: MongoTransaction, tenant: str | None, since_ms: int) -> tuple[RollUp, ...]:
    """Returns the sums of the hours that overlap the last `since_ms` milliseconds, the oldest first."""
    found = await _sums(tx, ROLL_UP, ("hour_at", "tenant", "channel", "provider"), SUMS, tenant, since_ms)
    return tuple(
        RollUp(
            hour_at=views.optional_moment(hour_at),
            tenant=whose,
            channel=Channel(channel),
            provider=provider,
            **sums,
        )
        for (hour_at, whose, channel, provider), sums in found
    )


async def minute_roll_ups(
    tx: MongoTransaction, tenant: str | None, since_ms: int, step_ms: int
) -> tuple[MinuteRollUp, ...]:
    """Returns the sums of the steps that overlap the last `since_ms` milliseconds, the oldest first."""
    first = first_minute(tx.now, since_ms, step_ms)
    step = {"$subtract": ["$minute_at", {"$mod": ["$minute_at", step_ms]}]}
    whose = {name: f"${name}" for name in ("tenant", "channel", "provider")}
    found = await tx.db.aggregate(
        COUNTERS,
        (
            {"$match": {"kind": MINUTE, "minute_at": {"$gt": first}, **_of_tenant(tenant)}},
            {
                "$group": {
                    "_id": {"step_at": step, **whose},
                    **{name: {"$sum": f"${name}"} for name in MINUTE_SUMS},
                }
            },
        ),
    )
    rows = [(*one["_id"].values(), *(one[name] for name in MINUTE_SUMS)) for one in found]
    return tuple(build_minute_roll_up(*row) for row in sorted(rows))


async def last_attempts(
    tx: MongoTransaction, tenant: str, per_provider: int, scan: int
) -> tuple[tuple[str, AttemptRecord], ...]:
    """Returns the last attempts of each provider, with the ids of their notifications."""
    chosen = await tx.db.find(MESSAGES, {"tenant": tenant}, fields=("_id",), sort=NEWEST_FIRST, limit=scan)
    attempts = await attempts_of(tx, [one["_id"] for one in chosen])
    newest = sorted(
        ((id, one) for id, those in attempts.items() for one in those),
        key=lambda pair: (pair[1].started_at, pair[0], pair[1].number),
        reverse=True,
    )
    taken = Counter[str]()
    found = []
    for id, one in newest:
        if taken[one.provider] < per_provider:
            taken[one.provider] += 1
            found.append((id, one))
    return tuple(found)


async def waiting_groups(tx: MongoTransaction, tenant: str, step_ms: int | None, limit: int) -> WaitingGroups:
    """Returns what waits, in groups. Counts at most `limit` notifications."""
    is_late = {"$lte": ["$aged_from", tx.now]}
    slot: Any = None
    if step_ms is not None:
        start = {"$subtract": ["$due_at", {"$mod": ["$due_at", step_ms]}]}
        slot = {"$cond": [{"$lte": ["$due_at", tx.now]}, None, start]}
    found = await tx.db.aggregate(
        NOTIFICATIONS,
        (
            {"$match": {"tenant": tenant, "queue": {"$exists": True}}},
            {"$limit": limit + 1},
            {
                "$group": {
                    "_id": {
                        "lane": "$lane",
                        "provider": "$provider",
                        "reason": {"$ifNull": ["$reason", None]},
                        "slot": slot,
                    },
                    "number": {"$sum": 1},
                    "late": {"$sum": {"$cond": [is_late, 1, 0]}},
                    "oldest": {"$min": {"$cond": [is_late, "$aged_from", None]}},
                }
            },
        ),
    )
    rows = [
        WaitingRow(
            one["_id"]["lane"],
            one["_id"]["provider"],
            one["_id"].get("reason"),
            one["_id"].get("slot"),
            one["number"],
            one["late"],
            one["oldest"],
        )
        for one in found
    ]
    rows.sort(key=lambda row: (row.slot or 0, row.lane, row.provider, row.reason or ""))
    return build_waiting_groups(rows, limit)


async def goal_roll_ups(tx: MongoTransaction, tenant: str | None, since_ms: int) -> tuple[GoalRollUp, ...]:
    """Returns the punctuality of the hours that overlap the last `since_ms` milliseconds, oldest first."""
    found = await _sums(tx, GOAL, ("hour_at", "tenant", "mode"), GOAL_SUMS, tenant, since_ms)
    return tuple(
        GoalRollUp(hour_at=views.optional_moment(hour_at), tenant=whose, mode=Mode(mode), **sums)
        for (hour_at, whose, mode), sums in found
    )


async def unacknowledged(tx: MongoTransaction, tenant: str | None) -> Unacknowledged:
    """Returns the number of unacknowledged dead letters, and the time of the oldest."""
    found = await tx.db.aggregate(
        NOTIFICATIONS,
        (
            {
                "$match": {
                    "rare": Status.FAILED.value,
                    "acknowledged_at": {"$exists": False},
                    **_of_tenant(tenant),
                }
            },
            {"$group": {"_id": None, "count": {"$sum": 1}, "oldest": {"$min": "$failed_at"}}},
        ),
    )
    if not found:
        return Unacknowledged(count=0, oldest_at=None)
    return Unacknowledged(count=found[0]["count"], oldest_at=views.optional_moment(found[0]["oldest"]))


async def oldest_retry_at(tx: MongoTransaction, tenant: str | None) -> datetime | None:
    """Returns the time of the oldest first failure of a retrying notification, or None if there is none."""
    found = await tx.db.aggregate(
        NOTIFICATIONS,
        (
            {"$match": {"rare": Status.RETRYING.value, **_of_tenant(tenant)}},
            {
                "$group": {
                    "_id": None,
                    "at": {"$min": {"$ifNull": ["$first_failed_at", "$last_attempt_at"]}},
                }
            },
        ),
    )
    return views.optional_moment(found[0]["at"]) if found else None


async def silent(
    tx: MongoTransaction, status: Status, providers: Collection[str], after: int, until: int, limit: int
) -> tuple[tuple[str, str], ...]:
    """Returns (tenant, id) of notifications with this status that last changed between `after` and `until`.

    Only notifications of these providers are returned, those unchanged for the longest time first.
    """
    if limit <= 0:
        return ()
    found = await tx.db.find(
        NOTIFICATIONS,
        {
            "status": status.value,
            "ended_at": {"$gt": after, "$lte": until},
            "provider": {"$in": list(providers)},
        },
        fields=("tenant",),
        sort=(("ended_at", 1),),
        limit=limit,
    )
    return tuple((one["tenant"], one["_id"]) for one in found)


async def tenants(tx: MongoTransaction) -> tuple[str, ...]:
    """Returns all tenants that have or had notifications."""
    found = await tx.db.aggregate(
        COUNTERS, ({"$match": {"kind": TALLY}}, {"$group": {"_id": "$tenant"}}, {"$sort": {"_id": 1}})
    )
    return tuple(one["_id"] for one in found)


def _of_tenant(tenant: str | None) -> Document:
    return {} if tenant is None else {"tenant": tenant}


async def _sums(
    tx: MongoTransaction,
    kind: str,
    key: Sequence[str],
    names: Sequence[str],
    tenant: str | None,
    since_ms: int,
) -> Iterable[tuple[tuple[Any, ...], dict[str, int]]]:
    """Returns the keys of counters, in order, each with its sums over all shards."""
    found = await tx.db.aggregate(
        COUNTERS,
        (
            {
                "$match": {
                    "kind": kind,
                    "hour_at": {"$gt": tx.now - since_ms - HOUR_MS},
                    **_of_tenant(tenant),
                }
            },
            {
                "$group": {
                    "_id": {name: f"${name}" for name in key},
                    **{name: {"$sum": f"${name}"} for name in names},
                }
            },
        ),
    )
    rows = [(tuple(one["_id"][name] for name in key), {name: one[name] for name in names}) for one in found]
    return sorted(rows, key=lambda row: row[0])


async def _sorted_page(tx: MongoTransaction, condition: Document, order: Sort, limit: int) -> Page:
    """Returns the first of the notifications that match, without a cursor."""
    chosen = await tx.db.find(NOTIFICATIONS, condition, fields=("_id",), sort=order, limit=limit + 1)
    page = await _page(tx, [one["_id"] for one in chosen], limit)
    return Page(items=page.items)


async def _page(tx: MongoTransaction, ids: Sequence[str], limit: int) -> Page:
    """Returns these notifications, as many as the limit and the maximum size of a page allow."""
    sizes = {
        one["_id"]: one["size"]
        for one in await tx.db.aggregate(
            MESSAGES,
            (
                {"$match": {"_id": {"$in": list(ids)}}},
                {"$project": {"size": {"$strLenBytes": "$message"}}},
            ),
        )
    }
    kept = ids[: min(limit, count_fitting(sizes.get(id, 0) for id in ids))]
    rows = {row.id: row for row in read_rows(await tx.db.find(NOTIFICATIONS, {"_id": {"$in": kept}}))}
    messages = {
        one["_id"]: decode_message(one["message"])
        for one in await tx.db.find(MESSAGES, {"_id": {"$in": kept}})
    }
    items = tuple(views.notification(rows[id], messages[id]) for id in kept)
    return Page(items=items, cursor=items[-1].id if items and len(items) < len(ids) else None)
