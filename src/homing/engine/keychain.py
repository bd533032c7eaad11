"""The keys of the service: made, listed, rotated, revoked, and told apart from what is none."""

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

from homing.core.access import Caller, scopes_from
from homing.core.errors import CommandRefused, InvalidRequest, NotFound, StoreError
from homing.core.keys import (
    API_KEY,
    API_KEY_USE,
    ID_BITS,
    SECRET_BITS,
    ApiKey,
    KeyRecord,
    KeyStatus,
    Minted,
    key_parts,
    key_view,
    matches,
    minted,
    well_formed,
)
from homing.core.model import Entry
from homing.core.ports import Chance, Clock, Registry
from homing.core.text import check_line
from homing.core.times import epoch_ms
from homing.engine.policies import EVERY_TENANT
from homing.engine.remembering import Remembered
from homing.engine.tenants import REMEMBERED_MS, Tenants

log = logging.getLogger("homing.keys")

OVERLAP_MS = 24 * 3_600_000
"""How long a key that was rotated stays good, unless it is said."""
LONGEST_OVERLAP_MS = 365 * 24 * 3_600_000
USED_EVERY_MS = 60_000
"""When a key was last used is written down at most this often."""
MOST_PER_SECOND = 1_000_000
_LONGEST_NAME = 100
_MOST_REMEMBERED = 10_000


class NewKey(Struct, frozen=True, kw_only=True, rename="camel"):
    """A key that was just made. `text` is shown this once: nobody can read it again."""

    key: ApiKey
    text: str

    def __repr__(self) -> str:
        return f"NewKey({self.key.id!r}, …)"


class _Known(Struct, frozen=True):
    """A key as requests are checked against it."""

    record: KeyRecord
    caller: Caller


