"""Registry entries, and the state that workers share: breakers, rate limit buckets and leader leases."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import json
from msgspec.structs import replace

from homing.core.access.audit import reject_audit_rewrite
from homing.core.ports.stores import VOID_TERM_MS, Entry, TokenGrant, TokenRequest
from homing.core.routing import rate_limits
from homing.core.routing.breaker import Breaker
from homing.core.routing.rate_limits import TokenBucket
from homing.stores.common.codec import encode
from homing.stores.sqlite.statements import SqliteTransaction, build_insert

_ENTRY = "json_array(r.tenant, r.kind, r.key, json(r.value), r.version, r.updated_at, r.updated_by)"

_GET_MANY = f"""
SELECT json_group_array({_ENTRY})
FROM json_each(?3) AS j CROSS JOIN homing_registry AS r
  ON r.tenant = ?1 AND r.kind = ?2 AND r.key = j.value
"""  # noqa: S608

_LIST = f"""
SELECT json_group_array({_ENTRY}) FROM (
  SELECT * FROM homing_registry
  WHERE tenant = ?1 AND kind = ?2 AND key >= ?3 AND key > ?4 AND substr(key, 1, length(?3)) = ?3
  ORDER BY key LIMIT ?5) AS r
"""  # noqa: S608

_VERSIONS = """
SELECT json_group_array(json_array(r.tenant, r.kind, r.key, r.version))
FROM json_each(?1) AS j CROSS JOIN homing_registry AS r
  ON r.tenant = json_extract(j.value, '$[0]')
  AND r.kind = json_extract(j.value, '$[1]')
  AND r.key = json_extract(j.value, '$[2]')
"""

_WRITE = build_insert(
    "homing_registry",
    ("tenant", "kind", "key", "value", "version", "updated_at", "updated_by"),
    " ON CONFLICT DO UPDATE SET value = excluded.value, version = excluded.version,"
    " updated_at = excluded.updated_at, updated_by = excluded.updated_by",
)

_BUCKETS = """
SELECT json_group_object(b.key, json_array(b.tokens, b.at))
FROM json_each(?) AS j CROSS JOIN homing_buckets AS b ON b.key = j.value
"""

_WRITE_BUCKETS = build_insert(
    "homing_buckets",
    ("key", "tokens", "at"),
    " ON CONFLICT DO UPDATE SET tokens = excluded.tokens, at = excluded.at",
)


_decode_entries = json.Decoder(list[tuple[str, str, str, dict[str, Any], int, int, str]]).decode

_decode_versions = json.Decoder(list[tuple[str, str, str, int]]).decode

_decode_buckets = json.Decoder(dict[str, tuple[float, int]]).decode

_decode_breakers = json.Decoder(dict[str, Breaker]).decode


def get_many(tx: SqliteTransaction, tenant: str, kind: str, keys: Collection[str]) -> dict[str, Entry]:
    """Returns the existing entries with these keys, by key."""
    found = _entries(tx.one(_GET_MANY, tenant, kind, encode(list(keys))))
    return {entry.key: entry for entry in found}


def list_entries(
    tx: SqliteTransaction, tenant: str, kind: str, prefix: str, after: str, limit: int
) -> tuple[Entry, ...]:
    """Returns entries whose key starts with `prefix` and follows `after`, in the order of their keys."""
    return _entries(tx.one(_LIST, tenant, kind, prefix, after, max(0, limit)))


def put(tx: SqliteTransaction, entries: Sequence[Entry], who: str) -> tuple[Entry, ...] | None:
    """Writes all entries and returns them. If the version of one has changed, writes none and returns None.

    An entry with version -1 is written unconditionally.
    """
    places = [(entry.tenant, entry.kind, entry.key) for entry in entries]
    versions = {(t, kind, key): v for t, kind, key, v in _decode_versions(tx.one(_VERSIONS, encode(places)))}
    written: list[Entry] = []
    for entry, place in zip(entries, places, strict=True):
        reject_audit_rewrite(entry.kind, entry.version)
        version = versions.get(place, 0)
        if entry.version not in (version, -1):
            return None
        versions[place] = version + 1
        written.append(replace(entry, version=version + 1, updated_at=tx.now, updated_by=who))
    newest = {(entry.tenant, entry.kind, entry.key): entry for entry in written}
    _WRITE.run(tx, [(*place, encode(e.value), e.version, tx.now, who) for place, e in newest.items()])
    return tuple(written)


def delete(tx: SqliteTransaction, tenant: str, kind: str, keys: Sequence[str]) -> int:
    """Deletes entries and returns the number of those that existed."""
    reject_audit_rewrite(kind)
    return tx.run(
        "DELETE FROM homing_registry"
        " WHERE tenant = ? AND kind = ? AND key IN (SELECT value FROM json_each(?))",
        tenant,
        kind,
        encode(list(keys)),
    )


def breakers(tx: SqliteTransaction) -> dict[str, Breaker]:
    """Returns all breakers, by provider."""
    return _decode_breakers(tx.one("SELECT json_group_object(provider, json(breaker)) FROM homing_breakers"))


def put_breaker(tx: SqliteTransaction, provider: str, breaker: Breaker) -> bool:
    """Writes the breaker and returns True, or returns False if its version is not the stored one."""
    version = tx.one("SELECT version FROM homing_breakers WHERE provider = ?", provider) or 0
    if breaker.version != version:
        return False
    stored = replace(breaker, version=version + 1)
    tx.run(
        "INSERT INTO homing_breakers (provider, version, breaker) VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET version = excluded.version, breaker = excluded.breaker",
        provider,
        stored.version,
        encode(stored),
    )
    return True


def take_tokens(tx: SqliteTransaction, wants: Mapping[str, TokenRequest]) -> dict[str, TokenGrant]:
    """Takes tokens from the rate limit buckets, from each at most as many as requested."""
    there = _decode_buckets(tx.one(_BUCKETS, encode(list(wants))))
    kept: list[tuple[str, float, int]] = []
    taken: dict[str, TokenGrant] = {}
    for key, want in wants.items():
        bucket = TokenBucket(*there[key]) if key in there else rate_limits.full_bucket(want.limit, tx.now)
        bucket, granted, wait_ms = rate_limits.take_from_bucket(
            bucket, want.limit, tx.now, want.tokens, want.reserve
        )
        kept.append((key, bucket.tokens, bucket.at))
        taken[key] = TokenGrant(granted, wait_ms, bucket.tokens)
    _WRITE_BUCKETS.run(tx, kept)
    return taken


def lead(tx: SqliteTransaction, task: str, worker: str, for_ms: int) -> bool:
    """Acquires or renews the leader lease of a task. Returns False if another worker holds it."""
    return bool(
        tx.run(
            "INSERT INTO homing_leads (task, worker, lead_until) VALUES (?1, ?2, ?3)"
            " ON CONFLICT DO UPDATE SET worker = excluded.worker, lead_until = excluded.lead_until"
            " WHERE worker = excluded.worker OR lead_until <= ?4 OR lead_until > ?5",
            task,
            worker,
            tx.now + for_ms,
            -1 if tx.settling else tx.now,
            tx.now + for_ms + VOID_TERM_MS,
        )
    )


def _entries(found: str) -> tuple[Entry, ...]:
    return tuple(
        Entry(
            tenant=tenant,
            kind=kind,
            key=key,
            value=value,
            version=version,
            updated_at=updated_at,
            updated_by=updated_by,
        )
        for tenant, kind, key, value, version, updated_at, updated_by in _decode_entries(found)
    )
