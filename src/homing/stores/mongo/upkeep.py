"""Maintenance: the removal of old data, and the size of the store."""

from __future__ import annotations

from collections.abc import Mapping

from homing.core.lifecycle.states import FINAL
from homing.core.ports.stores import Retention
from homing.core.routing.rate_limits import LONGEST_REFILL_MS, RECIPIENT_BUCKETS
from homing.stores.common.change_effects import MINUTES_KEPT_MS
from homing.stores.mongo.change_recorder import MINUTE, TALLY, add_to_tally
from homing.stores.mongo.documents import Document
from homing.stores.mongo.schema import (
    ATTEMPTS,
    BUCKETS,
    CAUSES,
    COUNTERS,
    DEDUPS,
    MESSAGES,
    NOTIFICATIONS,
    RECEIPTS,
    REQUESTS,
    SINK_EVENTS,
)
from homing.stores.mongo.transaction import MongoTransaction
from homing.stores.mongo.workers import forget_workers


async def prune(tx: MongoTransaction, retention: Retention, limit: int) -> Mapping[str, int]:
    """Removes data that has exceeded its retention, at most `limit` records of each kind.

    Returns the number of removed records by kind. Recipients' full rate limit buckets, and workers that died
    long ago, are also removed, but not counted.
    """
    keys_until = tx.now - retention.keys_ms
    keys = await _delete_old(tx, REQUESTS, "created_at", {"created_at": {"$lte": keys_until}}, limit)
    old_dedups = {"accepted_at": {"$lte": keys_until}, "kept_until": {"$lte": tx.now}}
    keys += await _delete_old(tx, DEDUPS, "accepted_at", old_dedups, limit - keys)
    receipts = await _delete_old(tx, RECEIPTS, "received_at", {"received_at": {"$lte": keys_until}}, limit)
    outbox_until = tx.now - retention.outbox_ms
    outbox = await _delete_old(tx, SINK_EVENTS, "at", {"at": {"$lte": outbox_until}}, limit)
    first, last = RECIPIENT_BUCKETS
    full = {"_id": {"$gte": first, "$lt": last}, "at": {"$lt": tx.now - LONGEST_REFILL_MS}}
    await _delete_old(tx, BUCKETS, "at", full, limit)
    old_minutes = {"kind": MINUTE, "minute_at": {"$lte": tx.now - MINUTES_KEPT_MS}}
    await _delete_old(tx, COUNTERS, "minute_at", old_minutes, limit)
    await forget_workers(tx)
    notifications = await _purge(tx, retention, limit)
    return {"notifications": notifications, "keys": keys, "receipts": receipts, "events": outbox}


async def size(tx: MongoTransaction) -> dict[str, int]:
    """Returns the number of documents by kind."""
    counted = await tx.db.aggregate(
        COUNTERS, ({"$match": {"kind": TALLY}}, {"$group": {"_id": None, "count": {"$sum": "$count"}}})
    )
    numbers = {name: await _count(tx, name) for name in (REQUESTS, DEDUPS, RECEIPTS, SINK_EVENTS)}
    return {
        "notifications": counted[0]["count"] if counted else 0,
        "keys": numbers[REQUESTS] + numbers[DEDUPS],
        "receipts": numbers[RECEIPTS],
        "outbox": numbers[SINK_EVENTS],
    }


async def _count(tx: MongoTransaction, collection: str) -> int:
    found = await tx.db.aggregate(collection, ({"$count": "count"},))
    return int(found[0]["count"]) if found else 0


async def _purge(tx: MongoTransaction, retention: Retention, limit: int) -> int:
    removed: list[str] = []
    purged: dict[tuple[str, str, int], int] = {}
    for status in sorted(FINAL):
        if len(removed) >= limit:
            break
        found = await tx.db.find(
            NOTIFICATIONS,
            {"status": status.value, "ended_at": {"$lte": tx.now - retention.age_ms(status)}},
            fields=("tenant", "attempts"),
            sort=(("ended_at", 1),),
            limit=limit - len(removed),
        )
        for one in found:
            removed.append(one["_id"])
            cell = (one["tenant"], status.value, one["attempts"])
            purged[cell] = purged.get(cell, 0) + 1
    if removed:
        await tx.db.delete(NOTIFICATIONS, {"_id": {"$in": removed}})
        await tx.db.delete(MESSAGES, {"_id": {"$in": removed}})
        await tx.db.delete(ATTEMPTS, {"of": {"$in": removed}})
        await tx.db.delete(CAUSES, {"of": {"$in": removed}})
        await tx.db.bulk_write(
            COUNTERS,
            [
                add_to_tally(tx.shard, *cell, {"count": -number, "purged": number})
                for cell, number in purged.items()
            ],
        )
    return len(removed)


async def _delete_old(
    tx: MongoTransaction, collection: str, age: str, condition: Document, limit: int
) -> int:
    if limit <= 0:
        return 0
    found = await tx.db.find(collection, condition, fields=("_id",), sort=((age, 1),), limit=limit)
    if not found:
        return 0
    return await tx.db.delete(collection, {"_id": {"$in": [one["_id"] for one in found]}})
