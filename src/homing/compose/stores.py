"""Builds stores from their addresses, and the object that copies a store to another one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from homing.compose.factories import check_installed, import_object
from homing.core.errors import ConfigError
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Backend
from homing.core.retry.policy import DEFAULT_LEASE_MS
from homing.engine.system_runtime import SystemClock

if TYPE_CHECKING:
    from homing.stores.common.copy import StoreCopy
    from homing.stores.sqlite.backup import BackupResult

# kind → "module:class"; imported only when used.
_STORES = {
    "sqlite": "homing.stores.sqlite:SqliteStore",
    "postgres": "homing.stores.postgres:PostgresStore",
    "mongo": "homing.stores.mongo:MongoStore",
}

_POSTGRES = ("postgresql://", "postgres://")
_MONGO = ("mongodb://", "mongodb+srv://")


def build_store(address: str, clock: Clock | None = None, *, lease_ms: int = 0) -> Backend:
    """Builds a store from an address: a path, `sqlite:PATH`, `memory:`, `postgresql://HOST/DATABASE` or
    `mongodb://HOST/DATABASE`.

    `lease_ms` is the length of the workers' leases, or 0 for the default.
    """
    if address == "memory:":
        made = import_object(_STORES["sqlite"])(":memory:", clock=(clock or SystemClock()).now_ms)
    elif address.startswith(_POSTGRES):
        check_installed("store", "postgres", "asyncpg")
        made = import_object(_STORES["postgres"])(address, lease_ms=lease_ms or DEFAULT_LEASE_MS)
    elif address.startswith(_MONGO):
        check_installed("store", "mongo", "pymongo")
        made = import_object(_STORES["mongo"])(address)
    elif "://" in address:
        kind = address.partition("://")[0]
        raise ConfigError(
            "store", f"{kind}:// is not supported; use a file, postgresql://, mongodb:// or memory:"
        )
    else:
        path = address.removeprefix("sqlite:")
        if not path:
            raise ConfigError("store", "is empty; give the path of a SQLite file, or memory:")
        if path == ":memory:":
            raise ConfigError("store", "is :memory:; write memory: for a store in memory")
        made = import_object(_STORES["sqlite"])(path)
    backend: Backend = made
    return backend


def build_backup(address: str, target: str) -> Callable[[Callable[[int, int], None]], BackupResult]:
    """Returns the function that copies a SQLite store to a new file. Its argument reports the progress.

    Raises `ConfigError` if the store is not a SQLite file.
    """
    if address.startswith(_MONGO):
        raise ConfigError("store", "is MongoDB; back it up with mongodump, or as your provider advises")
    if address.startswith(_POSTGRES):
        raise ConfigError("store", "is PostgreSQL; back it up with pg_dump, or as your provider advises")
    if "://" in address or address == "memory:":
        raise ConfigError("store", "must be a SQLite file")
    back_up = import_object("homing.stores.sqlite.backup:back_up")
    made: Callable[[Callable[[int, int], None]], BackupResult] = partial(
        back_up, Path(address.removeprefix("sqlite:")), Path(target)
    )
    return made


def build_copying(source: str, target: str, *, page: int) -> StoreCopy:
    """Builds the object that copies a store to a PostgreSQL or MongoDB database, `page` rows at a time."""
    if source.startswith(_MONGO):
        check_installed("source", "mongo", "pymongo")
        copied_from = import_object("homing.stores.mongo.copy:MongoCopySource")(source)
    elif source.startswith(_POSTGRES):
        check_installed("source", "postgres", "asyncpg")
        copied_from = import_object("homing.stores.postgres.copy:PostgresCopySource")(source)
    elif "://" in source or source == "memory:":
        raise ConfigError("source", "must be the path of a SQLite file, postgresql:// or mongodb://")
    else:
        path = source.removeprefix("sqlite:")
        copied_from = import_object("homing.stores.sqlite.copy:SqliteCopySource")(path)
    if target.startswith(_MONGO):
        check_installed("target", "mongo", "pymongo")
        copied_to = import_object("homing.stores.mongo.copy:MongoCopyTarget")(target)
    elif target.startswith(_POSTGRES):
        check_installed("target", "postgres", "asyncpg")
        copied_to = import_object("homing.stores.postgres.copy:PostgresCopyTarget")(target)
    else:
        raise ConfigError("target", "must be postgresql://HOST/DATABASE, or mongodb://HOST/DATABASE")
    made: StoreCopy = import_object("homing.stores.common.copy:StoreCopy")(copied_from, copied_to, page=page)
    return made
