"""Registry entries, and the state that workers share: breakers, rate limit buckets and leader leases."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import json
from msgspec.structs import replace

from homing.core.access.audit import reject_audit_rewrite
from homing.core.ports.stores import VOID_TERM_MS, Entry, TokenGrant, TokenRequest
from homing.core.routing import rate_limits
from homing.core.routing.breaker import Breaker
from homing.core.routing.rate_limits import TokenBucket
from homing.stores.common.codec import decode_value, encode
from homing.stores.postgres.statements import PostgresTransaction, Record, transpose

_ENTRY = "r.tenant, r.kind, r.key, r.value, r.version, r.updated_at, r.updated_by"

_GET_MANY = f"""
SELECT {_ENTRY} FROM homing.registry AS r
WHERE r.tenant = $1 AND r.kind = $2 AND r.key = ANY($3::text[])
"""  # noqa: S608

_LIST = f"""
SELECT {_ENTRY} FROM homing.registry AS r
WHERE r.tenant = $1 AND r.kind = $2 AND r.key >= $3 AND r.key > $4 AND starts_with(r.key, $3)
ORDER BY r.key LIMIT $5
"""  # noqa: S608

# A missing entry cannot be locked, so an empty one of version 0 is inserted first. The same transaction
# overwrites or deletes it.
_INSERT_EMPTY = """
INSERT INTO homing.registry (tenant, kind, key, value, version, updated_at, updated_by)
SELECT p.*, '{}', 0, 0, '' FROM unnest($1::text[], $2::text[], $3::text[]) AS p
ON CONFLICT (tenant, kind, key) DO NOTHING
"""

_LOCK = """
SELECT r.tenant, r.kind, r.key, r.version
FROM unnest($1::text[], $2::text[], $3::text[]) AS p (tenant, kind, key)
JOIN homing.registry AS r ON r.tenant = p.tenant AND r.kind = p.kind AND r.key = p.key
ORDER BY r.tenant, r.kind, r.key
FOR UPDATE OF r
"""

_DELETE_EMPTY = """
DELETE FROM homing.registry AS r USING unnest($1::text[], $2::text[], $3::text[]) AS p (tenant, kind, key)
WHERE r.tenant = p.tenant AND r.kind = p.kind AND r.key = p.key AND r.version = 0
"""

_WRITE = """
UPDATE homing.registry AS r SET value = p.value, version = p.version, updated_at = $6, updated_by = $7
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::integer[])
  AS p (tenant, kind, key, value, version)
WHERE r.tenant = p.tenant AND r.kind = p.kind AND r.key = p.key
"""

_DELETE = "DELETE FROM homing.registry WHERE tenant = $1 AND kind = $2 AND key = ANY($3::text[])"

_FIRST_BREAKER = """
INSERT INTO homing.breakers (provider, version, breaker) VALUES ($1, $2, $3) ON CONFLICT (provider) DO NOTHING
"""

_NEXT_BREAKER = """
UPDATE homing.breakers SET version = $2, breaker = $3 WHERE provider = $1 AND version = $2 - 1
"""

# A new bucket starts full. The update of an existing bucket changes nothing, but locks and reads it in one
# step. The order of the keys avoids deadlocks.
_BUCKETS = """
INSERT INTO homing.buckets AS b (key, tokens, at)
SELECT w.key, w.tokens, $3 FROM unnest($1::text[], $2::float8[]) AS w (key, tokens) ORDER BY w.key COLLATE "C"
ON CONFLICT (key) DO UPDATE SET at = b.at RETURNING b.key, b.tokens, b.at
"""

_WRITE_BUCKETS = """
UPDATE homing.buckets AS b SET tokens = w.tokens, at = w.at
FROM unnest($1::text[], $2::float8[], $3::bigint[]) AS w (key, tokens, at) WHERE b.key = w.key
"""

# No worker waits for the row of a task: one that is suspended while it holds the lock would stop the upkeep
# of all others. Only a worker that may lead locks the row, so a leader's renewal is never skipped because
# others ask at the same time.
_LEAD = """
WITH free AS (
  SELECT l.task FROM homing.leads AS l
  WHERE l.task = $1 AND (l.worker = $2 OR l.lead_until <= $4 OR l.lead_until > $5)
  FOR UPDATE SKIP LOCKED),
taken AS (
  UPDATE homing.leads AS l SET worker = $2, lead_until = $3 FROM free WHERE l.task = free.task RETURNING 1),
added AS (
  INSERT INTO homing.leads (task, worker, lead_until)
  SELECT $1, $2, $3 WHERE NOT EXISTS (SELECT 1 FROM homing.leads AS l WHERE l.task = $1)
  ON CONFLICT (task) DO NOTHING RETURNING 1)
