"""The outbox, what is past its age, and how big it all is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import json

from homing.core.model import Event, Retention
from homing.core.pacing import LONGEST_REFILL_MS, RECIPIENT_BUCKETS
from homing.core.states import FINAL
from homing.stores.codec import encode
from homing.stores.sqlite.schema import version_of
from homing.stores.sqlite.statements import Tx, insert

OUTBOX = """
SELECT json_group_array(json_object(
  'id', id, 'name', name, 'tenant', tenant, 'at', at, 'notificationId', notification_id,
  'payload', json(payload)))
FROM (SELECT * FROM homing_outbox WHERE lease_until <= ?1 ORDER BY number LIMIT ?2)
"""
_PAST_AGE = """
SELECT json_group_array(json_array(seq, tenant, attempts)) FROM (
  SELECT seq, tenant, attempts FROM homing_notifications INDEXED BY homing_final
  WHERE status = ?1 AND updated_at <= ?2 AND due_at IS NULL AND lease_until IS NULL
  ORDER BY updated_at LIMIT ?3)
"""
_PURGED = insert(
    "homing_tallies",
    ("tenant", "status", "attempts", "count", "purged"),
    " ON CONFLICT DO UPDATE SET count = count + excluded.count, purged = purged + excluded.purged",
)
_OF_NOTIFICATION = ("homing_notifications", "homing_messages", "homing_attempts", "homing_causes")

_decode_events = json.Decoder(tuple[Event, ...]).decode
_decode_past = json.Decoder(list[tuple[int, str, int]]).decode


def lease_events(tx: Tx, worker: str, limit: int, lease_ms: int) -> tuple[Event, ...]:
    """The oldest events that no relay holds, leased to this one."""
    events = _decode_events(tx.one(OUTBOX, tx.now, max(0, limit)))
    if events:
        tx.run(
            "UPDATE homing_outbox SET leased_to = ?, lease_until = ?"
            " WHERE id IN (SELECT value FROM json_each(?))",
            worker,
            tx.now + lease_ms,
            encode([event.id for event in events]),
        )
    return events


def remove_events(tx: Tx, ids: Sequence[str]) -> None:
    """Every sink has taken them."""
    tx.run("DELETE FROM homing_outbox WHERE id IN (SELECT value FROM json_each(?))", encode(list(ids)))


def prune(tx: Tx, retention: Retention, limit: int) -> Mapping[str, int]:
    """Removes what is past its age, at most `limit` of each kind."""
    keys_until = tx.now - retention.keys_ms
    keys = _forget(tx, "homing_requests", ("tenant", "idempotency_key"), "created_at", keys_until, limit)
    keys += _forget(tx, "homing_dedups", ("tenant", "dedup_key"), "accepted_at", keys_until, limit - keys)
    receipts = _forget(tx, "homing_receipts", ("number",), "received_at", keys_until, limit)
    _forget_idle(tx, limit)
    return {"notifications": _purge(tx, retention, limit), "keys": keys, "receipts": receipts}


def size(tx: Tx, path: Path) -> Mapping[str, int]:
    """Rows by kind, bytes on disk with what is not yet checkpointed, and the schema's version."""
    counts = {
        "notifications": "SELECT coalesce(sum(count), 0) FROM homing_tallies",
        "keys": "SELECT (SELECT count(*) FROM homing_requests) + (SELECT count(*) FROM homing_dedups)",
        "receipts": "SELECT count(*) FROM homing_receipts",
        "outbox": "SELECT count(*) FROM homing_outbox",
    }
    files = (path, path.with_name(path.name + "-wal"))
    return {
        **{name: tx.one(sql) for name, sql in counts.items()},
        "bytes": sum(file.stat().st_size for file in files if file.exists()),
        "schema_version": version_of(tx.cursor),
    }


def _forget_idle(tx: Tx, limit: int) -> None:
    """Who was served when matters only while there is something to serve; a full bucket says nothing."""
    tx.run(
        "DELETE FROM homing_queues WHERE (lane, tenant, outlet) IN"
        " (SELECT lane, tenant, outlet FROM homing_queues WHERE next_due_at IS NULL LIMIT ?)",
        max(0, limit),
    )
    tx.run(
        "DELETE FROM homing_buckets WHERE key IN"
        " (SELECT key FROM homing_buckets WHERE key >= ? AND key < ? AND at < ? LIMIT ?)",
        *RECIPIENT_BUCKETS,
        tx.now - LONGEST_REFILL_MS,
        max(0, limit),
    )
    tx.run(
        "DELETE FROM homing_turns WHERE (lane, tenant) IN"
        " (SELECT t.lane, t.tenant FROM homing_turns AS t WHERE NOT EXISTS"
        "   (SELECT 1 FROM homing_queues AS q WHERE q.lane = t.lane AND q.tenant = t.tenant) LIMIT ?)",
        max(0, limit),
    )


def _purge(tx: Tx, retention: Retention, limit: int) -> int:
    removed: list[int] = []
    purged: dict[tuple[str, str, int], int] = {}
    for status in sorted(FINAL):
        until = tx.now - retention.age_ms(status)
        for seq, tenant, attempts in _decode_past(
            tx.one(_PAST_AGE, status.value, until, max(0, limit - len(removed)))
        ):
            removed.append(seq)
            cell = (tenant, status.value, attempts)
            purged[cell] = purged.get(cell, 0) + 1
    if removed:
        seqs = encode(removed)
        for table in _OF_NOTIFICATION:
            tx.run(f"DELETE FROM {table} WHERE seq IN (SELECT value FROM json_each(?))", seqs)  # noqa: S608
        _PURGED.run(tx, [(*cell, -number, number) for cell, number in purged.items()])
    return len(removed)


def _forget(tx: Tx, table: str, key: tuple[str, ...], age: str, until: int, limit: int) -> int:
    columns = ", ".join(key)
    return tx.run(
        f"DELETE FROM {table} WHERE ({columns}) IN"  # noqa: S608
        f" (SELECT {columns} FROM {table} WHERE {age} <= ? ORDER BY {age} LIMIT ?)",
        until,
        max(0, limit),
    )
