"""Builds a store from its address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from homing.core.errors import ConfigError
from homing.core.ports import Backend, Clock
from homing.engine.clock import SystemClock
from homing.making import load

if TYPE_CHECKING:
    from homing.stores.copying import Copying

# kind → "module:class"; imported only when used.
_STORES = {
    "memory": "homing.stores.memory:MemoryStore",
    "sqlite": "homing.stores.sqlite:SqliteStore",
    "postgres": "homing.stores.postgres:PostgresStore",
}


def store(address: str, clock: Clock | None = None) -> Backend:
    """Builds a store from an address: a path, `sqlite:PATH`, `memory:` or `postgresql://HOST/DATABASE`."""
    if address == "memory:":
        made = load(_STORES["memory"])(clock or SystemClock())
    elif address.startswith(("postgresql://", "postgres://")):
        made = load(_STORES["postgres"])(address)
    elif "://" in address:
        kind = address.partition("://")[0]
        raise ConfigError("store", f"{kind}:// is not supported; use a file, postgresql:// or memory:")
    else:
        path = address.removeprefix("sqlite:")
        if not path:
            raise ConfigError("store", "is empty; give the path of a SQLite file, or memory:")
        made = load(_STORES["sqlite"])(path)
    backend: Backend = made
    return backend


def copying(source: str, target: str, *, page: int) -> Copying:
    """Builds what `homing db copy` uses to copy a SQLite file to a PostgreSQL database."""
    if "://" in source or source == "memory:":
        raise ConfigError("source", "must be the path of a SQLite file")
    if not target.startswith(("postgresql://", "postgres://")):
        raise ConfigError("target", "must be postgresql://HOST/DATABASE")
    made: Copying = load("homing.stores.copying:Copying")(
        load("homing.stores.sqlite.copied:SqliteSource")(source.removeprefix("sqlite:")),
        load("homing.stores.postgres.copied:PostgresTarget")(target),
        page=page,
    )
    return made