SELECT 1 FROM taken UNION ALL SELECT 1 FROM added
"""


_decode_breaker = json.Decoder(Breaker).decode


RegistryKey = tuple[str, str, str]
"""Key of a registry entry: (tenant, kind, key)."""


async def get_many(
    tx: PostgresTransaction, tenant: str, kind: str, keys: Collection[str]
) -> dict[str, Entry]:
    """Returns the existing entries with these keys, by key."""
    found = map(_entry, await tx.rows(_GET_MANY, tenant, kind, list(keys)))
    return {entry.key: entry for entry in found}


async def list_entries(
    tx: PostgresTransaction, tenant: str, kind: str, prefix: str, after: str, limit: int
) -> tuple[Entry, ...]:
    """Returns entries whose key starts with `prefix` and follows `after`, in the order of their keys."""
    return tuple(map(_entry, await tx.rows(_LIST, tenant, kind, prefix, after, max(0, limit))))


async def put(tx: PostgresTransaction, entries: Sequence[Entry], who: str) -> tuple[Entry, ...] | None:
    """Writes all entries and returns them. If the version of one has changed, writes none and returns None.

    An entry with version -1 is written unconditionally.
    """
    if not entries:
        return ()
    wanted = sorted({_place(entry) for entry in entries})
    places = transpose(wanted, 3)
    versions: dict[RegistryKey, int] = {}
    while len(versions) < len(wanted):  # repeats if an entry was deleted between the two statements
        await tx.run(_INSERT_EMPTY, *places)
        versions = {(t, kind, key): version for t, kind, key, version in await tx.rows(_LOCK, *places)}
    written: list[Entry] = []
    for entry in entries:
        reject_audit_rewrite(entry.kind, entry.version)
        version = versions[_place(entry)]
        if entry.version not in (version, -1):
            await tx.run(_DELETE_EMPTY, *places)
            return None
        versions[_place(entry)] = version + 1
        written.append(replace(entry, version=version + 1, updated_at=tx.now, updated_by=who))
    newest = {_place(entry): entry for entry in written}
    rows = [(*place, encode(entry.value), entry.version) for place, entry in newest.items()]
    await tx.run(_WRITE, *transpose(rows, 5), tx.now, who)
    return tuple(written)


async def delete(tx: PostgresTransaction, tenant: str, kind: str, keys: Sequence[str]) -> int:
    """Deletes entries and returns the number of those that existed."""
    reject_audit_rewrite(kind)
    return await tx.run(_DELETE, tenant, kind, list(keys))


async def breakers(tx: PostgresTransaction) -> dict[str, Breaker]:
    """Returns all breakers, by provider."""
    found = await tx.rows("SELECT provider, breaker FROM homing.breakers")
    return {provider: _decode_breaker(breaker) for provider, breaker in found}


async def put_breaker(tx: PostgresTransaction, provider: str, breaker: Breaker) -> bool:
    """Writes the breaker and returns True, or returns False if its version is not the stored one."""
    stored = replace(breaker, version=breaker.version + 1)
    statement = _NEXT_BREAKER if breaker.version else _FIRST_BREAKER
    return await tx.run(statement, provider, stored.version, encode(stored)) == 1


async def take_tokens(tx: PostgresTransaction, wants: Mapping[str, TokenRequest]) -> dict[str, TokenGrant]:
    """Takes tokens from the rate limit buckets, from each at most as many as requested."""
    full = [float(want.limit.burst) for want in wants.values()]
    kept: list[tuple[str, float, int]] = []
    taken: dict[str, TokenGrant] = {}
    for key, tokens, at in await tx.rows(_BUCKETS, list(wants), full, tx.now):
        want = wants[key]
        bucket, granted, wait_ms = rate_limits.take_from_bucket(
            TokenBucket(tokens, at), want.limit, tx.now, want.tokens, want.reserve
        )
        kept.append((key, bucket.tokens, bucket.at))
        taken[key] = TokenGrant(granted, wait_ms, bucket.tokens)
    await tx.run(_WRITE_BUCKETS, *transpose(kept, 3))
    return taken


async def lead(tx: PostgresTransaction, task: str, worker: str, for_ms: int) -> bool:
    """Acquires or renews the leader lease of a task.

    Returns False if another worker holds it, or is about to acquire it.
    """
    expired, void = -1 if tx.settling else tx.now, tx.now + for_ms + VOID_TERM_MS
    return await tx.one(_LEAD, task, worker, tx.now + for_ms, expired, void) is not None


def _place(entry: Entry) -> RegistryKey:
    return entry.tenant, entry.kind, entry.key


def _entry(row: Record) -> Entry:
    tenant, kind, key, value, version, updated_at, updated_by = row
    return Entry(
        tenant=tenant,
        kind=kind,
        key=key,
        value=decode_value(value),
        version=version,
        updated_at=updated_at,
        updated_by=updated_by,
    )
