"""The registered sinks and the outbox, which has one row per event and sink."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import json

from homing.core.lifecycle.events import Event
from homing.core.ports.stores import RegisteredSink, SinkRegistration, relay_task
from homing.stores.common.codec import encode
from homing.stores.common.sinks import (
    REMOVAL_STEP,
    REMOVAL_TERM_MS,
    REMOVER,
    join_events,
    parked_name,
    split_events,
)
from homing.stores.sqlite.reference_data import lead
from homing.stores.sqlite.statements import SqliteTransaction

NEXT_EVENTS = """
SELECT json_group_array(json_object(
  'id', id, 'name', name, 'tenant', tenant, 'at', at, 'notificationId', notification_id,
  'payload', json(payload)))
FROM (SELECT * FROM homing_sink_events WHERE sink = ?1 ORDER BY number LIMIT ?2)
"""

_UPSERT_SINK = """
INSERT INTO homing_sinks (name, kind, events, durable, registered_at, last_seen_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?5)
ON CONFLICT DO UPDATE SET kind = excluded.kind, events = excluded.events, durable = excluded.durable,
  last_seen_at = excluded.last_seen_at
"""

_COPY_LEGACY_EVENTS = """
INSERT OR IGNORE INTO homing_sink_events (sink, id, name, tenant, at, notification_id, payload)
SELECT ?1, id, name, tenant, at, notification_id, payload FROM homing_outbox
WHERE name IN (SELECT value FROM json_each(?2)) ORDER BY number
"""

_SINKS = """
SELECT name, kind, events, durable, registered_at, last_seen_at,
  (SELECT count(*) FROM homing_sink_events AS e WHERE e.sink = s.name),
  (SELECT count(*) FROM homing_sink_events AS e WHERE e.sink = 'parked:' || s.name),
  (SELECT at FROM homing_sink_events AS e WHERE e.sink = s.name ORDER BY number LIMIT 1)
FROM homing_sinks AS s ORDER BY name
"""

_REMOVE_STEP = """
DELETE FROM homing_sink_events WHERE number IN (
  SELECT number FROM homing_sink_events WHERE sink IN (?1, ?2) LIMIT ?3)
"""

_decode_events = json.Decoder(tuple[Event, ...]).decode


def register_sink(tx: SqliteTransaction, sink: SinkRegistration) -> None:
    """Adds or changes a sink. A new sink gets the events that an older release wrote without a sink."""
    known = tx.one("SELECT 1 FROM homing_sinks WHERE name = ?", sink.name)
    tx.run(_UPSERT_SINK, sink.name, sink.kind, join_events(sink.events), sink.durable, tx.now)
    if known is None:
        tx.run(_COPY_LEGACY_EVENTS, sink.name, encode(sorted(sink.events)))


def sink_seen(tx: SqliteTransaction, name: str) -> bool:
    """Marks a sink as seen. Returns False if no such sink is registered."""
    return bool(tx.run("UPDATE homing_sinks SET last_seen_at = ? WHERE name = ?", tx.now, name))


def is_registered(tx: SqliteTransaction, name: str) -> bool:
    """Returns True if a sink with this name is registered."""
    return tx.one("SELECT 1 FROM homing_sinks WHERE name = ?", name) is not None


def remove_sink_step(tx: SqliteTransaction, name: str) -> int:
    """Removes some events of a sink, and the sink itself with the last of them. Returns their number.

    No relay publishes the rest meanwhile, because earlier events of the same notification may be gone.
    """
    task = relay_task(name)
    tx.run("DELETE FROM homing_leads WHERE task = ?", task)
    removed = tx.run(_REMOVE_STEP, name, parked_name(name), REMOVAL_STEP)
    if removed < REMOVAL_STEP:
        tx.run("DELETE FROM homing_sinks WHERE name = ?", name)
    else:
        lead(tx, task, REMOVER, REMOVAL_TERM_MS)
    return removed


def sinks(tx: SqliteTransaction) -> tuple[RegisteredSink, ...]:
    """Returns all registered sinks, by name."""
    return tuple(
        RegisteredSink(
            name=name,
            kind=kind,
            events=split_events(events),
            durable=bool(durable),
            registered_at=registered_at,
            last_seen_at=last_seen_at,
            waiting=waiting,
            parked=parked,
            oldest_at=oldest_at,
        )
        for name, kind, events, durable, registered_at, last_seen_at, waiting, parked, oldest_at in (
            tx.cursor.execute(_SINKS)
        )
    )


def lease_events(
    tx: SqliteTransaction, sink: str, worker: str, limit: int, lease_ms: int
) -> tuple[Event, ...]:
    """Returns the oldest events of the sink, if the worker is or becomes its only relay."""
    events = _decode_events(tx.one(NEXT_EVENTS, sink, max(0, limit)))
    return events if events and lead(tx, relay_task(sink), worker, lease_ms) else ()


def remove_events(tx: SqliteTransaction, sink: str, events: Sequence[Event]) -> None:
    """Removes events that the sink has published."""
    tx.run(
        "DELETE FROM homing_sink_events WHERE sink = ? AND (id, at) IN"
        " (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?))",
        sink,
        encode([(event.id, event.at) for event in events]),
    )


def park_events(tx: SqliteTransaction, sink: str, events: Sequence[Event]) -> None:
    """Sets events aside that the sink refuses."""
    tx.run(
        "UPDATE homing_sink_events SET sink = ? WHERE sink = ? AND (id, at) IN"
        " (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?))",
        parked_name(sink),
        sink,
        encode([(event.id, event.at) for event in events]),
    )


def release_events(tx: SqliteTransaction, sink: str) -> int:
    """Returns the parked events of a sink to its outbox, and returns their number."""
    return tx.run("UPDATE homing_sink_events SET sink = ? WHERE sink = ?", sink, parked_name(sink))
