"""The collections and their indexes, and the version of this layout."""

from __future__ import annotations

from typing import Any

from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.errors import CollectionInvalid, OperationFailure

from homing.core.errors import SchemaError

SCHEMA_VERSION = 2
"""Version of the layout that this release writes."""

OLDEST_COMPATIBLE = 2
"""Oldest layout version that a release must know to work on this one."""

META = "meta"
"""Collection with one document: the layout's version, the registered sinks, and a suspected clock step."""

META_ID = "homing"

COPY_ID = "copy"
"""Key of another document in it, with the progress of `homing db copy` to this database."""

NOTIFICATIONS, MESSAGES, ATTEMPTS, CAUSES = "notifications", "messages", "attempts", "causes"
REQUESTS, DEDUPS, RECEIPTS = "requests", "dedups", "receipts"
SINK_EVENTS, SINKS_SEEN = "sink_events", "sinks_seen"
COUNTERS, TURNS = "counters", "turns"
REGISTRY, BREAKERS, BUCKETS, LEADS, WORKERS = "registry", "breakers", "buckets", "leads", "workers"
WAKE_UPS = "wake_ups"

COLLECTIONS = (
    *(META, NOTIFICATIONS, MESSAGES, ATTEMPTS, CAUSES, REQUESTS, DEDUPS, RECEIPTS),
    *(SINK_EVENTS, SINKS_SEEN, COUNTERS, TURNS, REGISTRY, BREAKERS, BUCKETS, LEADS, WORKERS),
    WAKE_UPS,
)

_WHERE_WAITING = {"queue": {"$exists": True}}

_NAMESPACE_EXISTS = 48
"""Error code of the server: another process has just created the collection."""

_INDEX_NOT_FOUND = 27
"""Error code of the server: another process has just dropped the index."""

_IS_SHARD_KEY = 373
"""Error code of the server: the collection is sharded by the fields of this index."""


def _index(*fields: str, name: str, where: dict[str, Any] | None = None, unique: bool = False) -> IndexModel:
    keys = [(one.lstrip("-"), DESCENDING if one.startswith("-") else ASCENDING) for one in fields]
    options: dict[str, Any] = {"name": name}
    if where is not None:
        options["partialFilterExpression"] = where
    if unique:
        options["unique"] = True
    return IndexModel(keys, **options)


INDEXES: dict[str, tuple[IndexModel, ...]] = {
    NOTIFICATIONS: (
        _index("queue", "due_at", "_id", name="due", where=_WHERE_WAITING),
        _index("tenant", "due_at", "_id", name="due_of_tenant", where=_WHERE_WAITING),
        _index("lease_until", name="lease", where={"lease_until": {"$exists": True}}),
        _index("deadline_at", name="deadline", where={"deadline_at": {"$exists": True}}),
        _index("rare", "tenant", "_id", name="rare", where={"rare": {"$exists": True}}),
        _index("status", "ended_at", name="ended", where={"ended_at": {"$exists": True}}),
    ),
    ATTEMPTS: (
        _index("of", "change", name="of"),
        _index(
            "provider",
            "provider_message_id",
            name="message",
            where={"provider_message_id": {"$exists": True}},
        ),
    ),
    CAUSES: (_index("of", "change", name="of"),),
    REQUESTS: (_index("created_at", name="age"),),
    DEDUPS: (_index("accepted_at", name="age"),),
    RECEIPTS: (
        _index("received_at", name="age"),
        _index("provider", "provider_message_id", name="kept_by_message", where={"kept": {"$exists": True}}),
        _index("notification_id", name="kept_by_notification", where={"kept": {"$exists": True}}),
    ),
    SINK_EVENTS: (
        _index("sink", "order", name="order"),
        _index("notification_id", "order", name="notification"),
        _index("at", name="age"),
    ),
    COUNTERS: (
        _index("kind", "tenant", "hour_at", name="kind"),
        _index("kind", "minute_at", "tenant", name="minute", where={"minute_at": {"$exists": True}}),
    ),
    MESSAGES: (
        _index("tenant", "_id", name="tenant"),
        _index("tenant", "batch_id", "_id", name="batch"),
        _index("tenant", "address", "_id", name="address"),
        _index("tenant", "metadata", "_id", name="metadata", where={"metadata": {"$exists": True}}),
        _index("recipient", "_id", name="recipient", where={"recipient": {"$exists": True}}),
    ),
    REGISTRY: (_index("tenant", "kind", "key", name="place", unique=True),),
    BUCKETS: (_index("at", name="age"),),
}


