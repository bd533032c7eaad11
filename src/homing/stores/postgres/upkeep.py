"""Maintenance: the removal of old data, and the size of the store."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from homing.core.lifecycle.states import FINAL
from homing.core.ports.stores import Retention
from homing.core.routing.rate_limits import LONGEST_REFILL_MS, RECIPIENT_BUCKETS
from homing.stores.common.change_effects import HOUR_MS, MINUTES_KEPT_MS
from homing.stores.common.sinks import LEGACY_KEPT_MS
from homing.stores.postgres.change_recorder import fold_ledger
from homing.stores.postgres.migrations import read_schema_version
from homing.stores.postgres.statements import PostgresTransaction, transpose
from homing.stores.postgres.workers import forget_workers

log = logging.getLogger("homing.store")

PAST_AGE = """
SELECT seq, tenant, attempts FROM homing.settled
WHERE status = $1 AND updated_at <= $2
ORDER BY updated_at LIMIT $3 FOR UPDATE SKIP LOCKED
"""

_RECORD_PURGED = """
INSERT INTO homing.ledger (hour_at, tenant, channel, provider, before, attempts_before, number, purged)
SELECT $5, u.tenant, '', '', u.status, u.attempts, u.number, u.number
FROM unnest($1::text[], $2::text[], $3::integer[], $4::integer[]) AS u (tenant, status, attempts, number)
"""

_DELETE_FULL_BUCKETS = """
DELETE FROM homing.buckets WHERE key = ANY(ARRAY(
  SELECT key FROM homing.buckets WHERE key >= $1 AND key < $2 AND at < $3 LIMIT $4 FOR UPDATE SKIP LOCKED))
"""

_DELETE_OLD_DEDUPS = """
DELETE FROM homing.dedups WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM homing.dedups WHERE accepted_at <= $1 AND kept_until <= $2 ORDER BY accepted_at LIMIT $3
  FOR UPDATE SKIP LOCKED))
"""

# The driver sends a statement that it has not prepared yet in two parts. A process that is suspended in
# between is not idle for the server, and before PostgreSQL 17 no setting ends its session. A role may always
# end its own sessions.
_END_SILENT_SESSIONS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND application_name = 'homing'
  AND pid <> pg_backend_pid() AND state = 'active' AND wait_event = 'ClientRead'
  AND state_change < clock_timestamp() - $1::integer * interval '1 millisecond'
"""

# The waiting rows of each queue are found by the index for claims, without reading the other rows.
WITHOUT_QUEUE = """
WITH RECURSIVE w(queue) AS (
  (SELECT queue FROM homing.live WHERE due_at IS NOT NULL ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT n.queue FROM w CROSS JOIN LATERAL (
    SELECT l.queue FROM homing.live AS l WHERE l.due_at IS NOT NULL AND l.queue > w.queue
    ORDER BY l.queue LIMIT 1) AS n),
lost AS (
  SELECT l.seq FROM w CROSS JOIN LATERAL (
    SELECT l.seq FROM homing.live AS l WHERE l.queue = w.queue AND l.due_at IS NOT NULL LIMIT $1) AS l
  WHERE NOT EXISTS (SELECT 1 FROM homing.queues AS q WHERE q.id = w.queue)
  UNION ALL
  SELECT l.seq FROM homing.live AS l
  WHERE l.lease_until IS NOT NULL AND NOT EXISTS (SELECT 1 FROM homing.queues AS q WHERE q.id = l.queue))
SELECT seq FROM lost LIMIT $1
"""

_LOST_ROWS = """
FROM homing.live AS l JOIN homing.messages AS m ON m.seq = l.seq WHERE l.seq = ANY($1::bigint[])
"""

_ADD_QUEUES = f"""
INSERT INTO homing.queues (lane, tenant, outlet)
SELECT DISTINCT m.mode || '.' || m.channel, m.tenant, l.provider {_LOST_ROWS} ORDER BY 1, 2, 3
ON CONFLICT DO NOTHING
"""

_WRITE_QUEUES = f"""
UPDATE homing.live AS s SET queue = q.id
FROM (SELECT l.seq, l.queue, m.mode || '.' || m.channel AS lane, m.tenant, l.provider {_LOST_ROWS}) AS u
JOIN homing.queues AS q ON q.lane = u.lane AND q.tenant = u.tenant AND q.outlet = u.provider
WHERE s.seq = u.seq AND s.queue = u.queue
"""  # noqa: S608

_NOTIFICATION_TABLES = ("settled", "messages", "attempts", "causes")