class Keychain:
    """All keys of all tenants. What is revoked is refused here at once, elsewhere within five seconds."""

    def __init__(self, registry: Registry, tenants: Tenants, clock: Clock, chance: Chance) -> None:
        self._registry = registry
        self._tenants = tenants
        self._clock = clock
        self._chance = chance
        self._known: Remembered[_Known] = Remembered(
            self._read, clock, for_ms=REMEMBERED_MS, most=_MOST_REMEMBERED
        )
        self._used: dict[str, int] = {}
        self._written_at = clock.now_ms()
        self._writing: asyncio.Task[None] | None = None

    # At the door ---------------------------------------------------------------------------------

    async def verify(self, text: str) -> Caller | None:
        """Whose key it is; None: it is nobody's, has ended, or its tenant is disabled."""
        parts = key_parts(text)
        if parts is None:
            return None
        id, secret = parts
        if id not in self._known and not well_formed(id, secret):
            return None
        known = await self._known.get(id)
        if not matches(known.record if known else None, secret) or known is None:
            return None
        now = self._clock.now_ms()
        if not known.record.is_good(now):
            return None
        if not await self._tenants.enabled(known.record.tenant):
            return None
        self._use(id, now)
        return known.caller

    def _use(self, id: str, now: int) -> None:
        """Remembers that it was used; every minute, a task of its own writes that down."""
        self._used[id] = now
        if self._writing is None and abs(now - self._written_at) >= USED_EVERY_MS:
            self._written_at = now
            self._writing = asyncio.create_task(self._write_used(), name="homing-keys-used")

    async def close(self) -> None:
        """Writes down what was used last."""
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
            log.warning("when keys were last used could not be written: %s", error)
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
        """Makes a key. The tenant must exist, so that a typing error in its name makes no key.

        `keep` is called with the key's text before the key is stored. A caller that writes the text to a
        disk there cannot lose the only copy of a stored key in a crash.
        """
        record = KeyRecord(
            id="",
            tenant=tenant,
            name=_name(name),
            scopes=scopes_from(scopes),
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

    async def rotate(self, id: str, *, who: str, overlap_ms: int = OVERLAP_MS) -> NewKey:
        """A new key with the same tenant, name, scopes and rate; the old one stays good for `overlap_ms`."""
        if isinstance(overlap_ms, bool) or not 0 <= overlap_ms <= LONGEST_OVERLAP_MS:
            raise InvalidRequest("overlapMs", f"is {overlap_ms}; allowed are 0 to {LONGEST_OVERLAP_MS}")
        while True:
            entry = await self._entry(id)
            old, now = _record(entry), self._clock.now_ms()
            if old.replaced_by is not None:
                raise CommandRefused(f"key {id} was rotated to {old.replaced_by} already; rotate that one")
            if (status := old.status(now)) is not KeyStatus.ACTIVE:
                raise CommandRefused(f"key {id} is {status.value}; make a new one")
            new = self._mint()
            until = now + overlap_ms
            ending = replace(old, expires_at=min(until, old.expires_at or until), replaced_by=new.id)
            record = replace(
                old,
                id=new.id,
                digest=new.digest,
                created_at=now,
                created_by=who,
                expires_at=_same_span(old, now),
            )
            if await self._put([_over(entry, ending), *_entries(record)], who):
                return NewKey(key=key_view(record, now, None), text=new.text)

    async def revoke(self, id: str, *, who: str) -> ApiKey:
        """Refuses the key from now on; one that is revoked stays as it is."""
        while True:
            entry = await self._entry(id)
            record = _record(entry)
            if record.revoked_at is None:
                record = replace(record, revoked_at=self._clock.now_ms(), revoked_by=who)
                if not await self._put([_over(entry, record)], who):
                    continue
            return (await self._views([record]))[0]

    async def get(self, id: str) -> ApiKey:
        """One key, or `NotFound`."""
        return (await self._views([_record(await self._entry(id))]))[0]

    async def list(
        self, tenant: str | None = None, *, after: str = "", limit: int = 100
    ) -> tuple[ApiKey, ...]:
        """By id, of one tenant or of all; `after` the last one of the page before."""
        of = EVERY_TENANT if tenant is None else tenant
        page = await self._registry.list_entries(of, API_KEY, after=after, limit=limit)
        if tenant is not None:
            found = await self._registry.get_many(EVERY_TENANT, API_KEY, [entry.key for entry in page])
            page = tuple(found[entry.key] for entry in page if entry.key in found)
        return tuple(await self._views([_record(entry) for entry in page]))

    async def is_empty(self) -> bool:
        """Whether no key was ever made here."""
        return not await self._registry.list_entries(EVERY_TENANT, API_KEY, limit=1)

    # The Registry --------------------------------------------------------------------------------

    def _mint(self) -> Minted:
        return minted(self._chance.getrandbits(ID_BITS), self._chance.getrandbits(SECRET_BITS))

    async def _put(self, entries: Sequence[Entry], who: str) -> bool:
        done = await self._registry.put(entries, who=who) is not None
        for entry in entries:
            self._known.forget(entry.key)
        return done

    async def _entry(self, id: str) -> Entry:
        entry = (await self._registry.get_many(EVERY_TENANT, API_KEY, [id])).get(id)
        if entry is None:
            raise NotFound(f"there is no key {id!r}")
        return entry

    async def _read(self, ids: Sequence[str]) -> Mapping[str, _Known]:
        found = await self._registry.get_many(EVERY_TENANT, API_KEY, ids)
        return {id: _known(_record(entry)) for id, entry in found.items()}

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
            raise InvalidRequest("expiresAt", "has passed already")
        return expires_at


def _known(record: KeyRecord) -> _Known:
    who = f"key:{record.id}"
    caller = Caller(
        tenant=record.tenant,
        who=who,
        scopes=frozenset(record.scopes),
        rate_per_second=record.rate_per_second,
        rate_key=who,
    )
    return _Known(record, caller)


def _record(entry: Entry) -> KeyRecord:
    return msgspec.convert(entry.value, KeyRecord)


def _over(entry: Entry, record: KeyRecord) -> Entry:
    return replace(entry, value=msgspec.to_builtins(record))


def _entries(record: KeyRecord) -> list[Entry]:
    """A new key's entry, and one under its tenant by which that tenant's keys are listed."""
    value: dict[str, Any] = msgspec.to_builtins(record)
    return [
        Entry(tenant=EVERY_TENANT, kind=API_KEY, key=record.id, value=value),
        Entry(tenant=record.tenant, kind=API_KEY, key=record.id, value={}),
    ]


def _same_span(old: KeyRecord, now: int) -> int | None:
    """The new key lives as long from now as the old one was made to."""
    return None if old.expires_at is None else now + old.expires_at - old.created_at


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME:
        raise InvalidRequest("name", f"must have 1 to {_LONGEST_NAME} characters: what is the key for?")
    check_line(name, "name")
    return name


def _rate(rate: float | None) -> float | None:
    if rate is None:
        return None
    if not isfinite(rate) or not (rate == 0 or 0.001 <= rate <= MOST_PER_SECOND):
        raise InvalidRequest(
            "ratePerSecond", f"is {rate}; allowed are 0 (none), or 0.001 to {MOST_PER_SECOND}"
        )
    return float(rate)
