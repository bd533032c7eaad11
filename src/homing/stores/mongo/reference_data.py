"""Registry entries, and the state that workers share: breakers, rate limit buckets and leader leases."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import json
from msgspec.structs import replace
from pymongo import ReplaceOne, UpdateOne

from homing.core.access.audit import reject_audit_rewrite
from homing.core.ports.stores import VOID_TERM_MS, Entry, TokenGrant, TokenRequest
from homing.core.routing import rate_limits
from homing.core.routing.breaker import Breaker
from homing.core.routing.rate_limits import TokenBucket
from homing.stores.common.codec import decode_value, encode
from homing.stores.mongo.documents import Document
from homing.stores.mongo.schema import BREAKERS, BUCKETS, LEADS, REGISTRY
from homing.stores.mongo.transaction import MongoTransaction

_decode_breaker = json.Decoder(Breaker).decode

_LAST_CHARACTER = "\U0010ffff"


async def get_many(tx: MongoTransaction, tenant: str, kind: str, keys: Collection[str]) -> dict[str, Entry]:
    """Returns the existing entries with these keys, by key."""
    places = [encode((tenant, kind, key)) for key in keys]
    found = await tx.db.find(REGISTRY, {"_id": {"$in": places}})
    return {entry.key: entry for entry in _entries(found)}


async def list_entries(
    tx: MongoTransaction, tenant: str, kind: str, prefix: str, after: str, limit: int
) -> tuple[Entry, ...]:
    """Returns entries whose key starts with `prefix` and follows `after`, in the order of their keys."""
    if limit <= 0:
        return ()
    condition: Document = {"$gt": after}
    if prefix:
        condition |= {"$gte": prefix, "$lt": prefix + _LAST_CHARACTER}
    found = await tx.db.find(
        REGISTRY,
        {"tenant": tenant, "kind": kind, "key": condition},
        sort=(("key", 1),),
        limit=limit,
    )
    return _entries(found)


async def put(tx: MongoTransaction, entries: Sequence[Entry], who: str) -> tuple[Entry, ...] | None:
    """Writes all entries and returns them. If the version of one has changed, writes none and returns None.

    An entry with version -1 is written unconditionally.
    """
    places = [encode((entry.tenant, entry.kind, entry.key)) for entry in entries]
    found = await tx.db.find(REGISTRY, {"_id": {"$in": places}}, fields=("version",))
    versions = {one["_id"]: int(one["version"]) for one in found}
    written: list[Entry] = []
    newest: dict[str, Entry] = {}
    for entry, place in zip(entries, places, strict=True):
        reject_audit_rewrite(entry.kind, entry.version)
        version = versions.get(place, 0)
        if entry.version not in (version, -1):
            return None
        versions[place] = version + 1
        newest[place] = replace(entry, version=version + 1, updated_at=tx.now, updated_by=who)
        written.append(newest[place])
    await tx.db.bulk_write(
        REGISTRY,
        [ReplaceOne({"_id": place}, _document(place, entry), upsert=True) for place, entry in newest.items()],
    )
    return tuple(written)


async def delete(tx: MongoTransaction, tenant: str, kind: str, keys: Sequence[str]) -> int:
    """Deletes entries and returns the number of those that existed."""
    reject_audit_rewrite(kind)
    places = [encode((tenant, kind, key)) for key in keys]
    return await tx.db.delete(REGISTRY, {"_id": {"$in": places}})


async def breakers(tx: MongoTransaction) -> dict[str, Breaker]:
    """Returns all breakers, by provider."""
    return {one["_id"]: _decode_breaker(one["breaker"]) for one in await tx.db.find(BREAKERS, {})}


async def put_breaker(tx: MongoTransaction, provider: str, breaker: Breaker) -> bool:
    """Writes the breaker and returns True, or returns False if its version is not the stored one."""
    found = await tx.db.find(BREAKERS, {"_id": provider}, fields=("version",))
    if breaker.version != (found[0]["version"] if found else 0):
        return False
    stored = replace(breaker, version=breaker.version + 1)
    value = {"version": stored.version, "breaker": encode(stored)}
    await tx.db.update(BREAKERS, {"_id": provider}, {"$set": value}, upsert=True)
    return True


async def take_tokens(tx: MongoTransaction, wants: Mapping[str, TokenRequest]) -> dict[str, TokenGrant]:
    """Takes tokens from the rate limit buckets, from each at most as many as requested."""
    found = await tx.db.find(BUCKETS, {"_id": {"$in": list(wants)}})
    there = {one["_id"]: TokenBucket(one["tokens"], one["at"]) for one in found}
    updates: list[UpdateOne] = []
    taken: dict[str, TokenGrant] = {}
    for key, want in wants.items():
        bucket = there.get(key) or rate_limits.full_bucket(want.limit, tx.now)
        bucket, granted, wait_ms = rate_limits.take_from_bucket(
            bucket, want.limit, tx.now, want.tokens, want.reserve
        )
        kept = {"tokens": float(bucket.tokens), "at": bucket.at}
        updates.append(UpdateOne({"_id": key}, {"$set": kept}, upsert=True))
        taken[key] = TokenGrant(granted, wait_ms, bucket.tokens)
    await tx.db.bulk_write(BUCKETS, updates)
    return taken


async def lead(tx: MongoTransaction, task: str, worker: str, for_ms: int) -> bool:
    """Acquires or renews the leader lease of a task. Returns False if another worker holds it."""
    found = await tx.db.find(LEADS, {"_id": task})
    ended = -1 if tx.settling else tx.now
    if found and found[0]["worker"] != worker:
        until = found[0]["lead_until"]
        if ended < until <= tx.now + for_ms + VOID_TERM_MS:
            return False
    term = {"worker": worker, "lead_until": tx.now + for_ms}
    await tx.db.update(LEADS, {"_id": task}, {"$set": term}, upsert=True)
    return True


def _document(place: str, entry: Entry) -> Document:
    return {
        "_id": place,
        "tenant": entry.tenant,
        "kind": entry.kind,
        "key": entry.key,
        "value": encode(entry.value),
        "version": entry.version,
        "updated_at": entry.updated_at,
        "updated_by": entry.updated_by,
    }


def _entries(found: Iterable[Document]) -> tuple[Entry, ...]:
    return tuple(
        Entry(
            tenant=one["tenant"],
            kind=one["kind"],
            key=one["key"],
            value=decode_value(one["value"]),
            version=one["version"],
            updated_at=one["updated_at"],
            updated_by=one["updated_by"],
        )
        for one in found
    )
