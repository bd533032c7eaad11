"""The registered sinks and the outbox, which has one document per event and sink.

The sinks are part of the one document that every transaction reads first, so a transaction knows the sinks as
of its snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence

from homing.core.lifecycle.events import Event
from homing.core.ports.stores import RegisteredSink, SinkRegistration, relay_task
from homing.stores.common.codec import decode_value, encode
from homing.stores.common.sinks import REMOVAL_STEP, REMOVAL_TERM_MS, REMOVER, parked_name
from homing.stores.mongo.documents import Document
from homing.stores.mongo.reference_data import lead
from homing.stores.mongo.schema import LEADS, META, META_ID, SINK_EVENTS, SINKS_SEEN
from homing.stores.mongo.transaction import MongoTransaction


async def register_sink(tx: MongoTransaction, sink: SinkRegistration) -> bool:
    """Adds or changes a sink, and marks it as seen. Returns False if it was registered like this already."""
    stored = await _stored_sinks(tx)
    others = [one for one in stored if one["name"] != sink.name]
    known = [one for one in stored if one["name"] == sink.name]
    changed = {
        "name": sink.name,
        "kind": sink.kind,
        "events": sorted(sink.events),
        "durable": sink.durable,
        "registered_at": known[0]["registered_at"] if known else tx.now,
    }
    if known != [changed]:
        await tx.db.update(META, {"_id": META_ID}, {"$set": {"sinks": [*others, changed]}})
    await tx.db.update(SINKS_SEEN, {"_id": sink.name}, {"$set": {"last_seen_at": tx.now}}, upsert=True)
    return known != [changed]


async def sink_seen(tx: MongoTransaction, name: str) -> bool:
    """Marks a sink as seen. Returns False if no such sink is registered."""
    return bool(await tx.db.update(SINKS_SEEN, {"_id": name}, {"$set": {"last_seen_at": tx.now}}))


async def is_registered(tx: MongoTransaction, name: str) -> bool:
    """Returns True if a sink with this name is registered."""
    return any(one["name"] == name for one in await _stored_sinks(tx))


async def remove_sink_step(tx: MongoTransaction, name: str) -> int:
    """Removes some events of a sink, and the sink itself with the last of them. Returns their number.

    No relay publishes the rest meanwhile, because earlier events of the same notification may be gone.
    """
    task = relay_task(name)
    await tx.db.delete(LEADS, {"_id": task})
    places = {"$in": [name, parked_name(name)]}
    found = await tx.db.find(SINK_EVENTS, {"sink": places}, fields=("_id",), limit=REMOVAL_STEP)
    removed = await tx.db.delete(SINK_EVENTS, {"_id": {"$in": [one["_id"] for one in found]}})
    if removed < REMOVAL_STEP:
        left = [one for one in await _stored_sinks(tx) if one["name"] != name]
        await tx.db.update(META, {"_id": META_ID}, {"$set": {"sinks": left}})
        await tx.db.delete(SINKS_SEEN, {"_id": name})
    else:
        await lead(tx, task, REMOVER, REMOVAL_TERM_MS)
    return removed


async def sinks(tx: MongoTransaction) -> tuple[RegisteredSink, ...]:
    """Returns all registered sinks, by name."""
    stored = await _stored_sinks(tx)
    seen = {str(one["_id"]): int(one["last_seen_at"]) for one in await tx.db.find(SINKS_SEEN, {})}
    counts, oldest = dict[str, int](), dict[str, int]()
    for one in await tx.db.aggregate(
        SINK_EVENTS, ({"$group": {"_id": "$sink", "count": {"$sum": 1}, "at": {"$min": "$at"}}},)
    ):
        counts[one["_id"]], oldest[one["_id"]] = one["count"], one["at"]
    return tuple(
        RegisteredSink(
            name=one["name"],
            kind=one["kind"],
            events=frozenset(one["events"]),
            durable=one["durable"],
            registered_at=one["registered_at"],
            last_seen_at=seen.get(one["name"]) or one["registered_at"],
            waiting=counts.get(one["name"], 0),
            parked=counts.get(parked_name(one["name"]), 0),
            oldest_at=oldest.get(one["name"]),
        )
        for one in sorted(stored, key=lambda sink: str(sink["name"]))
    )


async def lease_events(
    tx: MongoTransaction, sink: str, worker: str, limit: int, lease_ms: int
) -> tuple[Event, ...]:
    """Returns the oldest events of the sink, if the worker is or becomes its only relay."""
    if limit <= 0:
        return ()
    found = await tx.db.find(SINK_EVENTS, {"sink": sink}, sort=(("order", 1),), limit=limit)
    if not found or not await lead(tx, relay_task(sink), worker, lease_ms):
        return ()
    return tuple(
        Event(
            id=one["id"],
            name=one["name"],
            tenant=one["tenant"],
            at=one["at"],
            notification_id=one["notification_id"],
            payload=decode_value(one["payload"]),
        )
        for one in found
    )


async def remove_events(tx: MongoTransaction, sink: str, events: Sequence[Event]) -> None:
    """Removes events that the sink has published."""
    for condition in _conditions(sink, events):
        await tx.db.delete(SINK_EVENTS, condition)


async def park_events(tx: MongoTransaction, sink: str, events: Sequence[Event]) -> None:
    """Sets events aside that the sink refuses."""
    for condition in _conditions(sink, events):
        await tx.db.update(SINK_EVENTS, condition, {"$set": {"sink": parked_name(sink)}})


async def release_events(tx: MongoTransaction, sink: str) -> int:
    """Returns the parked events of a sink to its outbox, and returns their number."""
    return await tx.db.update(SINK_EVENTS, {"sink": parked_name(sink)}, {"$set": {"sink": sink}})


def _conditions(sink: str, events: Sequence[Event]) -> list[Document]:
    """Returns conditions for these events. An event is known by its id and its time together."""
    by_time: dict[int, list[str]] = {}
    for event in events:
        by_time.setdefault(event.at, []).append(encode((sink, event.id)))
    return [{"_id": {"$in": keys}, "at": at, "sink": sink} for at, keys in by_time.items()]


async def _stored_sinks(tx: MongoTransaction) -> list[Document]:
    [found] = await tx.db.find(META, {"_id": META_ID}, fields=("sinks",))
    stored: list[Document] = found.get("sinks", [])
    return stored
