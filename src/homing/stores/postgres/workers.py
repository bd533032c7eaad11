"""The workers that send heartbeats."""

from __future__ import annotations

from homing.core.ports.stores import FORGOTTEN_AFTER_MS, SeenWorker, WorkerHeartbeat
from homing.stores.common.codec import encode
from homing.stores.common.workers import decode_worker
from homing.stores.postgres.statements import PostgresTransaction

_UPSERT_WORKER = """
INSERT INTO homing.workers (name, version, lanes, providers, draining, started_at, seen_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (name) DO UPDATE SET version = excluded.version, lanes = excluded.lanes,
  providers = excluded.providers, draining = excluded.draining, started_at = excluded.started_at,
  seen_at = excluded.seen_at
"""

_FORGET_WORKERS = """
DELETE FROM homing.workers WHERE name = ANY(ARRAY(
  SELECT name FROM homing.workers WHERE seen_at <= $1 FOR UPDATE SKIP LOCKED))
"""

_WORKERS = """
SELECT name, version, lanes, providers, draining, started_at, seen_at FROM homing.workers ORDER BY name
"""


async def worker_seen(tx: PostgresTransaction, beat: WorkerHeartbeat) -> None:
    """Stores the heartbeat of a worker."""
    await tx.run(
        _UPSERT_WORKER,
        beat.name,
        beat.version,
        encode(beat.lanes),
        encode(beat.providers),
        beat.draining,
        tx.now - beat.running_ms,
        tx.now,
    )


async def worker_gone(tx: PostgresTransaction, name: str) -> None:
    """Removes a worker."""
    await tx.run("DELETE FROM homing.workers WHERE name = $1", name)


async def workers(tx: PostgresTransaction) -> tuple[SeenWorker, ...]:
    """Returns all workers, by name."""
    return tuple(map(decode_worker, await tx.rows(_WORKERS)))


async def forget_workers(tx: PostgresTransaction) -> None:
    """Removes workers that died long ago. Leaves out one whose heartbeat is being written."""
    await tx.run(_FORGET_WORKERS, tx.now - FORGOTTEN_AFTER_MS)
