"""The registered sinks and the outbox, which has one row per event and sink."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from homing.core.lifecycle.events import Event
from homing.core.ports.stores import RegisteredSink, SinkRegistration, relay_task
from homing.stores.common.codec import decode_value
from homing.stores.common.sinks import (
    REMOVAL_STEP,
    REMOVAL_TERM_MS,
    REMOVER,
    is_known,
    join_events,
    parked_name,
    split_events,
)
from homing.stores.postgres.connection import Database
from homing.stores.postgres.reference_data import lead
from homing.stores.postgres.statements import PostgresTransaction, transpose

log = logging.getLogger("homing.postgres")

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
  (SELECT count(*) FROM homing.sink_events AS e WHERE e.sink = s.name),
  (SELECT count(*) FROM homing.sink_events AS e WHERE e.sink = 'parked:' || s.name),
  (SELECT at FROM homing.sink_events AS e WHERE e.sink = s.name ORDER BY sink, number LIMIT 1)
FROM homing.sinks AS s ORDER BY name
"""

_REMOVE_STEP = """
DELETE FROM homing.sink_events AS e USING (
  SELECT sink, number FROM homing.sink_events WHERE sink = ANY($1::text[]) LIMIT $2) AS gone
WHERE e.sink = gone.sink AND e.number = gone.number
"""

_REMOVE_EVENTS = """
DELETE FROM homing.sink_events AS e USING unnest($2::text[], $3::bigint[]) AS u(id, at)
WHERE e.sink = $1 AND e.id = u.id AND e.at = u.at
"""

_READERS = """
SELECT coalesce(array_agg(DISTINCT virtualtransaction), '{}') FROM pg_locks
WHERE relation = 'homing.sinks'::regclass AND pid IS DISTINCT FROM pg_backend_pid()
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

_LOOK_EVERY_S = 0.1

_LONGEST_WAIT_S = 30


async def register_sink(database: Database, sink: SinkRegistration) -> None:
    """Adds or changes a sink. Returns once every transaction that is still to commit writes its events.

    A new sink gets the events that an older release wrote without a sink.
    """

    async def register(tx: PostgresTransaction) -> bool:
        is_new = await tx.one("SELECT 1 FROM homing.sinks WHERE name = $1", sink.name) is None
        await tx.run(_UPSERT_SINK, sink.name, sink.kind, join_events(sink.events), sink.durable, tx.now)
        if is_new:
            await copy_legacy_events(tx)
        return is_new

    async def copy_legacy_events(tx: PostgresTransaction) -> None:
        await tx.run(_COPY_LEGACY_EVENTS, sink.name, sorted(sink.events))

    known = is_known(await database.do(sinks, read_only=True), sink)
    if known and await database.do(lambda tx: sink_seen(tx, sink.name)):
        return
    is_new = await database.do(register)
    await _wait_for_readers(database)
    if is_new:
        await database.do(copy_legacy_events)  # those that were not committed yet


async def sink_seen(tx: PostgresTransaction, name: str) -> bool:
    """Marks a sink as seen. Returns False if no such sink is registered."""
    return bool(await tx.run("UPDATE homing.sinks SET last_seen_at = $1 WHERE name = $2", tx.now, name))


async def remove_sink(database: Database, name: str) -> int | None:
    """Removes a sink and its events. Returns the number of events, or None if there is no such sink.

    Most events are deleted before the sink, and those that were written meanwhile after it.
    """

    async def remove(tx: PostgresTransaction) -> bool:
        await _stop_relays(tx, name)
        return bool(await tx.run("DELETE FROM homing.sinks WHERE name = $1", name))

    async def end_removal(tx: PostgresTransaction) -> None:
        await tx.run("DELETE FROM homing.leads WHERE task = $1 AND worker = $2", relay_task(name), REMOVER)

    if not await database.do(lambda tx: _is_registered(tx, name), read_only=True):
        return None
    total = await _remove_all_events(database, name, registered=True)
    if not await database.do(remove):
        return None
    await _wait_for_readers(database)
    total += await _remove_all_events(database, name, registered=False)
    await database.do(end_removal)
    return total


async def _remove_all_events(database: Database, name: str, *, registered: bool) -> int:
    """Removes the events of a sink in steps and returns their number.

    Stops if the sink is no longer, or again, registered, because a process has changed that meanwhile.
    """

    async def remove_some(tx: PostgresTransaction) -> int:
        if await _is_registered(tx, name) != registered:
            return 0
        await _stop_relays(tx, name)
        return await tx.run(_REMOVE_STEP, [name, parked_name(name)], REMOVAL_STEP)

    total = removed = await database.do(remove_some)
    while removed == REMOVAL_STEP:
        removed = await database.do(remove_some)
        total += removed
    return total


async def _stop_relays(tx: PostgresTransaction, name: str) -> None:
    """Keeps relays from publishing what is left: earlier events of the same notification may be gone."""
    await tx.run("DELETE FROM homing.leads WHERE task = $1 AND worker <> $2", relay_task(name), REMOVER)
    await lead(tx, relay_task(name), REMOVER, REMOVAL_TERM_MS)


async def _is_registered(tx: PostgresTransaction, name: str) -> bool:
    return await tx.one("SELECT 1 FROM homing.sinks WHERE name = $1", name) is not None


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
            parked=parked,
            oldest_at=oldest_at,
        )
        for name, kind, events, durable, registered_at, last_seen_at, waiting, parked, oldest_at in (
            await tx.rows(_SINKS)
        )
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


async def remove_events(tx: PostgresTransaction, sink: str, events: Sequence[Event]) -> None:
    """Removes events that the sink has published."""
    await tx.run(_REMOVE_EVENTS, sink, *transpose([(event.id, event.at) for event in events], 2))


async def park_events(tx: PostgresTransaction, sink: str, events: Sequence[Event]) -> None:
    """Sets events aside that the sink refuses."""
    await tx.run(
        "UPDATE homing.sink_events AS e SET sink = $1 FROM unnest($3::text[], $4::bigint[]) AS u(id, at)"
        " WHERE e.sink = $2 AND e.id = u.id AND e.at = u.at",
        parked_name(sink),
        sink,
        *transpose([(event.id, event.at) for event in events], 2),
    )


async def release_events(tx: PostgresTransaction, sink: str) -> int:
    """Returns the parked events of a sink to its outbox, and returns their number."""
    return await tx.run("UPDATE homing.sink_events SET sink = $1 WHERE sink = $2", sink, parked_name(sink))


async def _wait_for_readers(database: Database) -> None:
    """Waits for the transactions that may have read the sinks before the last change of them.

    Every transaction that writes events has read the sinks, and holds a lock on their table until it ends.
    Nothing waits for this process. If a caller's own transaction stays open for too long, its events follow
    the sinks that it has read.
    """

    async def read(tx: PostgresTransaction) -> set[str]:
        return set(await tx.one(_READERS))

    readers, waited_s = await database.do(read, read_only=True, timed=False), 0.0
    while readers and waited_s < _LONGEST_WAIT_S:
        await asyncio.sleep(_LOOK_EVERY_S)
        waited_s += _LOOK_EVERY_S
        readers &= await database.do(read, read_only=True, timed=False)
    if readers:
        log.warning("sinks were changed while a transaction that writes events stays open")
