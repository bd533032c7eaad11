"""A PostgreSQL database whose history goes back: to saved tables, or to a saved data folder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import asyncpg

from support.private_postgres import PrivatePostgres

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'homing'"
_SEQUENCES = "SELECT sequencename FROM pg_sequences WHERE schemaname = 'homing'"


class SavedTables:
    """All tables and sequences of Homing's schema, as they were at one moment.

    `restore` puts them back within the running server. The processes that use the database keep their
    connections, as they do behind a pooler while the server behind it is replaced.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    async def save(self) -> None:
        async with _Connection(self._url) as connection, connection.transaction():
            await connection.execute("DROP SCHEMA IF EXISTS saved CASCADE; CREATE SCHEMA saved")
            await connection.execute(
                "CREATE TABLE saved.sequences (name text, last_value bigint, is_called boolean)"
            )
            for (table,) in await connection.fetch(_TABLES):
                await connection.execute(f"CREATE TABLE saved.t_{table} AS TABLE homing.{table}")
            for (sequence,) in await connection.fetch(_SEQUENCES):
                await connection.execute(
                    f"INSERT INTO saved.sequences SELECT '{sequence}', last_value, is_called"
                    f" FROM homing.{sequence}"
                )

    async def restore(self) -> None:
        async with _Connection(self._url) as connection, connection.transaction():
            for (table,) in await connection.fetch(_TABLES):
                await connection.execute(f"TRUNCATE homing.{table} CASCADE")
            for (table,) in await connection.fetch(_TABLES):
                await connection.execute(
                    f"INSERT INTO homing.{table} OVERRIDING SYSTEM VALUE SELECT * FROM saved.t_{table}"
                )
            for name, last, called in await connection.fetch("TABLE saved.sequences"):
                await connection.execute(f"SELECT setval('homing.{name}', {last}, {called})")


class SavedFolder:
    """The data folder of a private server, as it was at one moment.

    `restore` has the effect of a backup that is put back while the processes that use the server go on, and
    of a failover to a standby that had not received everything.
    """

    def __init__(self, server: PrivatePostgres) -> None:
        self._server = server
        self._saved = server.data.with_name("saved")

    def save(self) -> None:
        self._server.stop("fast")
        _copy(self._server.data, self._saved)
        self._server.start()

    def restore(self) -> None:
        self._server.stop()
        _copy(self._saved, self._server.data)
        self._server.start()


def _copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", source, target], check=True)  # keeps the owner of the files


class _Connection:
    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> asyncpg.Connection[Any]:
        self._connection = await asyncpg.connect(self._url)
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()