_ROWS = {
    "notifications": "SELECT coalesce(sum(count), 0)::bigint FROM homing.all_tallies",
    "keys": "SELECT (SELECT count(*) FROM homing.requests) + (SELECT count(*) FROM homing.dedups)",
    "receipts": "SELECT count(*) FROM homing.receipts",
    "outbox": "SELECT count(*) FROM homing.sink_events",
}

_BYTES = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_class AS c WHERE c.relnamespace = to_regnamespace($1::text) AND c.relkind = 'r'
"""


async def prune(tx: PostgresTransaction, retention: Retention, limit: int) -> Mapping[str, int]:
    """Removes data that has exceeded its retention, at most `limit` records of each kind.

    Also folds the ledger, and removes full rate limit buckets of recipients and workers that died long ago.
    Returns the number of removed records by kind, without these two.
    """
    until = tx.now - retention.keys_ms
    keys = await _delete_old(tx, "requests", "created_at", until, limit)
    keys += await tx.run(_DELETE_OLD_DEDUPS, until, tx.now, max(0, limit - keys))
    receipts = await _delete_old(tx, "receipts", "received_at", until, limit)
    outbox = await _delete_old(tx, "sink_events", "at", tx.now - retention.outbox_ms, limit)
    if tx.sinks.sinks:
        await _delete_old(tx, "outbox", "at", tx.now - LEGACY_KEPT_MS, limit)
    notifications = await _purge(tx, retention, limit)
    await tx.run(_DELETE_FULL_BUCKETS, *RECIPIENT_BUCKETS, tx.now - LONGEST_REFILL_MS, max(0, limit))
    await forget_workers(tx)
    await _delete_old(tx, "minute_roll_ups", "minute_at", tx.now - MINUTES_KEPT_MS, limit)
    await restore_queues(tx, limit)
    await fold_ledger(tx)
    return {"notifications": notifications, "keys": keys, "receipts": receipts, "events": outbox}


async def end_silent_sessions(tx: PostgresTransaction, silence_ms: int) -> None:
    """Ends sessions whose process was suspended in the middle of a statement, because they may hold locks."""
    await tx.rows(_END_SILENT_SESSIONS, silence_ms)


async def restore_queues(tx: PostgresTransaction, limit: int) -> int:
    """Gives live rows without a queue the one of their lane, tenant and provider. Returns their number.

    No release writes such rows any more, but older ones did if a failover had lost the queue. Without a
    queue, a notification can be neither claimed nor read.
    """
    seqs = [seq for (seq,) in await tx.rows(WITHOUT_QUEUE, max(0, limit))]
    if seqs:
        await tx.run(_ADD_QUEUES, seqs)
        await tx.run(_WRITE_QUEUES, seqs)
        log.warning("%d notifications without a queue were given one", len(seqs))
    return len(seqs)


async def size(tx: PostgresTransaction) -> Mapping[str, int]:
    """Returns the number of rows by kind, the bytes of tables and indexes, and the schema version."""
    rows = {name: await tx.one(sql) for name, sql in _ROWS.items()}
    return {**rows, "bytes": await tx.one(_BYTES, tx.schema), "schema_version": await read_schema_version(tx)}


async def _purge(tx: PostgresTransaction, retention: Retention, limit: int) -> int:
    removed: list[int] = []
    purged: dict[tuple[str, str, int], int] = {}
    for status in sorted(FINAL):
        until = tx.now - retention.age_ms(status)
        past = await tx.rows(PAST_AGE, status.value, until, max(0, limit - len(removed)))
        for seq, tenant, attempts in past:
            removed.append(seq)
            cell = (tenant, status.value, attempts)
            purged[cell] = purged.get(cell, 0) + 1
    if removed:
        for table in _NOTIFICATION_TABLES:
            await tx.run(f"DELETE FROM homing.{table} WHERE seq = ANY($1::bigint[])", removed)  # noqa: S608
        cells = [(*cell, number) for cell, number in purged.items()]
        await tx.run(_RECORD_PURGED, *transpose(cells, 4), tx.now - tx.now % HOUR_MS)
    return len(removed)


async def _delete_old(tx: PostgresTransaction, table: str, age: str, until: int, limit: int) -> int:
    # Deleting by ctid is safe, because a locked row cannot be updated and so keeps its ctid.
    return await tx.run(
        f"DELETE FROM homing.{table} WHERE ctid = ANY(ARRAY("  # noqa: S608
        f" SELECT ctid FROM homing.{table} WHERE {age} <= $1 ORDER BY {age} LIMIT $2"
        " FOR UPDATE SKIP LOCKED))",
        until,
        max(0, limit),
    )
