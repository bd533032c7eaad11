"""A MongoDB database as the source or the target of a copy.

The SQL stores know a notification by a number. A target keeps the numbers of the source in a collection of
its own until the copy is complete. A source numbers the notifications in the order of their ids.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from msgspec import convert, json
from pymongo import InsertOne, UpdateOne

from homing.core.errors import StoreError
from homing.stores.common.change_effects import (
    GOAL_KEY,
    GOAL_SUMS,
    MINUTE_KEY,
    MINUTE_SUMS,
    ROLL_UP_KEY,
    SUMS,
)
from homing.stores.common.codec import (
    ATTEMPT_FIELDS,
    CAUSE_FIELDS,
    StoredAttempt,
    StoredCause,
    decode_ids,
    decode_message,
    encode,
)
from homing.stores.common.copy import COPY_PARTS, NOTIFICATIONS, CopyPart, CopyProgress, Key, Record
from homing.stores.common.sinks import join_events, parked_name, split_events
from homing.stores.mongo import schema
from homing.stores.mongo.change_recorder import GOAL, MINUTE, ROLL_UP, TALLY, uncounted_leases
from homing.stores.mongo.connection import MongoConnection
from homing.stores.mongo.documents import (
    Document,
    attempt_document,
    cause_document,
    message_document,
    read_rows,
    row_document,
)
from homing.stores.mongo.schema import COPY_ID, META, META_ID
from homing.stores.mongo.transaction import MongoTransaction, SessionDatabase, both

_SEQS = "copied_seqs"
"""Collection with the id of each copied notification, by its number in the source."""

_COUNTERS = {
    "tallies": (TALLY, ("tenant", "status", "attempts"), ("count", "purged")),
    "roll_ups": (ROLL_UP, ROLL_UP_KEY, SUMS),
    "minute_roll_ups": (MINUTE, MINUTE_KEY, MINUTE_SUMS),
    "goals": (GOAL, GOAL_KEY, GOAL_SUMS),
}
"""Name of a part → kind of its counters, their key, and their sums."""

_KEY_ORDER = {GOAL: ("tenant", "hour_at", "mode")}
"""Order of the fields in the key of a counter, if it is not that of the part."""

_NOT_DATA = frozenset(
    {META, schema.TURNS, schema.LEADS, schema.BUCKETS, schema.WORKERS, schema.WAKE_UPS, schema.SINKS_SEEN}
)

_decode_key = json.Decoder(tuple[str | int, ...]).decode


class MongoCopyTarget:
    """A `CopyTarget` that writes to MongoDB.

    `open` creates the collections. Workers cannot open the store until the copy is complete.
    """

    def __init__(self, url: str) -> None:
        self._connection = MongoConnection(url)
        self.where = self._connection.where

    async def open(self) -> None:
        await self._connection.open(lambda: schema.check_version(self._connection.database, self.where))
        migrating = schema.migrate(self._connection.database, self.where, create=True)
        await self._connection.outside(migrating, timed=False)

    async def close(self) -> None:
        await self._connection.close()

    async def begin(self, source: str) -> Mapping[str, CopyProgress] | None:
        async def begin(tx: MongoTransaction) -> Mapping[str, CopyProgress] | None:
            found = await tx.db.find(META, {"_id": COPY_ID})
            if found and found[0]["source"] == source:
                parts = found[0]["parts"]
                progress = {
                    name: CopyProgress(_decode_key(one["after"]), one["number"])
                    for name, one in parts.items()
                }
                return None if found[0]["ended"] else progress
            if found and not found[0]["ended"]:
                raise StoreError(
                    f"{self.where} holds an incomplete copy of another source, or the source has changed "
                    "since that copy began. Stop all workers and senders, drop the database and copy again."
                )
            await self._refuse_other_data(tx)
            await tx.db.update(META, {"_id": META_ID}, {"$set": {"sinks": []}})
            state = {"source": source, "ended": False, "parts": {}}
            await tx.db.update(META, {"_id": COPY_ID}, {"$set": state}, upsert=True)
            return {}

        return await self._connection.write(begin)

    async def take(self, part: CopyPart, records: Sequence[Record], progress: CopyProgress) -> None:
        place = f"parts.{part.name}"
        stored = {"after": encode(progress.after), "number": progress.number}

        async def write(tx: MongoTransaction) -> None:
            # Updated first, because two copies at once would otherwise both insert the page.
            earlier = {"_id": COPY_ID, f"{place}.number": {"$not": {"$gte": progress.number}}}
            if not await tx.db.update(META, earlier, {"$set": {place: stored}}):
                raise StoreError(f"Another copy to {self.where} is in progress; stop one of them.")
            await _write_part(tx, part, records)

        await self._connection.write(write)

    async def counts(self) -> Mapping[str, int]:
        counting = _counts(SessionDatabase(self._connection.database))
        return await self._connection.outside(counting, timed=False)

    async def end(self, source: str) -> None:
        meta = SessionDatabase(self._connection.database)
        ended = {"$set": {"ended": True, "parts": {}}}
        await self._connection.outside(meta.update(META, {"_id": COPY_ID}, ended))
        await self._connection.outside(self._connection.database.drop_collection(_SEQS))

    async def _refuse_other_data(self, tx: MongoTransaction) -> None:
        leads = await tx.db.find(schema.LEADS, {"lead_until": {"$gt": tx.now}}, limit=1)
        if leads:
            raise StoreError(
                f"{self.where} is in use by {leads[0]['worker']}. Stop its workers and copy again."
            )
        for name in schema.COLLECTIONS:
            if name not in _NOT_DATA and await tx.db.find(name, {}, fields=("_id",), limit=1):
                raise StoreError(
                    f"{self.where} already holds data ({name}). A copy needs an empty store; name another "
                    "database."
                )


async def _write_part(tx: MongoTransaction, part: CopyPart, records: Sequence[Record]) -> None:
    if part is NOTIFICATIONS:
        await _write_notifications(tx, records)
    elif part.name in ("attempts", "causes"):
        await _write_history(tx, part, records)
    elif part.name == "sinks":
        await _write_sinks(tx, part, records)
    else:
        named = [dict(zip(part.fields, record, strict=True)) for record in records]
        collection, document = _DOCUMENTS[part.name]
        await tx.db.insert(collection, [document(part, one) for one in named])


async def _write_notifications(tx: MongoTransaction, records: Sequence[Record]) -> None:
    rows, messages, seqs = [], [], []
    for seq, row, text in records:
        document = message_document(row.tenant, row.batch_id, row.address, row.id, decode_message(text))
        rows.append(row_document(row))
        # The text is kept as it is, even if this release cannot read it.
        messages.append({**document, "message": text})
        seqs.append({"_id": seq, "id": row.id})
    await tx.db.insert(schema.NOTIFICATIONS, rows)
    await tx.db.insert(schema.MESSAGES, messages)
    await tx.db.insert(_SEQS, seqs)


async def _write_history(tx: MongoTransaction, part: CopyPart, records: Sequence[Record]) -> None:
    """Writes attempts or causes."""
    seqs = sorted({record[0] for record in records})
    ids = {one["_id"]: one["id"] for one in await tx.db.find(_SEQS, {"_id": {"$in": seqs}})}
    documents = []
    for seq, change, *values in records:
        if part.name == "attempts":
            *fields, rank = values
            attempt = convert(fields, StoredAttempt, strict=False)
            documents.append({**attempt_document(ids[seq], change, attempt), "receipt_rank": rank})
        else:
            documents.append(cause_document(ids[seq], change, convert(values, StoredCause, strict=False)))
    await tx.db.insert(schema.ATTEMPTS if part.name == "attempts" else schema.CAUSES, documents)


async def _write_sinks(tx: MongoTransaction, part: CopyPart, records: Sequence[Record]) -> None:
    seen, sinks = [], []
    for record in records:
        sink = dict(zip(part.fields, record, strict=True))
        seen.append({"_id": sink["name"], "last_seen_at": sink.pop("last_seen_at")})
        sinks.append(
            {**sink, "events": sorted(split_events(sink["events"])), "durable": bool(sink["durable"])}
        )
    await tx.db.bulk_write(META, [UpdateOne({"_id": META_ID}, {"$push": {"sinks": {"$each": sinks}}})])
    await tx.db.bulk_write(schema.SINKS_SEEN, [InsertOne(one) for one in seen])


def _keyed(part: CopyPart, record: Document) -> Document:
    """Returns the document of a record that is known by the fields of its key."""
    return {"_id": encode(tuple(record[name] for name in part.key)), **record}


def _request(part: CopyPart, record: Document) -> Document:
    return {**_keyed(part, record), "ids": list(decode_ids(record["ids"]))}


def _receipt(part: CopyPart, record: Document) -> Document:
    order, kept = record.pop("number"), record.pop("kept")
    document = {"_id": encode((record["provider"], record["event_id"])), **record, "order": order}
    return document if kept is None else {**document, "kept": kept}


def _sink_event(part: CopyPart, record: Document) -> Document:
    order, sink = record.pop("number"), record["sink"].removeprefix(parked_name(""))
    return {"_id": encode((sink, record["id"])), **record, "order": order}


def _counter(part: CopyPart, record: Document) -> Document:
    kind, key, _ = _COUNTERS[part.name]
    place = tuple(record[name] for name in _KEY_ORDER.get(kind, key))
    return {"_id": encode((0, kind, *place)), "kind": kind, **record}


def _breaker(part: CopyPart, record: Document) -> Document:
    return {"_id": record.pop("provider"), **record}


def _refuse(part: CopyPart, record: Document) -> Document:
    raise StoreError(
        "The source has events that an older release wrote. Run a worker of this release on it until they "
        "are published, and copy again."
    )


_DOCUMENTS: dict[str, tuple[str, Callable[[CopyPart, Document], Document]]] = {
    "requests": (schema.REQUESTS, _request),
    "dedups": (schema.DEDUPS, _keyed),
    "receipts": (schema.RECEIPTS, _receipt),
    "outbox": (schema.SINK_EVENTS, _refuse),
    "sink_events": (schema.SINK_EVENTS, _sink_event),
    "tallies": (schema.COUNTERS, _counter),
    "roll_ups": (schema.COUNTERS, _counter),
    "minute_roll_ups": (schema.COUNTERS, _counter),
    "goals": (schema.COUNTERS, _counter),
    "registry": (schema.REGISTRY, _keyed),
    "breakers": (schema.BREAKERS, _breaker),
}
"""Name of a part → its collection, and the function that returns the document of a record."""


async def _counts(db: SessionDatabase) -> dict[str, int]:
    """Returns the number of records per part name."""
    counted = {}
    for part in COPY_PARTS:
        if part.name == "sinks":
            [meta] = await db.find(META, {"_id": META_ID}, fields=("sinks",))
            counted[part.name] = len(meta.get("sinks", ()))
        elif part.name == "outbox":
            counted[part.name] = 0
        elif part.name in _COUNTERS:
            counted[part.name] = len(await _counter_records(db, part))
        else:
            found = await db.aggregate(_collection(part), ({"$count": "count"},))
            counted[part.name] = int(found[0]["count"]) if found else 0
    return counted


def _collection(part: CopyPart) -> str:
    """Returns the collection with one document per record of a part."""
    return {
        "notifications": schema.NOTIFICATIONS,
        "attempts": schema.ATTEMPTS,
        "causes": schema.CAUSES,
    }.get(part.name) or _DOCUMENTS[part.name][0]


async def _counter_records(db: SessionDatabase, part: CopyPart) -> list[Record]:
    """Returns the sums of a part, in the order of their keys. Each is the total of all its documents."""
    kind, key, sums = _COUNTERS[part.name]
    found = await db.aggregate(
        schema.COUNTERS,
        (
            {"$match": {"kind": kind}},
            {
                "$group": {
                    "_id": {name: f"${name}" for name in key},
                    **{name: {"$sum": f"${name}"} for name in sums},
                }
            },
        ),
    )
    records: dict[tuple[Any, ...], list[int]] = {
        tuple(one["_id"][name] for name in key): [one.get(name, 0) for name in sums] for one in found
    }
    if kind == TALLY:
        for cell, number in (await uncounted_leases(db, {})).items():
            records.setdefault(cell, [0] * len(sums))[0] += number
    return [(*place, *values) for place, values in sorted(records.items())]


class MongoCopySource:
    """A `CopySource` that reads a MongoDB database. It writes nothing.

    MongoDB keeps a snapshot for five minutes only. So the reads see what a majority has, and the copy
    compares the fingerprint at its end.
    """

    def __init__(self, url: str) -> None:
        self._connection = MongoConnection(url)
        self.where = self._connection.where
        self._ids: list[str] | None = None
        self._counters: dict[str, list[Record]] = {}
        self._cursors: dict[str, tuple[int, AsyncIterator[Document]]] = {}
        """Name of a part → (number of records read, the records that follow)."""

    async def open(self) -> None:
        await self._connection.open(self._check_layout)

    async def _check_layout(self) -> None:
        database = self._connection.database
        await schema.check_version(database, self.where)
        await schema.check_complete(database, self.where)
        if await schema.read_version(database) != schema.SCHEMA_VERSION:
            raise StoreError(
                f"{self.where} has another layout; run `homing db migrate --store {self.where}` first."
            )

    async def close(self) -> None:
        await self._connection.close()

    @property
    def _db(self) -> SessionDatabase:
        return SessionDatabase(self._connection.database)

    async def identity(self) -> str:
        return await self._connection.outside(self._identity(), timed=False)

    async def _identity(self) -> str:
        rows = await self._db.aggregate(
            schema.NOTIFICATIONS,
            (
                {
                    "$group": {
                        "_id": None,
                        "count": {"$sum": 1},
                        "changes": {"$sum": "$changes"},
                        "first": {"$min": "$_id"},
                        "last": {"$max": "$_id"},
                    }
                },
            ),
        )
        entries = await self._db.aggregate(
            schema.REGISTRY, ({"$group": {"_id": None, "versions": {"$sum": "$version"}}},)
        )
        numbers = await _counts(self._db)
        return encode((rows, entries, numbers["requests"], numbers["receipts"]))

    async def active_workers(self) -> tuple[str, ...]:
        now = await self._connection.now_ms()
        leased, leads = await self._connection.outside(
            both(
                self._db.find(
                    schema.NOTIFICATIONS, {"lease_until": {"$gt": now}}, fields=("worker",), limit=1000
                ),
                self._db.find(schema.LEADS, {"lead_until": {"$gt": now}}, fields=("worker",)),
            )
        )
        return tuple(sorted({one["worker"] for one in (*leased, *leads)}))

    async def counts(self) -> Mapping[str, int]:
        return await self._connection.outside(_counts(self._db), timed=False)

    async def page(self, part: CopyPart, after: Key | None, limit: int) -> Sequence[Record]:
        return await self._connection.outside(self._page(part, after, limit), timed=False)

    async def _page(self, part: CopyPart, after: Key | None, limit: int) -> Sequence[Record]:
        if part is NOTIFICATIONS:
            return await self._notifications(after[0] if after else 0, limit)
        if part.name in ("attempts", "causes"):
            return await self._history(part, after, limit)
        if part.name in ("receipts", "sink_events"):
            return await self._numbered(part, after[0] if after else 0, limit)
        if part.name == "outbox":
            return ()
        if part.name == "sinks":
            return await self._sinks() if after is None else ()
        if part.name in _COUNTERS:
            return await self._counted(part, after, limit)
        return await self._keyed(part, after, limit)

    async def _all_ids(self) -> list[str]:
        """Returns the ids of all notifications in their order. The number of one is its place, from 1."""
        if self._ids is None:
            found = await self._db.find(schema.NOTIFICATIONS, {}, fields=("_id",), sort=(("_id", 1),))
            self._ids = [one["_id"] for one in found]
        return self._ids

    async def _notifications(self, done: int, limit: int) -> Sequence[Record]:
        chosen = {"_id": {"$in": (await self._all_ids())[done : done + limit]}}
        rows = read_rows(await self._db.find(schema.NOTIFICATIONS, chosen, sort=(("_id", 1),)))
        texts = {one["_id"]: one["message"] for one in await self._db.find(schema.MESSAGES, chosen)}
        return [(number, row, texts[row.id]) for number, row in enumerate(rows, done + 1)]

    async def _history(self, part: CopyPart, after: Key | None, limit: int) -> Sequence[Record]:
        ids = await self._all_ids()
        cursor = self._connection.database[_collection(part)].find({}).hint("of").limit(limit)
        if after is not None:
            cursor = cursor.min([("of", ids[after[0] - 1]), ("change", after[1] + 1)])
        fields = (*ATTEMPT_FIELDS, "receipt_rank") if part.name == "attempts" else CAUSE_FIELDS
        return [
            (bisect_left(ids, one["of"]) + 1, one["change"], *(one.get(name) for name in fields))
            for one in await cursor.to_list()
        ]

    async def _numbered(self, part: CopyPart, done: int, limit: int) -> Sequence[Record]:
        """Returns records that the SQL stores number in the order of their arrival."""
        read, following = self._cursors.get(part.name, (-1, None))
        if following is None or read != done:
            order = ["received_at"] if part.name == "receipts" else ["sink"]
            cursor = self._connection.database[_collection(part)].find({}, allow_disk_use=True)
            following = aiter(cursor.sort([*order, "order", "_id"]).skip(done))
        records: list[Record] = []
        while len(records) < limit and (one := await anext(following, None)) is not None:
            records.append((done + len(records) + 1, *(one.get(name) for name in part.rest)))
        self._cursors[part.name] = (done + len(records), following)
        return records

    async def _sinks(self) -> Sequence[Record]:
        [meta] = await self._db.find(META, {"_id": META_ID}, fields=("sinks",))
        seen = {one["_id"]: one["last_seen_at"] for one in await self._db.find(schema.SINKS_SEEN, {})}
        return sorted(
            (
                one["name"],
                one["kind"],
                join_events(one["events"]),
                one["durable"],
                one["registered_at"],
                seen.get(one["name"], one["registered_at"]),
            )
            for one in meta.get("sinks", ())
        )

    async def _counted(self, part: CopyPart, after: Key | None, limit: int) -> Sequence[Record]:
        if part.name not in self._counters:
            self._counters[part.name] = await _counter_records(self._db, part)
        records = self._counters[part.name]
        first = 0
        if after is not None:
            first = bisect_left(records, (*after, float("inf")), key=lambda one: (*one[: len(part.key)], 0))
        return records[first : first + limit]

    async def _keyed(self, part: CopyPart, after: Key | None, limit: int) -> Sequence[Record]:
        beyond: Document = {}
        if after is not None:
            beyond = {"_id": {"$gt": after[0] if part.name == "breakers" else encode(after)}}
        found = await self._db.find(_collection(part), beyond, sort=(("_id", 1),), limit=limit)
        return [tuple(_plain_value(part, one, name) for name in part.fields) for one in found]


def _plain_value(part: CopyPart, document: Document, name: str) -> Any:
    if part.name == "breakers" and name == "provider":
        return document["_id"]
    return encode(document[name]) if name == "ids" else document[name]
