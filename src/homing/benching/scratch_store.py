"""Temporary stores for benchmarks: created before a measurement and removed afterwards."""

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

from homing.settings import Settings, load_settings

IN_FLIGHT = 512
"""Default number of concurrent attempts in one process."""


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


class ServerUnusable(Exception):
    """Raised if the server cannot be reached, or if a database or folder cannot be created."""


def is_postgres(address: str) -> bool:
    """Returns True for a PostgreSQL URL."""
    return address.startswith(("postgresql://", "postgres://"))


def is_mongo(address: str) -> bool:
    """Returns True for a MongoDB URL."""
    return address.startswith(("mongodb://", "mongodb+srv://"))


class ScratchStore(Struct, frozen=True, kw_only=True):
    """A temporary store of the benchmark, with a temporary folder."""

    folder: Path
    store: str
    """Path of a SQLite file, or URL of a PostgreSQL or MongoDB database."""

    @property
    def postgres(self) -> bool:
        return is_postgres(self.store)

    @property
    def config(self) -> Path:
        """Path of the settings file, which allows local HTTP endpoints and high concurrency."""
        return self.folder / "homing.toml"

    def settings(self, **flags: Any) -> Settings:
        """Loads the settings file. `flags` override it; the environment is ignored."""
        return load_settings(self.config, flags=flags)

    async def rested(self) -> None:
        """Vacuums and checkpoints a PostgreSQL database, so that filling it does not slow the measurement."""
        if self.postgres:
            async with connect_postgres(self.store) as connection:
                await connection.execute("VACUUM ANALYZE")
                await connection.execute("CHECKPOINT")

    async def size_bytes(self) -> int:
        """Returns the size of the store on disk."""
        if is_mongo(self.store):
            async with connect_mongo(self.store) as database:
                found = await database.command("dbStats")
                return int(found["storageSize"] + found["indexSize"])
        if not self.postgres:
            return sum(file.stat().st_size for file in self.folder.glob("homing.db*"))
        async with connect_postgres(self.store) as connection:
            return int(await connection.fetchval("SELECT pg_database_size(current_database())"))

    async def rows(self) -> int:
        """Counts the stored notifications in the tables, independently of the store's own tallies."""
        if is_mongo(self.store):
            async with connect_mongo(self.store) as database:
                return int(await database.notifications.count_documents({}))
        if self.postgres:
            async with connect_postgres(self.store) as connection:
                return int(await connection.fetchval(_POSTGRES_ROWS))
        with closing(sqlite3.connect(self.store)) as connection:
            return int(connection.execute(_SQLITE_ROWS).fetchone()[0])


@asynccontextmanager
async def open_scratch_store(server: str, *, in_flight: int = IN_FLIGHT) -> AsyncIterator[ScratchStore]:
    """Creates a temporary store and removes it afterwards.

    `server` is the URL of any database of a PostgreSQL or MongoDB server that allows creating databases, or
    `sqlite:` with an optional path. The SQLite file goes into a new folder inside that path, or next to it if
    the path is not a folder. Without a path, the new folder is in the system's temporary folder.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="homing-bench-", dir=_parent_folder(server)))
    except OSError as error:
        raise ServerUnusable(f"{server}: cannot create a folder there: {error.strerror}") from None
    try:
        if is_postgres(server):
            async with temporary_database(server, f"homing_bench_{os.getpid()}_{next(_number)}") as url:
                yield _create(folder, url, in_flight)
        elif is_mongo(server):
            async with _temporary_mongo(server, f"homing_bench_{os.getpid()}_{next(_number)}") as url:
                yield _create(folder, url, in_flight)
        else:
            yield _create(folder, str(folder / "homing.db"), in_flight)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _parent_folder(server: str) -> Path | None:
    named = "" if "://" in server else server.removeprefix("sqlite:")
    if not named:
        return None
    return Path(named) if Path(named).is_dir() else Path(named).absolute().parent


def _create(folder: Path, store: str, in_flight: int) -> ScratchStore:
    created = ScratchStore(folder=folder, store=store)
    created.config.write_text(_CONFIG.format(store=store, in_flight=in_flight), encoding="utf-8")
    return created


@asynccontextmanager
async def temporary_database(server: str, name: str) -> AsyncIterator[str]:
    """Creates a database, yields its URL and drops it. Replaces an existing database of this name."""
    import asyncpg

    async with connect_postgres(server) as admin:
        try:
            await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            await admin.execute(f"CREATE DATABASE {name}")
        except asyncpg.PostgresError as error:
            raise ServerUnusable(f"cannot create a database on the PostgreSQL server: {error}") from None
        try:
            yield f"{server.rpartition('/')[0]}/{name}"
        finally:
            await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@asynccontextmanager
async def connect_postgres(url: str) -> AsyncIterator[Any]:
    """Opens a connection to a PostgreSQL database and closes it afterwards."""
    import asyncpg

    try:
        connection = await asyncpg.connect(url)
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise ServerUnusable(f"cannot connect to the PostgreSQL server: {error}") from None
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def _temporary_mongo(server: str, name: str) -> AsyncIterator[str]:
    """Yields the URL of a new MongoDB database, and drops it afterwards."""
    host, mark, options = server.partition("?")
    scheme, _, rest = host.partition("://")
    url = f"{scheme}://{rest.partition('/')[0]}/{name}{mark}{options}"
    async with connect_mongo(url) as database:
        try:
            yield url
        finally:
            await database.client.drop_database(name)


@asynccontextmanager
async def connect_mongo(url: str) -> AsyncIterator[Any]:
    """Opens a connection to a MongoDB database and closes it afterwards. Yields the database."""
    from pymongo import AsyncMongoClient
    from pymongo.errors import PyMongoError

    try:
        client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(url)
        await client.admin.command("ping")
    except PyMongoError as error:
        raise ServerUnusable(f"cannot connect to the MongoDB server: {type(error).__name__}") from None
    try:
        yield client.get_default_database()
    finally:
        await client.close()
