"""Creates, lists, rotates, revokes and verifies the API keys of the service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from math import isfinite
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.core.access.api_keys import (
    API_KEY,
    API_KEY_USE,
    DEFAULT_OVERLAP_MS,
    ID_BITS,
    MAX_OVERLAP_MS,
    MAX_RATE_PER_SECOND,
    SECRET_BITS,
    ApiKey,
    KeyRecord,
    KeyStatus,
    NewApiKey,
    NewKey,
    create_api_key,
    is_well_formed,
    key_view,
    secret_matches,
    split_api_key,
)
from homing.core.access.scopes import Caller, read_scopes
from homing.core.errors import CommandRefused, InvalidRequest, NotFound, StoreError
from homing.core.plain_values import check_line
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.ports.stores import Entry, Registry
from homing.core.times import epoch_ms
from homing.engine.access.key_cache import ReadThroughCache
from homing.engine.access.tenants import TENANT_CACHE_MS, Tenants
from homing.engine.operations.policies import EVERY_TENANT

log = logging.getLogger("homing.keys")


LAST_USED_INTERVAL_MS = 60_000
"""Minimum time between two writes of the times at which keys were last used."""


_MAX_NAME_CHARS = 100

_MAX_CACHED = 10_000


class _CachedKey(Struct, frozen=True):
    """A stored key and its caller, cached so that not every request reads the store."""

    record: KeyRecord
    caller: Caller


class ApiKeyManager:
    """Manages the keys of all tenants.

    A revoked key is rejected by this process at once, and by other processes within five seconds.
    """

    def __init__(
        self, registry: Registry, tenants: Tenants, clock: Clock, random_source: RandomSource
    ) -> None:
        self._registry = registry
        self._tenants = tenants
        self._clock = clock
        self._random_source = random_source
        self._cache: ReadThroughCache[_CachedKey] = ReadThroughCache(
            self._read, clock, for_ms=TENANT_CACHE_MS, most=_MAX_CACHED
        )
        self._used: dict[str, int] = {}
        self._written_at = clock.now_ms()
        self._writing: asyncio.Task[None] | None = None

    # Checking requests ---------------------------------------------------------------------------

    async def verify(self, text: str) -> Caller | None:
        """Returns the caller that a key belongs to.

        Returns None if the key is unknown, expired or revoked, or if its tenant is disabled.
        """
        parts = split_api_key(text)
        if parts is None:
            return None
        id, secret = parts
        if id not in self._cache and not is_well_formed(id, secret):
            return None
        known = await self._cache.get(id)
        if not secret_matches(known.record if known else None, secret) or known is None:
            return None
        return await self._admit(known)

    async def find_caller(self, id: str) -> Caller | None:
        """Returns the caller of the key with this id, for a session that began with the key.

        Returns None if the key is unknown, expired or revoked, or if its tenant is disabled.
        """
        known = await self._cache.get(id)
        return None if known is None else await self._admit(known)

    async def _admit(self, known: _CachedKey) -> Caller | None:
        now = self._clock.now_ms()
        if not known.record.is_active(now):
            return None
        if not await self._tenants.enabled(known.record.tenant):
            return None
        self._record_use(known.record.id, now)
        return known.caller

    def _record_use(self, id: str, now: int) -> None:
        """Records that a key was used. A background task writes these times at most once per minute."""
        self._used[id] = now
        if self._writing is None and abs(now - self._written_at) >= LAST_USED_INTERVAL_MS:
            self._written_at = now
            self._writing = asyncio.create_task(self._write_used(), name="homing-keys-used")

    async def close(self) -> None:
        """Writes the times of last use that are not stored yet."""
        if self._writing is not None:
            await self._writing
        await self._write_used()

    async def _write_used(self) -> None:
        used, self._used = self._used, {}
        entries = [
            Entry(tenant=EVERY_TENANT, kind=API_KEY_USE, key=id, value={"lastUsedAt": at}, version=-1)
            for id, at in used.items()
        ]
        try:
            if entries:
                await self._registry.put(entries, who="homing")
        except StoreError as error:
            log.warning("could not record when keys were last used: %s", error)
        finally:
            self._writing = None

    # For operators -------------------------------------------------------------------------------

    async def create(
        self,
        tenant: str,
        name: str,
        scopes: Iterable[str],
        *,
        who: str,
        expires_at: datetime | None = None,
        rate_per_second: float | None = None,
        keep: Callable[[str], None] | None = None,
    ) -> NewKey:
        """Creates a key.

        Raises `NotFound` if the tenant does not exist, so that a typo does not create a key. `keep` is called
        with the key's text before the key is stored. If `keep` writes the text to disk, a crash cannot lose
        the only copy of a stored key.
        """
        record = KeyRecord(
            id="",
            tenant=tenant,
            name=_name(name),
            scopes=read_scopes(scopes),
            digest="",
            created_at=self._clock.now_ms(),
            created_by=who,
            expires_at=self._expiry(expires_at),
            rate_per_second=_rate(rate_per_second),
        )
        await self._tenants.get(tenant)
        while True:
            new = self._mint()
            made = replace(record, id=new.id, digest=new.digest)
            if keep is not None:
                keep(new.text)
            if await self._put(_entries(made), who):
                return NewKey(key=key_view(made, made.created_at, None), text=new.text)

    async def rotate(self, id: str, *, who: str, overlap_ms: int = DEFAULT_OVERLAP_MS) -> NewKey:
        """Creates a key with the same tenant, name, scopes, rate limit and lifetime as an existing one.

        The old key stays valid for `overlap_ms`, but not beyond its own expiry.
        """
        if isinstance(overlap_ms, bool) or not 0 <= overlap_ms <= MAX_OVERLAP_MS:
            raise InvalidRequest("overlapMs", f"is {overlap_ms}; it must be between 0 and {MAX_OVERLAP_MS}")
        while True:
            entry = await self._entry(id)
            old, now = _record(entry), self._clock.now_ms()
            if old.replaced_by is not None:
                raise CommandRefused(f"key {id} was already rotated to {old.replaced_by}; rotate that one")
            if (status := old.status(now)) is not KeyStatus.ACTIVE:
                raise CommandRefused(f"key {id} is {status.value}; create a new one")
            new = self._mint()
            until = now + overlap_ms
            ending = replace(old, expires_at=min(until, old.expires_at or until), replaced_by=new.id)
            record = replace(
                old,
                id=new.id,
                digest=new.digest,
                created_at=now,
                created_by=who,
                expires_at=_same_lifetime(old, now),
            )
            if await self._put([_replacing(entry, ending), *_entries(record)], who):
                return NewKey(key=key_view(record, now, None), text=new.text)

    async def revoke(self, id: str, *, who: str) -> ApiKey:
        """Revokes a key and returns it. Has no effect if the key is already revoked."""
        while True:
            entry = await self._entry(id)
            record = _record(entry)
            if record.revoked_at is None:
                record = replace(record, revoked_at=self._clock.now_ms(), revoked_by=who)
                if not await self._put([_replacing(entry, record)], who):
                    continue
            return (await self._views([record]))[0]

    async def get(self, id: str) -> ApiKey:
        """Returns one key. Raises `NotFound` if no key has that id."""
        return (await self._views([_record(await self._entry(id))]))[0]

    async def list(
        self, tenant: str | None = None, *, after: str = "", limit: int = 100
    ) -> tuple[ApiKey, ...]:
        """Returns the keys of one tenant, or of all tenants if `tenant` is None, ordered by id.

        `after` is the last id of the previous page.
        """
        of = EVERY_TENANT if tenant is None else tenant
        page = await self._registry.list_entries(of, API_KEY, after=after, limit=limit)
        if tenant is not None:
            found = await self._registry.get_many(EVERY_TENANT, API_KEY, [entry.key for entry in page])
            page = tuple(found[entry.key] for entry in page if entry.key in found)
        return tuple(await self._views([_record(entry) for entry in page]))

    async def is_empty(self) -> bool:
        """Returns True if the store has no API key at all."""
        return not await self._registry.list_entries(EVERY_TENANT, API_KEY, limit=1)

    # The Registry --------------------------------------------------------------------------------

    def _mint(self) -> NewApiKey:
        return create_api_key(
            self._random_source.getrandbits(ID_BITS), self._random_source.getrandbits(SECRET_BITS)
        )

    async def _put(self, entries: Sequence[Entry], who: str) -> bool:
        done = await self._registry.put(entries, who=who) is not None
        for entry in entries:
            self._cache.forget(entry.key)
        return done

    async def _entry(self, id: str) -> Entry:
        entry = (await self._registry.get_many(EVERY_TENANT, API_KEY, [id])).get(id)
        if entry is None:
            raise NotFound(f"there is no key {id!r}")
        return entry

    async def _read(self, ids: Sequence[str]) -> Mapping[str, _CachedKey]:
        found = await self._registry.get_many(EVERY_TENANT, API_KEY, ids)
        return {id: _cached_key(_record(entry)) for id, entry in found.items()}

    async def _views(self, records: Sequence[KeyRecord]) -> Sequence[ApiKey]:
        ids = [record.id for record in records]
        used = await self._registry.get_many(EVERY_TENANT, API_KEY_USE, ids) if ids else {}
        now = self._clock.now_ms()
        return [key_view(record, now, self._last_used(record.id, used)) for record in records]

    def _last_used(self, id: str, used: Mapping[str, Entry]) -> int | None:
        return self._used.get(id) or (used[id].value["lastUsedAt"] if id in used else None)

    def _expiry(self, at: datetime | None) -> int | None:
        if at is None:
            return None
        now = self._clock.now_ms()
        expires_at = epoch_ms(at, "expiresAt", now)
        if expires_at <= now:
            raise InvalidRequest("expiresAt", "is in the past; give a later time")
        return expires_at


def _cached_key(record: KeyRecord) -> _CachedKey:
    who = f"key:{record.id}"
    caller = Caller(
        tenant=record.tenant,
        who=who,
        scopes=frozenset(record.scopes),
        rate_per_second=record.rate_per_second,
        rate_key=who,
    )
    return _CachedKey(record, caller)


def _record(entry: Entry) -> KeyRecord:
    return msgspec.convert(entry.value, KeyRecord)


def _replacing(entry: Entry, record: KeyRecord) -> Entry:
    return replace(entry, value=msgspec.to_builtins(record))


def _entries(record: KeyRecord) -> list[Entry]:
    """Returns the entry of a new key, and an index entry that is used to list the keys of its tenant."""
    value: dict[str, Any] = msgspec.to_builtins(record)
    return [
        Entry(tenant=EVERY_TENANT, kind=API_KEY, key=record.id, value=value),
        Entry(tenant=record.tenant, kind=API_KEY, key=record.id, value={}),
    ]


def _same_lifetime(old: KeyRecord, now: int) -> int | None:
    """Returns the expiry of the new key, which gets the same lifetime as the old one."""
    return None if old.expires_at is None else now + old.expires_at - old.created_at


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > _MAX_NAME_CHARS:
        raise InvalidRequest(
            "name", f"must have 1 to {_MAX_NAME_CHARS} characters; describe what the key is for"
        )
    check_line(name, "name")
    return name


def _rate(rate: float | None) -> float | None:
    if rate is None:
        return None
    if not isfinite(rate) or not (rate == 0 or 0.001 <= rate <= MAX_RATE_PER_SECOND):
        raise InvalidRequest(
            "ratePerSecond", f"is {rate}; it must be 0 (no limit), or between 0.001 and {MAX_RATE_PER_SECOND}"
        )
    return float(rate)
