"""The workers that send heartbeats."""

from __future__ import annotations

from homing.core.ports.stores import FORGOTTEN_AFTER_MS, SeenWorker, WorkerHeartbeat
from homing.stores.common.codec import encode
from homing.stores.common.workers import decode_worker
from homing.stores.mongo.schema import WORKERS
from homing.stores.mongo.transaction import MongoTransaction

_FIELDS = SeenWorker.__struct_fields__


async def worker_seen(tx: MongoTransaction, beat: WorkerHeartbeat) -> None:
    """Stores the heartbeat of a worker."""
    stored = {
        "name": beat.name,
        "version": beat.version,
        "lanes": encode(beat.lanes),
        "providers": encode(beat.providers),
        "draining": beat.draining,
        "started_at": tx.now - beat.running_ms,
        "seen_at": tx.now,
    }
    await tx.db.update(WORKERS, {"_id": beat.name}, {"$set": stored}, upsert=True)


async def worker_gone(tx: MongoTransaction, name: str) -> None:
    """Removes a worker."""
    await tx.db.delete(WORKERS, {"_id": name})


async def workers(tx: MongoTransaction) -> tuple[SeenWorker, ...]:
    """Returns all workers, by name."""
    found = await tx.db.find(WORKERS, {}, sort=(("_id", 1),))
    return tuple(decode_worker([one[name] for name in _FIELDS]) for one in found)


async def forget_workers(tx: MongoTransaction) -> None:
    """Removes workers that died long ago."""
    await tx.db.delete(WORKERS, {"seen_at": {"$lte": tx.now - FORGOTTEN_AFTER_MS}})
