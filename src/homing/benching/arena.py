"""A store to measure in: made for one round, dropped after it."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from msgspec import Struct

from homing import config
from homing.config import Settings

IN_FLIGHT = 512
"""Attempts under way in one process: one endpoint takes as many as one can send."""

_CONFIG = """
store = "{store}"

[slots]
standard = {in_flight}

[http]
allow_http = true
allow_networks = ["127.0.0.0/8"]
max_host_connections = {in_flight}

[providers.webhook]
secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
max_in_flight = {in_flight}
host_slots = {in_flight}
"""
_POSTGRES_ROWS = "SELECT (SELECT count(*) FROM homing.live) + (SELECT count(*) FROM homing.settled)"
_SQLITE_ROWS = "SELECT count(*) FROM homing_notifications"
_number = itertools.count(1)


class Unusable(Exception):
    """A server that cannot be connected to, or where we may make no databases."""


def is_postgres(address: str) -> bool:
    return address.startswith(("postgresql://", "postgres://"))


class Arena(Struct, frozen=True, kw_only=True):
    """One store that nobody else uses, and a folder beside it."""

    folder: Path
    store: str
    """A SQLite file, or a PostgreSQL database."""

    @property
    def postgres(self) -> bool:
        return is_postgres(self.store)

    @property
    def config(self) -> Path:
        """Homing as it comes, but for one local endpoint that may be sent to and takes whatever comes."""
        return self.folder / "homing.toml"

    def settings(self, **flags: Any) -> Settings:
        """What the file says; `flags` win over it, the environment is left out."""
        return config.load(self.config, flags=flags)

    async def rested(self) -> None:
        """A database that was just filled is brought to where one that was not would be."""
        if self.postgres:
            async with connected(self.store) as connection:
                await connection.execute("VACUUM ANALYZE")
                await connection.execute("CHECKPOINT")

    async def size_bytes(self) -> int:
        """On the disk."""
        if not self.postgres:
            return sum(file.stat().st_size for file in self.folder.glob("homing.db*"))
        async with connected(self.store) as connection:
            return int(await connection.fetchval("SELECT pg_database_size(current_database())"))

    async def rows(self) -> int:
        """Notifications that are really there: counted, not as the store's own tallies have it."""
        if self.postgres:
            async with connected(self.store) as connection:
                return int(await connection.fetchval(_POSTGRES_ROWS))
        with closing(sqlite3.connect(self.store)) as connection:
            return int(connection.execute(_SQLITE_ROWS).fetchone()[0])


@asynccontextmanager
async def arena(server: str, *, in_flight: int = IN_FLIGHT) -> AsyncIterator[Arena]:
    """A store at `server`: the URL of any database of a PostgreSQL server where databases may be made, or
    `sqlite:` with a path, beside which its file goes (without one, in a temporary folder)."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="homing-bench-", dir=_beside(server)))
    except OSError as error:
        raise Unusable(f"{server}: no folder can be made there: {error.strerror}") from None
    try:
        if is_postgres(server):
            async with database(server, f"homing_bench_{os.getpid()}_{next(_number)}") as url:
                yield _made(folder, url, in_flight)
        else:
            yield _made(folder, str(folder / "homing.db"), in_flight)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _beside(server: str) -> Path | None:
    named = "" if is_postgres(server) else server.removeprefix("sqlite:")
    if not named:
        return None
    return Path(named) if Path(named).is_dir() else Path(named).absolute().parent


def _made(folder: Path, store: str, in_flight: int) -> Arena:
    made = Arena(folder=folder, store=store)
    made.config.write_text(_CONFIG.format(store=store, in_flight=in_flight), encoding="utf-8")
    return made


@asynccontextmanager
async def database(server: str, name: str) -> AsyncIterator[str]:
    """A database of this name for a while."""
    import asyncpg

    async with connected(server) as admin:
        try:
            await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            await admin.execute(f"CREATE DATABASE {name}")
        except asyncpg.PostgresError as error:
            raise Unusable(f"the PostgreSQL server lets us make no database: {error}") from None
        try:
            yield f"{server.rpartition('/')[0]}/{name}"
        finally:
            await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    """A connection of our own to a PostgreSQL database."""
    import asyncpg

    try:
        connection = await asyncpg.connect(url)
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise Unusable(f"the PostgreSQL server cannot be used: {error}") from None
    try:
        yield connection
    finally:
        await connection.close()
