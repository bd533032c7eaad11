"""Homing's transactions get the settings that they rely on, whatever the database or the role sets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from homing.stores.postgres import PostgresStore
from homing.stores.postgres.session_settings import DURABILITY_OVERRIDE
from homing.stores.postgres.statements import PostgresTransaction
from homing.testing.builders import a_claim_request, a_submission, sent
from support.pgbouncer import PgBouncer
from support.postgres_servers import opened

SetForDatabase = Callable[..., Awaitable[None]]


@pytest.fixture
async def admin(postgres_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.fixture
async def set_for_database(admin: asyncpg.Connection[asyncpg.Record]) -> AsyncIterator[SetForDatabase]:
    """Changes settings of the database, for connections that are made afterwards."""
    name = await admin.fetchval("SELECT current_database()")

    async def apply(**settings: str) -> None:
        for setting, value in settings.items():
            await admin.execute(f"ALTER DATABASE {name} SET {setting} = {value}")

    yield apply
    await admin.execute(f"ALTER DATABASE {name} RESET ALL")
    await admin.execute(f"ALTER DATABASE {name} SET {DURABILITY_OVERRIDE} = off")


async def _setting(store: PostgresStore, name: str) -> str:
    async def read(tx: PostgresTransaction) -> Any:
        return await tx.one(f"SELECT current_setting('{name}')")

    found: str = await store._database.do(read, timed=False)
    return found


@pytest.mark.parametrize(
    ("configured", "override", "effective"),
    [
        ("off", "", "on"),
        ("local", "", "on"),
        ("remote_write", "", "on"),
        ("on", "", "on"),
        ("remote_apply", "", "remote_apply"),
        ("on", "off", "off"),
        ("remote_apply", "local", "local"),
    ],
)
async def test_a_commit_is_on_disk_unless_the_database_says_otherwise_by_homing_s_own_setting(
    set_for_database: SetForDatabase,
    postgres_url: str,
    pgbouncer: PgBouncer,
    configured: str,
    override: str,
    effective: str,
) -> None:
    await set_for_database(**{"synchronous_commit": configured, DURABILITY_OVERRIDE: f"'{override}'"})
    pgbouncer.restart()  # its server sessions would keep the settings that they began with
    for url in (postgres_url, pgbouncer.url):
        async with opened(url) as store:
            assert await _setting(store, "synchronous_commit") == effective


async def test_functions_of_another_schema_do_not_take_the_place_of_the_server_s_own(
    set_for_database: SetForDatabase, admin: asyncpg.Connection[asyncpg.Record], postgres_url: str
) -> None:
    await admin.execute(
        "CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql STABLE "
        "AS $$ SELECT 'epoch'::timestamptz $$"
    )
    await set_for_database(search_path="public, pg_catalog")
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("SELECT extract(epoch FROM now())") == 0
    await connection.close()
    async with opened(postgres_url) as store:
        assert await store.now_ms() > 1_700_000_000_000
        [accepted] = await store.accept([a_submission()])
        claims = (await store.claim(a_claim_request())).claims
        assert [claim.id for claim in claims] == list(accepted.ids)
        assert len((await store.settle([sent(claims[0])])).applied) == 1


async def test_a_search_path_that_needs_no_change_is_kept_for_triggers_of_the_application(
    set_for_database: SetForDatabase, postgres_url: str
) -> None:
    await set_for_database(search_path="app, public")
    async with opened(postgres_url) as store:
        assert await _setting(store, "search_path") == "app, public"


async def test_a_statement_timeout_of_the_database_does_not_apply(
    set_for_database: SetForDatabase, postgres_url: str, pgbouncer: PgBouncer
) -> None:
    await set_for_database(statement_timeout="'1h'")
    pgbouncer.restart()
    for url in (postgres_url, pgbouncer.url):
        async with opened(url) as store:
            assert await _setting(store, "statement_timeout") == "0"


async def test_a_short_read_starts_no_parallel_workers(
    set_for_database: SetForDatabase, postgres_url: str, pgbouncer: PgBouncer
) -> None:
    await set_for_database(max_parallel_workers_per_gather="4", parallel_setup_cost="0")
    pgbouncer.restart()
    for url in (postgres_url, pgbouncer.url):
        async with opened(url) as store:
            assert await _setting(store, "max_parallel_workers_per_gather") == "0"


async def test_a_read_without_a_transaction_never_waits_or_fails_for_its_isolation_level(
    set_for_database: SetForDatabase, postgres_url: str
) -> None:
    await set_for_database(default_transaction_isolation="serializable", default_transaction_deferrable="on")
    async with opened(postgres_url) as store:
        read = "SELECT current_setting('transaction_isolation'), current_setting('transaction_deferrable')"
        [found] = await store._database.look(lambda tx: tx.rows(read))
        assert tuple(found) == ("read committed", "off")
