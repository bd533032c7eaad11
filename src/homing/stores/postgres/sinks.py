"""The registered sinks and the outbox, which has one row per event and sink."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TypeVar

from homing.core.errors import StoreBusy
from homing.core.lifecycle.events import Event
from homing.core.ports.stores import RegisteredSink, SinkRegistration, relay_task
from homing.stores.common.codec import decode_value
from homing.stores.common.sinks import is_known, join_events, split_events
from homing.stores.postgres.connection import Action, Database
from homing.stores.postgres.reference_data import lead
from homing.stores.postgres.statements import PostgresTransaction

log = logging.getLogger("homing.postgres")

R = TypeVar("R")

NEXT_EVENTS = """
SELECT id, name, tenant, at, notification_id, payload FROM homing.sink_events
WHERE sink = $1 ORDER BY sink, number LIMIT $2
"""

_ANY_EVENT = "SELECT 1 FROM homing.sink_events WHERE sink = $1 ORDER BY sink, number LIMIT 1"

_UPSERT_SINK = """
INSERT INTO homing.sinks AS s (name, kind, events, durable, registered_at, last_seen_at)
VALUES ($1, $2, $3, $4, $5, $5)
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, events = excluded.events, durable = excluded.durable,
  last_seen_at = excluded.last_seen_at
"""

_COPY_LEGACY_EVENTS = """
INSERT INTO homing.sink_events (sink, id, name, tenant, at, notification_id, payload)
SELECT $1, id, name, tenant, at, notification_id, payload FROM homing.outbox
WHERE name = ANY($2::text[]) ORDER BY number
ON CONFLICT (sink, id) DO NOTHING
"""

_SINKS = """
SELECT name, kind, events, durable, registered_at, last_seen_at,
  (SELECT count(*) FROM homing.sink_events AS e WHERE e.sink = s.name)
FROM homing.sinks AS s ORDER BY name
"""

_LOCK_SINKS = "LOCK TABLE homing.sinks IN ACCESS EXCLUSIVE MODE"

_LOCK_TRIES = 20

_LOCK_RETRY_S = 0.25


async def register_sink(database: Database, sink: SinkRegistration) -> None:
    """Adds or changes a sink. A new sink gets the events that an older release wrote without a sink."""

    async def register(tx: PostgresTransaction) -> None:
        known = await tx.one("SELECT 1 FROM homing.sinks WHERE name = $1", sink.name)
        await tx.run(_UPSERT_SINK, sink.name, sink.kind, join_events(sink.events), sink.durable, tx.now)
        if known is None:
            await tx.run(_COPY_LEGACY_EVENTS, sink.name, sorted(sink.events))

    known = is_known(await database.do(sinks, read_only=True), sink)
    if not known or not await database.do(lambda tx: sink_seen(tx, sink.name)):
        await _change_sinks(database, register)


async def sink_seen(tx: PostgresTransaction, name: str) -> bool:
    """Marks a sink as seen. Returns False if no such sink is registered."""
    return bool(await tx.run("UPDATE homing.sinks SET last_seen_at = $1 WHERE name = $2", tx.now, name))


async def remove_sink(database: Database, name: str) -> int | None:
    """Removes a sink and its events. Returns the number of events, or None if there is no such sink."""

    async def remove(tx: PostgresTransaction) -> int | None:
        if not await tx.run("DELETE FROM homing.sinks WHERE name = $1", name):
            return None
        return await tx.run("DELETE FROM homing.sink_events WHERE sink = $1", name)

    return await _change_sinks(database, remove)


async def sinks(tx: PostgresTransaction) -> tuple[RegisteredSink, ...]:
    """Returns all registered sinks, by name."""
    return tuple(
        RegisteredSink(
            name=name,
            kind=kind,
            events=split_events(events),
            durable=durable,
            registered_at=registered_at,
            last_seen_at=last_seen_at,
            waiting=waiting,
        )
        for name, kind, events, durable, registered_at, last_seen_at, waiting in await tx.rows(_SINKS)
    )


async def lease_events(
    tx: PostgresTransaction, sink: str, worker: str, limit: int, lease_ms: int
) -> tuple[Event, ...]:
    """Returns the oldest events of the sink, if the worker is or becomes its only relay.

    They are read after the worker has become the relay, so none of them was published meanwhile. The events
    of one notification have ascending numbers, because their transactions wait for each other.
    """
    if await tx.one(_ANY_EVENT, sink) is None or not await lead(tx, relay_task(sink), worker, lease_ms):
        return ()
    return tuple(
        Event(
            id=id,
            name=name,
            tenant=tenant,
            at=at,
            notification_id=notification_id,
            payload=decode_value(payload),
        )
        for id, name, tenant, at, notification_id, payload in await tx.rows(NEXT_EVENTS, sink, max(0, limit))
    )


async def remove_events(tx: PostgresTransaction, sink: str, ids: Sequence[str]) -> None:
    """Removes events that the sink has published."""
    await tx.run("DELETE FROM homing.sink_events WHERE sink = $1 AND id = ANY($2::text[])", sink, list(ids))


async def _change_sinks(database: Database, action: Action[R]) -> R:
    """Runs an action that adds or removes sinks, while no transaction that writes events is open.

    Such a transaction has read the sinks and holds a shared lock on their table. New ones wait while this
    one waits, so the wait is short and repeated. If a caller's own transaction stays open for long, the
    action runs without the lock, and the events of that transaction follow the sinks that it has read.
    """

    async def locked(tx: PostgresTransaction) -> R:
        await tx.script(_LOCK_SINKS)
        return await action(tx)

    for _ in range(_LOCK_TRIES):
        try:
            return await database.do(locked, patient=False)
        except StoreBusy:
            await asyncio.sleep(_LOCK_RETRY_S)
    log.warning("sinks are changed while a transaction that writes events stays open")
    return await database.do(action)
