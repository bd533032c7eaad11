"""Creates, lists, enables and disables tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.core.access.api_keys import API_KEY
from homing.core.access.scopes import check_tenant
from homing.core.access.tenants import Tenant
from homing.core.errors import NotFound, VersionConflict
from homing.core.notifications import DEFAULT_TENANT
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Backend, Entry
from homing.core.times import moment
from homing.engine.access.key_cache import ReadThroughCache
from homing.engine.operations.policies import EVERY_TENANT

_TENANT = "tenant"

_PAGE = 500

TENANT_CACHE_MS = 5_000
"""Time for which tenants and API keys are cached.

Other processes may accept a disabled tenant or a revoked key for this long.
"""

_MAX_CACHED = 10_000


class TenantRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The stored data of a tenant."""

    created_at: int | None = None
    created_by: str = ""
    disabled_at: int | None = None
    disabled_by: str = ""


class Tenants:
    """All tenants: those created explicitly, those that have sent a notification, and the default one."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._cache: ReadThroughCache[TenantRecord] = ReadThroughCache(
            self._read, clock, for_ms=TENANT_CACHE_MS, most=_MAX_CACHED
        )

    async def enabled(self, name: str) -> bool:
        """Returns True if the tenant exists and is enabled. The result may be up to five seconds old."""
        record = await self._cache.get(name)
        return record is not None and record.disabled_at is None

    async def list(self, *, after: str = "", limit: int = 100) -> tuple[Tenant, ...]:
        """Returns tenants ordered by name. `after` is the last name of the previous page."""
        others = (DEFAULT_TENANT, *await self._backend.tenants())
        records = {name: TenantRecord() for name in others if name > after}
        page = await self._backend.list_entries(EVERY_TENANT, _TENANT, after=after, limit=limit)
        records |= {entry.key: _record(entry) for entry in page}
        return tuple(_view(name, records[name]) for name in sorted(records)[:limit])

    async def get(self, name: str) -> Tenant:
        """Returns one tenant with its number of API keys. Raises `NotFound` if the tenant does not exist."""
        record, _ = await self._found(name)
        return replace(_view(name, record), key_count=await self._count_keys(name))

    async def create(self, name: str, *, who: str) -> Tenant:
        """Creates a tenant. Raises `VersionConflict` if the name is taken."""
        check_tenant(name, "name")
        if name in await self._read([name]):
            raise VersionConflict(f"tenant {name!r} already exists")
        record = TenantRecord(created_at=self._clock.now_ms(), created_by=who)
        if not await self._put(name, record, 0, who):
            raise VersionConflict(f"tenant {name!r} already exists")
        return _view(name, record)

    async def ensure(self, name: str, *, who: str) -> None:
        """Creates a tenant unless it exists."""
        try:
            if name not in await self._read([name]):
                await self.create(name, who=who)
        except VersionConflict:
            return  # another caller created the tenant at the same time

    async def disable(self, name: str, *, who: str) -> Tenant:
        """Disables a tenant, so that its keys and tokens are rejected.

        Notifications that were accepted before are still delivered.
        """
        return await self._change(name, self._clock.now_ms(), who)

    async def enable(self, name: str, *, who: str) -> Tenant:
        """Enables a tenant, so that its keys and tokens are valid again."""
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
        self._cache.forget(name)
        return done

    async def _found(self, name: str) -> tuple[TenantRecord, int]:
        """Returns a tenant's record and the version of its entry, which is 0 if there is no entry yet."""
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
        if others:  # a tenant without an entry exists if it has sent a notification
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
