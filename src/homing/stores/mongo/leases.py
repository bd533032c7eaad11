"""Leases: writes the leases of claimed rows, takes over expired leases and extends current ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymongo import UpdateMany, UpdateOne

from homing.core.lifecycle.claims import Claim, ClaimBatch, ClaimRequest, Lease
from homing.core.lifecycle.rows import Change, Row, claim_of, claims_of, extend, lease, reclaim
from homing.core.notifications import Mode
from homing.core.routing.fair_share import DueRow
from homing.stores.common.clock_guard import reclaim_bounds
from homing.stores.common.codec import StoredRow
from homing.stores.common.leased_rows import SeqAndRow
from homing.stores.mongo.change_recorder import MongoChangeRecorder, messages_of
from homing.stores.mongo.documents import LEASED, RowFields, by_id, read_rows, seq_of
from homing.stores.mongo.schema import NOTIFICATIONS
from homing.stores.mongo.transaction import MongoTransaction, OutdatedRows

_EXTENDED_FIELDS = ("lease_until", "provider", "outlet", "failures_here", "started_at", "updated_at")


def row_version(row: Row) -> tuple[Any, ...]:
    """Returns what identifies the state of a row, before it is changed."""
    return (row.token, row.changes, row.worker, row.started_at)


def _unchanged(version: tuple[Any, ...]) -> dict[str, Any]:
    token, changes, worker, started_at = version
    return {"token": token, "changes": changes, "worker": worker, "started_at": started_at}


class RowUpdates:
    """Collects updates of rows. Equal updates of rows in the same state become one update."""

    def __init__(self, fields: RowFields) -> None:
        self._fields = fields
        self._groups: dict[tuple[tuple[Any, ...], tuple[Any, ...]], list[str]] = {}
        self._number = 0

    def add(self, row: Row, version: tuple[Any, ...]) -> None:
        """Adds a changed row. `version` is its version before the change."""
        self._groups.setdefault((version, self._fields.values(row)), []).append(row.id)
        self._number += 1

    async def write(self, tx: MongoTransaction) -> None:
        """Writes the rows. Raises `OutdatedRows` if one of them is in another state by now, or gone."""
        operations = [
            UpdateMany({"_id": {"$in": ids}, **_unchanged(version)}, self._fields.update(values))
            for (version, values), ids in self._groups.items()
        ]
        if await tx.db.bulk_write(NOTIFICATIONS, operations) != self._number:
            raise OutdatedRows


async def lease_rows(
    tx: MongoTransaction,
    due: Sequence[DueRow],
    ids: Sequence[str],
    request: ClaimRequest,
    leased: list[SeqAndRow],
) -> tuple[Claim, ...]:
    """Leases the chosen rows, if they are still due. `leased` is filled with the leased rows."""
    found = {
        row.id: row
        for row in read_rows(
            await tx.db.find(NOTIFICATIONS, {"_id": {"$in": list(ids)}, "due_at": {"$lte": tx.now}})
        )
    }
    rows = [(found[id], due_at) for (due_at, *_), id in zip(due, ids, strict=True) if id in found]
    if not rows:
        return ()
    messages = await messages_of(tx, list(found))
    recorder, updates = MongoChangeRecorder(tx), RowUpdates(LEASED)
    alike: dict[tuple[Any, ...], list[Change]] = {}
    for row, _ in rows:
        place = (row.tenant, row.channel, row.provider, row.status, row.attempts)
        version = row_version(row)
        alike.setdefault(place, []).append(lease(row, request.worker, request.lease_ms, tx.now))
        updates.add(row, version)
    for changes in alike.values():
        await recorder.record_all(changes[:1], len(changes))
    await updates.write(tx)
    await recorder.write()
    leased[:] = [(seq_of(row.id), row) for row, _ in rows]
    return claims_of(
        [row for row, _ in rows], [messages[row.id] for row, _ in rows], [due_at for _, due_at in rows]
    )


async def reclaim_expired(
    tx: MongoTransaction, worker: str, limit: int, lease_ms: int, leased: list[SeqAndRow]
) -> ClaimBatch:
    """Leases rows whose lease has expired and waiting rows whose deadline has passed, the earliest first.

    `leased` is filled with the leased rows.
    """
    rows = await _find_expired(tx, max(0, limit))
    if not rows:
        return ClaimBatch(claims=(), now=tx.now, next_due_at=None)
    messages = await messages_of(tx, [row.id for row in rows])
    recorder, updates, claims = MongoChangeRecorder(tx), RowUpdates(LEASED), []
    for row in rows:
        version = row_version(row)
        due_at = row.started_at if row.due_at is None else row.due_at
        await recorder.record(reclaim(row, worker, lease_ms, tx.now))
        claims.append(claim_of(row, messages[row.id], due_at))
        updates.add(row, version)
    await updates.write(tx)
    await recorder.write()
    leased[:] = [(seq_of(row.id), row) for row in rows]
    return ClaimBatch(claims=tuple(claims), now=tx.now, next_due_at=None)


async def _find_expired(tx: MongoTransaction, limit: int) -> list[StoredRow]:
    if not limit:
        return []
    expired, after, leased_after = reclaim_bounds(tx.now, tx.settling)
    conditions: tuple[tuple[str, dict[str, Any]], ...] = (
        ("lease_until", {"lease_until": {"$lte": expired}}),
        ("lease_until", {"lease_until": {"$gt": after}, "updated_at": {"$gt": leased_after}}),
        ("deadline_at", {"deadline_at": {"$lte": tx.now}, "mode": {"$ne": Mode.SYNCHRONOUS.value}}),
    )
    found: dict[str, tuple[int, StoredRow]] = {}
    for field, condition in conditions:
        for row in read_rows(await tx.db.find(NOTIFICATIONS, condition, sort=((field, 1),), limit=limit)):
            found.setdefault(row.id, (getattr(row, field), row))
    earliest = sorted(found.values(), key=lambda one: (one[0], one[1].id))
    return [row for _, row in earliest[:limit]]


async def extend_leases(tx: MongoTransaction, leases: Sequence[Lease], lease_ms: int) -> frozenset[str]:
    """Extends the leases whose token still matches and returns their ids."""
    found = by_id(await tx.db.find(NOTIFICATIONS, {"_id": {"$in": [one.id for one in leases]}}))
    held: dict[str, UpdateOne] = {}
    for one in leases:
        if one.id not in found:
            continue
        _, row = found[one.id]
        version = row_version(row)
        if extend(row, one, lease_ms, tx.now):
            changed = {name: getattr(row, name) for name in _EXTENDED_FIELDS}
            held[one.id] = UpdateOne({"_id": one.id, **_unchanged(version)}, {"$set": changed})
    if await tx.db.bulk_write(NOTIFICATIONS, list(held.values())) != len(held):
        raise OutdatedRows
    return frozenset(held)
