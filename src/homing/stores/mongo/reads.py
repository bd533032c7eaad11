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
from homing.stores.common.codec import count_fitting, decode_message, encode, round_up_to_ms
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
from homing.stores.mongo.documents import RARE_STATUSES, Document, read_cause, read_row, read_rows
from homing.stores.mongo.schema import ATTEMPTS, CAUSES, COUNTERS, MESSAGES, NOTIFICATIONS
from homing.stores.mongo.transaction import MongoTransaction, Sort

_EQUAL = ("channel", "type", "provider", "batch_id", "address", "reason", "error_code")

_ORDER = {status: number for number, status in enumerate(Status)}

_NEWEST_FIRST: Sort = (("_id", -1),)

_MAX_IDS = 10_000
"""Maximum number of notifications of one recipient that a search considers, the newest first."""


async def filter_condition(
    tx: MongoTransaction, tenant: str, filter: Filter, statuses: Collection[Status]
) -> Document:
    """Returns the condition for a filter, restricted to these statuses. No statuses means all.

    `created_until` is exclusive.
    """
    condition: Document = {"tenant": tenant}
    if statuses:
        field = "rare" if RARE_STATUSES.issuperset(statuses) else "status"
        condition[field] = {"$in": [status.value for status in statuses]}
    for name in _EQUAL:
        value = getattr(filter, name)
        if value is not None:
            condition[name] = getattr(value, "_value_", value)
    if filter.acknowledged is not None:
        condition["acknowledged_at"] = {"$exists": filter.acknowledged}
    created: Document = {}
    if filter.created_from is not None:
        created["$gte"] = round_up_to_ms(filter.created_from)
    if filter.created_until is not None:
        created["$lt"] = round_up_to_ms(filter.created_until)
    if created:
        condition["created_at"] = created
    if filter.metadata:
        condition["metadata"] = {"$all": [encode(pair) for pair in filter.metadata.items()]}
    id: Document = {}
    if (ids := await _searched_ids(tx, tenant, filter)) is not None:
        id["$in"] = ids
    if filter.id_prefix is not None:
        id |= {"$gte": filter.id_prefix, "$lt": f"{filter.id_prefix}~"}
    if id:
        condition["_id"] = id
    return condition


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
    condition = await filter_condition(tx, tenant, filter, filter.statuses)
    order: Sort = (("_id", 1),) if oldest_first else _NEWEST_FIRST
    beyond, last = "$gt" if oldest_first else "$lt", None
    parts: list[Document] = [] if cursor is None else [{"_id": {beyond: cursor}}]
    if scan is not None and not filter.metadata:
        compared: Document = {"tenant": tenant}
        if cursor is not None:
            compared["_id"] = {beyond: cursor}
        found = await tx.db.aggregate(
            NOTIFICATIONS,
            (
                {"$match": compared},
                {"$sort": dict(order)},
                {"$skip": max(0, scan - 1)},
                {"$limit": 1},
                {"$project": {"_id": 1}},
            ),
        )
        last = found[0]["_id"] if found else None
        if last is not None:
            parts.append({"_id": {"$lte" if oldest_first else "$gte": last}})
    if parts:
        condition["$and"] = parts
    return end_scan(await _page(tx, condition, order, limit), last)


async def _searched_ids(tx: MongoTransaction, tenant: str, filter: Filter) -> list[str] | None:
    """Returns the ids that a search by recipient or provider message permits. None if it permits all."""
    permitted: list[set[str]] = []
    if filter.recipient_id is not None:
        key = encode((tenant, filter.recipient_id))
        found = await tx.db.find(
            MESSAGES, {"recipient": key}, fields=("_id",), sort=_NEWEST_FIRST, limit=_MAX_IDS
        )
        permitted.append({one["_id"] for one in found})
    if filter.provider_message_id is not None:
        condition = {"provider_message_id": filter.provider_message_id}
        found = await tx.db.find(ATTEMPTS, condition, fields=("of",), limit=_MAX_IDS)
        permitted.append({one["of"] for one in found})
    return sorted(set.intersection(*permitted)) if permitted else None


async def waiting(tx: MongoTransaction, tenant: str | None, limit: int, ready: bool | None) -> Page:
    """Returns waiting notifications of one tenant, or of all if it is None, the earliest due first.

    `ready` selects those due now (True), those due later (False) or both (None).
    """
    condition: Document = {"queue": {"$exists": True}, **_of_tenant(tenant)}
    if ready is not None:
        condition["due_at"] = {"$lte" if ready else "$gt": tx.now}
    page = await _page(tx, condition, (("due_at", 1), ("_id", 1)), limit)
    return Page(items=page.items)


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
    page = await _page(tx, condition, (("last_attempt_at", 1), ("_id", 1)), limit)
    return Page(items=page.items)


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
    chosen = await tx.db.find(
        NOTIFICATIONS, {"tenant": tenant}, fields=("_id",), sort=_NEWEST_FIRST, limit=scan
    )
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


async def _page(tx: MongoTransaction, condition: Document, order: Sort, limit: int) -> Page:
    """Returns the selected notifications, as many as the limit and the maximum size of a page allow."""
    chosen = await tx.db.find(NOTIFICATIONS, condition, fields=("_id",), sort=order, limit=limit + 1)
    ids = [one["_id"] for one in chosen]
    sizes = {
        one["_id"]: one["size"]
        for one in await tx.db.aggregate(
            MESSAGES,
            (
                {"$match": {"_id": {"$in": ids}}},
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
