"""The PostgreSQL store passes the store suite, on a database whose settings differ from the defaults."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from homing.core.ports.stores import Backend
from homing.stores.common.clock_guard import steady_clock_ms
from homing.stores.postgres import PostgresStore
from homing.stores.postgres.session_settings import DURABILITY_OVERRIDE
from homing.testing.store_suite import StoreSuite
from support.odd_settings import ODD_SETTINGS

_SHIFTED = """
CREATE SCHEMA test;
CREATE TABLE test.clock (passed_ms bigint NOT NULL);
INSERT INTO test.clock VALUES (0);
CREATE OR REPLACE FUNCTION homing.now_ms() RETURNS bigint LANGUAGE sql STABLE AS
$$ SELECT floor(extract(epoch FROM now()) * 1000)::bigint + (SELECT passed_ms FROM test.clock) $$;
"""
# An additional unknown column in every table: the code must work on the next release's schema.
_NEXT_RELEASE = """
DO $$ DECLARE name regclass; BEGIN
    FOR name IN SELECT oid FROM pg_class WHERE relnamespace = 'homing'::regnamespace AND relkind = 'r' LOOP
        EXECUTE format('ALTER TABLE %s ADD COLUMN of_the_next_release integer NOT NULL DEFAULT 7', name);
    END LOOP;
END $$
"""
_TABLES = """
SELECT string_agg(format('DELETE FROM %s', oid::regclass), ';') FROM pg_class
WHERE relnamespace = 'homing'::regnamespace AND relkind = 'r' AND relname <> 'schema_versions'
"""


class PostgresHarness:
    """A store in an emptied schema on the server's clock, plus the time that the test lets pass."""

    def __init__(self, url: str, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        self._url = url
        self._connection = connection
        self._opened: list[PostgresStore] = []
        self._passed_ms = 0
        self.store: Backend = self._make()

    def _make(self) -> PostgresStore:
        store = PostgresStore(f"{self._url}?pool_size=4", steady_clock=self._steady_ms)
        self._opened.append(store)
        return store

    async def empty(self) -> None:
        everything = await self._connection.fetchval(_TABLES)
        await self._connection.execute(f"UPDATE test.clock SET passed_ms = 0; {everything}")

    def _steady_ms(self) -> int:
        return steady_clock_ms() + self._passed_ms

    async def advance(self, duration_ms: int) -> None:
        self._passed_ms += duration_ms
        await self._connection.execute("UPDATE test.clock SET passed_ms = passed_ms + $1", duration_ms)

    async def second(self) -> Backend:
        store = self._make()
        await store.open()
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


async def _migrate(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    await store.migrate()
    await store.close()
    await _execute(url, _SHIFTED, _NEXT_RELEASE)


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


@pytest.fixture(scope="session")
def database(postgres_server: str) -> Iterator[str]:
    """A database of this process with the schema and a controlled clock."""
    name = f"homing_suite_{os.getpid()}"
    url = f"{postgres_server.rpartition('/')[0]}/{name}"
    odd = [f"ALTER DATABASE {name} SET {setting} = {value}" for setting, value in ODD_SETTINGS.items()]
    unsafe = (
        f"ALTER DATABASE {name} SET {DURABILITY_OVERRIDE} = off"  # no test here stops the server by force
    )
    asyncio.run(_execute(postgres_server, f"CREATE DATABASE {name}", *odd, unsafe))
    asyncio.run(_migrate(url))
    yield url
    asyncio.run(_execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)"))


class TestPostgresStore(StoreSuite):
    """Runs the suite on the PostgreSQL store."""

    walk_steps = 120  # half the steps of the other stores: each takes several times as long here

    @pytest.fixture
    async def harness(self, database: str) -> AsyncIterator[PostgresHarness]:
        connection = await asyncpg.connect(database)
        harness = PostgresHarness(database, connection)
        await harness.empty()
        await harness.store.open()
        yield harness
        await harness.close()
        await connection.close()
