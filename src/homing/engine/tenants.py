"""Tenants: who has keys here, and whose keys are let in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.core.access import check_tenant
from homing.core.errors import NotFound, VersionConflict
from homing.core.events import moment
from homing.core.keys import API_KEY
from homing.core.model import DEFAULT_TENANT, Entry
from homing.core.ports import Backend, Clock
from homing.engine.policies import EVERY_TENANT
from homing.engine.remembering import Remembered

_TENANT = "tenant"
_PAGE = 500
REMEMBERED_MS = 5_000
"""How long another process may go on letting in what was disabled here."""
_MOST_REMEMBERED = 10_000


class TenantRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A tenant as it is stored."""

    created_at: int | None = None
    created_by: str = ""
    disabled_at: int | None = None
    disabled_by: str = ""


class Tenant(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A tenant as people and programs read it."""

    name: str
    enabled: bool
    created_at: datetime | None = None
    """None: it came to be by its first notification, or is the default one."""
    created_by: str = ""
    disabled_at: datetime | None = None
    disabled_by: str = ""
    key_count: int | None = None
    """How many keys were made for it, also those that have ended; None in a list."""


class Tenants:
    """Those that were made, those that have sent something without being made, and the default one."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._known: Remembered[TenantRecord] = Remembered(
            self._read, clock, for_ms=REMEMBERED_MS, most=_MOST_REMEMBERED
        )

    async def enabled(self, name: str) -> bool:
        """Whether the tenant is there and its keys are let in; as it was at most five seconds ago."""
        record = await self._known.get(name)
        return record is not None and record.disabled_at is None

    async def list(self, *, after: str = "", limit: int = 100) -> tuple[Tenant, ...]:
        """By name; `after` the last one of the page before."""
        others = (DEFAULT_TENANT, *await self._backend.tenants())
        records = {name: TenantRecord() for name in others if name > after}
        page = await self._backend.list_entries(EVERY_TENANT, _TENANT, after=after, limit=limit)
        records |= {entry.key: _record(entry) for entry in page}
        return tuple(_view(name, records[name]) for name in sorted(records)[:limit])

    async def get(self, name: str) -> Tenant:
        """One tenant with the number of its keys, or `NotFound`."""
        record, _ = await self._found(name)
        return replace(_view(name, record), key_count=await self._count_keys(name))

    async def create(self, name: str, *, who: str) -> Tenant:
        """Makes a tenant; `VersionConflict` where there is one of that name."""
        check_tenant(name, "name")
        if name in await self._read([name]):
            raise VersionConflict(f"there is a tenant {name!r} already")
        record = TenantRecord(created_at=self._clock.now_ms(), created_by=who)
        if not await self._put(name, record, 0, who):
            raise VersionConflict(f"there is a tenant {name!r} already")
        return _view(name, record)

    async def ensure(self, name: str, *, who: str) -> None:
        """Makes a tenant unless it is there."""
        try:
            if name not in await self._read([name]):
                await self.create(name, who=who)
        except VersionConflict:
            return  # somebody else was faster

    async def disable(self, name: str, *, who: str) -> Tenant:
        """Its keys and tokens are refused from now on; what it has sent is delivered all the same."""
        return await self._change(name, self._clock.now_ms(), who)

    async def enable(self, name: str, *, who: str) -> Tenant:
        """Its keys are let in again."""
        return await self._change(name, None, who)

    async def _change(self, name: str, disabled_at: int | None, who: str) -> Tenant:
        while True:
            record, version = await self._found(name)
            if (record.disabled_at is None) == (disabled_at is None):
                return _view(name, record)
            by = "" if disabled_at is None else who
            changed = replace(record, disabled_at=disabled_at, disabled_by=by)
            if await self._put(name, changed, version, who):
                return _view(name, changed)

    async def _put(self, name: str, record: TenantRecord, version: int, who: str) -> bool:
        value = msgspec.to_builtins(record)
        entry = Entry(tenant=EVERY_TENANT, kind=_TENANT, key=name, value=value, version=version)
        done = await self._backend.put([entry], who=who) is not None
        self._known.forget(name)
        return done

    async def _found(self, name: str) -> tuple[TenantRecord, int]:
        """(what is known of it, the version of its entry); 0 where it has none yet."""
        entry = (await self._backend.get_many(EVERY_TENANT, _TENANT, [name])).get(name)
        if entry is not None:
            return _record(entry), entry.version
        if name not in await self._read([name]):
            raise NotFound(f"there is no tenant {name!r}")
        return TenantRecord(), 0

    async def _read(self, names: Sequence[str]) -> Mapping[str, TenantRecord]:
        entries = await self._backend.get_many(EVERY_TENANT, _TENANT, names)
        found = {name: _record(entry) for name, entry in entries.items()}
        others = [name for name in names if name not in found and name != EVERY_TENANT]
        if others:  # they are there by having sent something
            there = {DEFAULT_TENANT, *await self._backend.tenants()}
            found |= {name: TenantRecord() for name in others if name in there}
        return found

    async def _count_keys(self, name: str) -> int:
        count, after = 0, ""
        while True:
            page = await self._backend.list_entries(name, API_KEY, after=after, limit=_PAGE)
            count += len(page)
            if len(page) < _PAGE:
                return count
            after = page[-1].key


def _record(entry: Entry) -> TenantRecord:
    return msgspec.convert(entry.value, TenantRecord)


def _view(name: str, record: TenantRecord) -> Tenant:
    return Tenant(
        name=name,
        enabled=record.disabled_at is None,
        created_at=None if record.created_at is None else moment(record.created_at),
        created_by=record.created_by,
        disabled_at=None if record.disabled_at is None else moment(record.disabled_at),
        disabled_by=record.disabled_by,
    )
