"""Leases: writes the leases of claimed rows, takes over expired leases and extends current ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from secrets import token_hex
from typing import Any

from pymongo import DeleteMany, UpdateMany, UpdateOne

from homing.core.lifecycle.claims import Claim, ClaimBatch, ClaimRequest, Lease
from homing.core.lifecycle.outcomes import Settlement
from homing.core.lifecycle.rows import Row, claim_of, claims_of, extend, lease, reclaim
from homing.core.notifications import Message, Mode
from homing.stores.common.clock_guard import reclaim_bounds
from homing.stores.common.codec import StoredRow
from homing.stores.mongo.change_recorder import MongoChangeRecorder, messages_of
from homing.stores.mongo.documents import (
    COUNTED_AS,
    LEASED,
    Document,
    RowFields,
    by_id,
    changed_document,
    read_rows,
)
from homing.stores.mongo.schema import NOTIFICATIONS
from homing.stores.mongo.transaction import MongoTransaction, OutdatedRows, SessionDatabase

_MAX_CACHED = 20_000
"""Maximum number of cached documents, far more than are in flight."""

_SKIP_AFTER = 8
"""Number of tries with all rows. Other workers lease the same ones, but not as often as this."""

_EXTENDED_FIELDS = ("lease_until", "provider", "outlet", "failures_here", "started_at", "updated_at")


def row_version(row: Row) -> tuple[Any, ...]:
    """Returns what identifies the state of a row, before it is changed."""
    return (row.token, row.changes, row.worker, row.started_at)


def _unchanged(version: tuple[Any, ...]) -> dict[str, Any]:
    token, changes, worker, started_at = version
    return {"token": token, "changes": changes, "worker": worker, "started_at": started_at}


class ContestedRows:
    """The rows that a call has tried to lease, until it succeeds.

    A process that was killed inside a transaction keeps its rows for a minute, until the server ends the
    transaction. So a call leaves them out after some tries, or once the server has waited for such rows.
    """

    def __init__(self) -> None:
        self._tries = 0
        self._ids: set[str] = set()

    def begin_try(self) -> Collection[str]:
        """Begins a try, and returns the ids of the rows to leave out."""
        self._tries += 1
        return sorted(self._ids) if self._tries > _SKIP_AFTER else ()

    def leave_out(self) -> None:
        """Leaves out the rows of all tries from now on."""
        self._tries += _SKIP_AFTER

    def add(self, ids: Iterable[str]) -> None:
        """Notes the rows of this try."""
        self._ids.update(ids)


LeasedRow = tuple[Document, StoredRow]
"""The document of a leased row, and the row itself."""


class LeasedDocuments:
    """Cache of the rows that this process has leased, as they were after the claim, with their documents.

    It has the purpose of `LeasedRows`, whose docstring says why a settlement may use it.
    """

    def __init__(self) -> None:
        self._leased: dict[str, LeasedRow] = {}

    def keep(self, leased: Iterable[LeasedRow]) -> None:
        """Adds rows. If there are too many, the oldest are dropped until half are left."""
        self._leased.update({one[1].id: one for one in leased})
        if len(self._leased) > _MAX_CACHED:
            for id in list(islice(self._leased, len(self._leased) - _MAX_CACHED // 2)):
                del self._leased[id]

    def take(self, batch: Iterable[Settlement]) -> list[LeasedRow]:
        """Removes the rows of these settlements, and returns those with the same token."""
        found = ((self._leased.pop(one.id, None), one.token) for one in batch)
        return [leased for leased, token in found if leased and leased[1].token == token]


class RowRewrites:
    """Collects changed rows whose documents are known, and writes each as a whole.

    A document is deleted and inserted again. Within a transaction, that takes the server half the time of
    an update, which pays for every index of the collection. See ADR 61.
    """

    def __init__(self, fields: RowFields) -> None:
        self._fields = fields
        self._updates: dict[tuple[Any, ...], Document] = {}
        """The update of each set of new values. Many rows of a batch have the same."""
        self._removed: dict[tuple[Any, ...], list[str]] = {}
        self.rows: list[LeasedRow] = []
        """The documents and rows after the changes."""

    def add(self, row: StoredRow, version: tuple[Any, ...], found: Document) -> None:
        """Adds a changed row. `version` and `found` are its version and document before the change."""
        values = self._fields.values(row)
        if (update := self._updates.get(values)) is None:
            update = self._updates[values] = self._fields.update(values)
        self._removed.setdefault(version, []).append(row.id)
        self.rows.append((changed_document(found, update), row))

    async def write(self, tx: MongoTransaction) -> None:
        """Writes the rows. Raises `OutdatedRows` if one of them is in another state by now, or gone."""
        if not self.rows:
            return
        removals = [
            DeleteMany({"_id": {"$in": ids}, **_unchanged(version)}) for version, ids in self._removed.items()
        ]
        if await tx.db.bulk_write(NOTIFICATIONS, removals) != len(self.rows):
            raise OutdatedRows
        await tx.db.insert(NOTIFICATIONS, [document for document, _ in self.rows])


class NewLeases:
    """The leases of one claim, which are written without a transaction.

    Each row is leased only if it is in the state in which it was chosen. Two workers may choose the same
    rows, so some of the leases may not take place. See ADR 63.
    """

    def __init__(self, documents: Sequence[Document], request: ClaimRequest, now: int) -> None:
        """`documents` are those of the chosen rows."""
        self._id = token_hex(8)
        self._rows = {row.id: row for row in read_rows(documents)}
        self._documents: dict[str, Document] = {}
        self._updates: dict[tuple[Any, ...], tuple[Document, list[str]]] = {}
        """What rows have in common: their version and new values → the update and their ids."""
        changes: dict[tuple[Any, ...], Document] = {}
        for row, document in zip(self._rows.values(), documents, strict=True):
            counted = {"status": row.status.value, "attempts": row.attempts, "claim": self._id}
            version = row_version(row)
            lease(row, request.worker, request.lease_ms, now)
            values = LEASED.values(row)
            if (change := changes.get(values)) is None:
                change = changes[values] = LEASED.update(values)
            # Only fields that are there: the server takes time for each of them, in each row.
            dropped = tuple(filter(document.__contains__, change["$unset"]))
            place = (version, counted["status"], values, dropped)
            if place not in self._updates:
                update = {
                    "$set": change["$set"] | {COUNTED_AS: counted},
                    "$unset": dict.fromkeys(dropped, ""),
                }
                self._updates[place] = (update, [])
            update, ids = self._updates[place]
            ids.append(row.id)
            self._documents[row.id] = changed_document(document, update)

    @property
    def ids(self) -> AbstractSet[str]:
        """Ids of the chosen rows."""
        return self._rows.keys()

    async def write(self, db: SessionDatabase) -> int:
        """Writes the leases and returns how many took place."""
        return await db.bulk_write(
            NOTIFICATIONS,
            [
                UpdateMany({"_id": {"$in": ids}, **_unchanged(version)}, update)
                for (version, *_), (update, ids) in self._updates.items()
            ],
            ordered=False,
        )

    async def find(self, db: SessionDatabase) -> frozenset[str]:
        """Returns the ids of the rows whose lease took place."""
        chosen = {"_id": {"$in": list(self._rows)}, f"{COUNTED_AS}.claim": self._id}
        return frozenset(one["_id"] for one in await db.find(NOTIFICATIONS, chosen, fields=("_id",)))

    def rows(self, leased: Collection[str]) -> list[LeasedRow]:
        """Returns the leased rows with their documents."""
        return [(self._documents[id], self._rows[id]) for id in leased]

    def claims(
        self, leased: Collection[str], messages: Mapping[str, Message], due_times: Mapping[str, int]
    ) -> tuple[Claim, ...]:
        """Returns the claims of leased rows that have a message, in the order of `due_times`."""
        rows = [self._rows[id] for id in due_times if id in leased and id in messages]
        if not rows:
            return ()
        return claims_of(rows, [messages[row.id] for row in rows], [due_times[row.id] for row in rows])


async def reclaim_expired(
    tx: MongoTransaction,
    worker: str,
    limit: int,
    lease_ms: int,
    leased: list[LeasedRow],
    contested: ContestedRows,
) -> ClaimBatch:
    """Leases rows whose lease has expired and waiting rows whose deadline has passed, the earliest first.

    `leased` is filled with the leased rows.
    """
    documents = await _find_expired(tx, max(0, limit), contested.begin_try())
    contested.add(one["_id"] for one in documents)
    if not documents:
        return ClaimBatch(claims=(), now=tx.now, next_due_at=None)
    rows = read_rows(documents)
    messages = await messages_of(tx, [row.id for row in rows])
    recorder, rewrites, claims = MongoChangeRecorder(tx), RowRewrites(LEASED), []
    for row, document in zip(rows, documents, strict=True):
        version = row_version(row)
        due_at = row.started_at if row.due_at is None else row.due_at
        await recorder.record(reclaim(row, worker, lease_ms, tx.now))
        claims.append(claim_of(row, messages[row.id], due_at))
        rewrites.add(row, version, document)
    await rewrites.write(tx)
    await recorder.write()
    leased[:] = rewrites.rows
    return ClaimBatch(claims=tuple(claims), now=tx.now, next_due_at=None)


async def _find_expired(tx: MongoTransaction, limit: int, skipped: Collection[str]) -> list[Document]:
    if not limit:
        return []
    expired, after, leased_after = reclaim_bounds(tx.now, tx.settling)
    conditions: tuple[tuple[str, dict[str, Any]], ...] = (
        ("lease_until", {"lease_until": {"$lte": expired}}),
        ("lease_until", {"lease_until": {"$gt": after}, "updated_at": {"$gt": leased_after}}),
        ("deadline_at", {"deadline_at": {"$lte": tx.now}, "mode": {"$ne": Mode.SYNCHRONOUS.value}}),
    )
    found: dict[str, tuple[int, Document]] = {}
    for field, condition in conditions:
        if skipped:
            condition["_id"] = {"$nin": list(skipped)}
        for one in await tx.db.find(NOTIFICATIONS, condition, sort=((field, 1),), limit=limit):
            found.setdefault(one["_id"], (one[field], one))
    earliest = sorted(found.values(), key=lambda one: (one[0], one[1]["_id"]))
    return [document for _, document in earliest[:limit]]


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