_STATIC_FIELDS_MOVED = 2
"""Version of the layout in which messages have the fields that never change."""

_MOVED_INDEXES = ("tenant", "batch", "address", "metadata")
"""Indexes of the rows in version 1 of the layout. They belong to the messages since."""


async def read_version(database: Any) -> int | None:
    """Returns the version of the layout, or None if the database has none."""
    found = await database[META].find_one({"_id": META_ID}, ["version"])
    return None if found is None else int(found["version"])


async def check_version(database: Any, where: str) -> None:
    """Raises `SchemaError` if this release is too old for the layout of the database."""
    found = await database[META].find_one({"_id": META_ID}, ["version", "runs_with"])
    if found is not None and int(found["runs_with"]) > SCHEMA_VERSION:
        raise SchemaError(
            f"{where} has layout version {found['version']}, which this version of Homing does not support. "
            "Upgrade Homing."
        )


async def check_complete(database: Any, where: str) -> None:
    """Raises `SchemaError` if `homing db copy` has not completed its copy to this database."""
    found = await database[META].find_one({"_id": COPY_ID}, ["ended"])
    if found is not None and not found["ended"]:
        raise SchemaError(
            f"{where} holds an incomplete copy. Run `homing db copy` again to resume it, or drop the "
            "database."
        )


async def migrate(database: Any, where: str, *, create: bool) -> tuple[str, ...]:
    """Creates missing collections and indexes, and returns the names of the applied steps."""
    version = await read_version(database)
    if version is None and not create:
        raise SchemaError(f"{where} has no collections of Homing yet. Run `homing db migrate` first.")
    if version is not None and version >= SCHEMA_VERSION and not await missing_indexes(database):
        return ()
    existing = set(await database.list_collection_names())
    for name in COLLECTIONS:
        if name not in existing:
            await _create(database, name)
    if version is not None and version < _STATIC_FIELDS_MOVED:
        await _move_static_fields(database)
    for name, indexes in INDEXES.items():
        await database[name].create_indexes(list(indexes))
    # Last, so that an interrupted migration is repeated.
    await database[META].update_one(
        {"_id": META_ID},
        {
            "$set": {"version": SCHEMA_VERSION, "runs_with": OLDEST_COMPATIBLE},
            "$setOnInsert": {"sinks": []},
        },
        upsert=True,
    )
    applied = ("0001_initial", "0002_static_fields_in_messages")
    return applied if version is None else applied[version:]


async def _move_static_fields(database: Any) -> None:
    """Copies the fields of rows that never change to their messages, for the indexes of version 2.

    Processes with version 1 must not run meanwhile. They are refused from now on.
    """
    await database[META].update_one({"_id": META_ID}, {"$set": {"runs_with": _STATIC_FIELDS_MOVED}})
    copying = [
        {"$project": {"tenant": 1, "batch_id": 1, "address": 1, "metadata": 1}},
        {"$merge": {"into": MESSAGES, "whenMatched": "merge", "whenNotMatched": "discard"}},
    ]
    await (await database[NOTIFICATIONS].aggregate(copying)).to_list()
    for name in set(await database[NOTIFICATIONS].index_information()) & set(_MOVED_INDEXES):
        try:
            await database[NOTIFICATIONS].drop_index(name)
        except OperationFailure as error:
            if error.code not in (_INDEX_NOT_FOUND, _IS_SHARD_KEY):
                raise


async def missing_indexes(database: Any) -> list[str]:
    """Returns the indexes that an interrupted migration or an operator has left out."""
    missing = []
    for collection, indexes in INDEXES.items():
        found = await database[collection].index_information()
        names = [index.document["name"] for index in indexes]
        missing += [f"{collection}.{name}" for name in names if name not in found]
    return missing


async def _create(database: Any, name: str) -> None:
    try:
        await database.create_collection(name)
    except CollectionInvalid:
        return
    except OperationFailure as error:
        if error.code != _NAMESPACE_EXISTS:
            raise
