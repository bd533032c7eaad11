"""The workers that send heartbeats."""

from __future__ import annotations

from homing.core.ports.stores import FORGOTTEN_AFTER_MS, SeenWorker, WorkerHeartbeat
from homing.stores.common.codec import encode
from homing.stores.common.workers import decode_worker
from homing.stores.sqlite.statements import SqliteTransaction

_UPSERT_WORKER = """
INSERT INTO homing_workers (name, version, lanes, providers, draining, started_at, seen_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT DO UPDATE SET version = excluded.version, lanes = excluded.lanes, providers = excluded.providers,
  draining = excluded.draining, started_at = excluded.started_at, seen_at = excluded.seen_at
"""

_WORKERS = """
SELECT name, version, lanes, providers, draining, started_at, seen_at FROM homing_workers ORDER BY name
"""


def worker_seen(tx: SqliteTransaction, beat: WorkerHeartbeat) -> None:
    """Stores the heartbeat of a worker."""
    tx.run(
        _UPSERT_WORKER,
        beat.name,
        beat.version,
        encode(beat.lanes),
        encode(beat.providers),
        int(beat.draining),
        tx.now - beat.running_ms,
        tx.now,
    )


def worker_gone(tx: SqliteTransaction, name: str) -> None:
    """Removes a worker."""
    tx.run("DELETE FROM homing_workers WHERE name = ?", name)


def workers(tx: SqliteTransaction) -> tuple[SeenWorker, ...]:
    """Returns all workers, by name."""
    return tuple(map(decode_worker, tx.cursor.execute(_WORKERS).fetchall()))


def forget_workers(tx: SqliteTransaction) -> None:
    """Removes workers that died long ago."""
    tx.run("DELETE FROM homing_workers WHERE seen_at <= ?", tx.now - FORGOTTEN_AFTER_MS)
