"""Settings that are kept in the store, so that they can be changed while Homing runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from homing.core.errors import ConfigError
from homing.core.plain_values import plain_text
from homing.core.ports.stores import Entry, Registry
from homing.core.request_decoding import unknown_field_problem
from homing.core.times import moment
from homing.engine.operations.policies import EVERY_TENANT
from homing.engine.settings import MAX_BATCH_SIZE, ProcessSettings

BATCH_SIZE = "batch_size"

_KIND = "setting"


class StoredSetting(Struct, frozen=True, kw_only=True, rename="camel"):
    """A setting that can be changed in the store."""

    name: str
    value: int
    default: int
    """Value in the settings file, which holds as long as nothing is stored."""
    changed_by: str | None = None
    """Author of the stored value. None if nothing is stored."""
    changed_at: datetime | None = None


class StoredSettings:
    """Reads and changes the settings in the store. A change applies to the next run of every process."""

    def __init__(self, registry: Registry, defaults: ProcessSettings) -> None:
        self._registry = registry
        self._defaults = {BATCH_SIZE: defaults.batch_size}

    async def batch_size(self) -> int:
        """Returns how many notifications a run of `process` delivers at most if it is given no limit."""
        return (await self.get(BATCH_SIZE)).value

    async def list(self) -> tuple[StoredSetting, ...]:
        """Returns all settings of this kind, by name."""
        return tuple([await self.get(name) for name in sorted(self._defaults)])

    async def get(self, name: str) -> StoredSetting:
        """Returns one setting. Raises `ConfigError` if there is no such setting."""
        default = self._default(name)
        entry = (await self._registry.get_many(EVERY_TENANT, _KIND, [name])).get(name)
        if entry is None:
            return StoredSetting(name=name, value=default, default=default)
        return StoredSetting(
            name=name,
            value=entry.value["value"],
            default=default,
            changed_by=entry.updated_by,
            changed_at=moment(entry.updated_at),
        )

    async def set(self, name: str, value: Any, *, who: str) -> StoredSetting:
        """Stores a value, which overrides the settings file. Raises `ConfigError` if it is not valid."""
        self.check(name, value)
        plain_text(who, "who")
        entry = Entry(tenant=EVERY_TENANT, kind=_KIND, key=name, value={"value": value}, version=-1)
        await self._registry.put([entry], who=who)
        return await self.get(name)

    def check(self, name: str, value: Any) -> None:
        """Raises `ConfigError` if there is no such setting, or if it cannot have this value."""
        self._default(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_BATCH_SIZE:
            raise ConfigError(name, f"is {value!r}; it must be a whole number from 1 to {MAX_BATCH_SIZE}")

    async def reset(self, name: str) -> StoredSetting:
        """Removes the stored value, so that the settings file decides again."""
        self._default(name)
        await self._registry.delete(EVERY_TENANT, _KIND, [name])
        return await self.get(name)

    def _default(self, name: str) -> int:
        if name not in self._defaults:
            raise ConfigError(name, unknown_field_problem(name, self._defaults))
        return self._defaults[name]
