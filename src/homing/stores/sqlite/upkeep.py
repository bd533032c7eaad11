"""Maintenance: the removal of old data, and the size of the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import json

from homing.core.lifecycle.states import FINAL
from homing.core.ports.stores import Retention
from homing.core.routing.rate_limits import LONGEST_REFILL_MS, RECIPIENT_BUCKETS
from homing.stores.common.change_effects import MINUTE_KEY, MINUTES_KEPT_MS
from homing.stores.common.codec import encode
from homing.stores.common.sinks import LEGACY_KEPT_MS
from homing.stores.sqlite.migrations import read_schema_version
from homing.stores.sqlite.statements import SqliteTransaction, build_insert
from homing.stores.sqlite.workers import forget_workers

_OLD_ROWS = """
SELECT json_group_array(json_array(seq, tenant, attempts)) FROM (
  SELECT seq, tenant, attempts FROM homing_notifications INDEXED BY homing_final
  WHERE status = ?1 AND updated_at <= ?2 AND due_at IS NULL AND lease_until IS NULL
  ORDER BY updated_at LIMIT ?3)
"""

_RECORD_PURGED = build_insert(
    "homing_tallies",
    ("tenant", "status", "attempts", "count", "purged"),
    " ON CONFLICT DO UPDATE SET count = count + excluded.count, purged = purged + excluded.purged",
)

_DELETE_OLD_DEDUPS = """
DELETE FROM homing_dedups WHERE (tenant, dedup_key) IN (
  SELECT tenant, dedup_key FROM homing_dedups INDEXED BY homing_dedup_age
  WHERE accepted_at <= ?1 AND kept_until <= ?2 ORDER BY accepted_at LIMIT ?3)
"""

_NOTIFICATION_TABLES = ("homing_notifications", "homing_messages", "homing_attempts", "homing_causes")


_decode_old_rows = json.Decoder(list[tuple[int, str, int]]).decode


def prune(tx: SqliteTransaction, retention: Retention, limit: int) -> Mapping[str, int]:
    """Removes data that has exceeded its retention, at most `limit` records of each kind.

    Returns the number of removed records by kind. Unused queues, turns and buckets, and workers that died
    long ago, are also removed, but not counted.
    """
    keys_until = tx.now - retention.keys_ms
    keys = _delete_old(tx, "homing_requests", ("tenant", "idempotency_key"), "created_at", keys_until, limit)
    keys += tx.run(_DELETE_OLD_DEDUPS, keys_until, tx.now, max(0, limit - keys))
    receipts = _delete_old(tx, "homing_receipts", ("number",), "received_at", keys_until, limit)
    outbox = _delete_old(tx, "homing_sink_events", ("number",), "at", tx.now - retention.outbox_ms, limit)
    if tx.sinks.sinks:
        _delete_old(tx, "homing_outbox", ("number",), "at", tx.now - LEGACY_KEPT_MS, limit)
    _delete_unused(tx, limit)
    forget_workers(tx)
    _delete_old(tx, "homing_minute_roll_ups", MINUTE_KEY, "minute_at", tx.now - MINUTES_KEPT_MS, limit)
    notifications = _purge(tx, retention, limit)
    return {"notifications": notifications, "keys": keys, "receipts": receipts, "events": outbox}


def size(tx: SqliteTransaction, path: Path | None) -> Mapping[str, int]:
    """Returns the number of rows by kind, the bytes on disk including the WAL, and the schema version.

    If `path` is None, the database is in memory, and its bytes are those of its pages.
    """
    counts = {
        "notifications": "SELECT coalesce(sum(count), 0) FROM homing_tallies",
        "keys": "SELECT (SELECT count(*) FROM homing_requests) + (SELECT count(*) FROM homing_dedups)",
        "receipts": "SELECT count(*) FROM homing_receipts",
        "outbox": "SELECT count(*) FROM homing_sink_events",
    }
    return {
        **{name: tx.one(sql) for name, sql in counts.items()},
        "bytes": _bytes_in_memory(tx) if path is None else _bytes_on_disk(path),
        "schema_version": read_schema_version(tx.cursor),
    }


def _bytes_in_memory(tx: SqliteTransaction) -> int:
    pages: int = tx.one("PRAGMA page_count")
    page_bytes: int = tx.one("PRAGMA page_size")
    return pages * page_bytes


def _bytes_on_disk(path: Path) -> int:
    files = (path, path.with_name(path.name + "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


def _delete_unused(tx: SqliteTransaction, limit: int) -> None:
    """Removes queues without waiting rows, turns without queues, and recipients' full rate limit buckets.

    All of them are created again when they are needed.
    """
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


def _purge(tx: SqliteTransaction, retention: Retention, limit: int) -> int:
    removed: list[int] = []
    purged: dict[tuple[str, str, int], int] = {}
    for status in sorted(FINAL):
        until = tx.now - retention.age_ms(status)
        for seq, tenant, attempts in _decode_old_rows(
            tx.one(_OLD_ROWS, status.value, until, max(0, limit - len(removed)))
        ):
            removed.append(seq)
            cell = (tenant, status.value, attempts)
            purged[cell] = purged.get(cell, 0) + 1
    if removed:
        seqs = encode(removed)
        for table in _NOTIFICATION_TABLES:
            tx.run(f"DELETE FROM {table} WHERE seq IN (SELECT value FROM json_each(?))", seqs)  # noqa: S608
        _RECORD_PURGED.run(tx, [(*cell, -number, number) for cell, number in purged.items()])
    return len(removed)


def _delete_old(
    tx: SqliteTransaction, table: str, key: tuple[str, ...], age: str, until: int, limit: int
) -> int:
    columns = ", ".join(key)
    return tx.run(
        f"DELETE FROM {table} WHERE ({columns}) IN"  # noqa: S608
        f" (SELECT {columns} FROM {table} WHERE {age} <= ? ORDER BY {age} LIMIT ?)",
        until,
        max(0, limit),
    )
