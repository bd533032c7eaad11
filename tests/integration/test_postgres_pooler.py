"""PgBouncer in transaction mode, with default settings of both: what works, and what stays behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import asyncpg
import pytest
from asyncpg import connect_utils

from homing.core.errors import StoreError, StoreUnavailable
from homing.stores.common.migrations import Migration
from homing.stores.postgres import PostgresStore, connection, listen_notify, migrations
from homing.stores.postgres.address import parse_database_url
from homing.testing.builders import a_claim_request, a_notification, a_submission, sent
from support.pgbouncer import PgBouncer
from support.postgres_servers import skip_if_missing

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_CONCURRENT = 8


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    async with asyncio.timeout(60):
        while True:
            try:
                await store.open()
                break
            except StoreUnavailable:  # PgBouncer can hand out a server session that has just been ended
                await asyncio.sleep(0.1)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def pooled(pooled_url: str) -> AsyncIterator[PostgresStore]:
    async with opened(pooled_url) as store:
        await store.migrate()
        yield store


async def _server_sessions(url: str) -> list[Connection]:
    """Returns connections through the pooler that hold different server sessions: all that it has."""
    connections = []
    for _ in range(20):  # PgBouncer's default_pool_size
        one = await asyncpg.connect(url, statement_cache_size=0)
        await one.execute("BEGIN")
        connections.append(one)
    return connections


async def _values(url: str, sql: str) -> set[Any]:
    connections = await _server_sessions(url)
    try:
        return {row[0] for one in connections for row in await one.fetch(sql)}
    finally:
        for one in connections:
            await one.close()


async def _deliver_concurrently(stores: list[PostgresStore], rounds: int) -> int:
    """Accepts, claims and settles on all stores at once, so that server sessions change hands."""

    async def work(store: PostgresStore) -> int:
        settled = 0
        for _ in range(rounds):
            await store.accept([a_submission(a_notification())])
            claims = (await store.claim(a_claim_request())).claims
            settled += len((await store.settle([sent(claim) for claim in claims])).applied)
            await store.tallies(None)
        return settled

    work_of_all = (work(store) for store in stores for _ in range(_CONCURRENT))
    settled = sum(await asyncio.gather(*work_of_all))
    async with asyncio.timeout(60):
        # A claim may find nothing although rows are due: sweeps are omitted while they are slow.
        while settled < len(stores) * _CONCURRENT * rounds:
            claims = (await stores[0].claim(a_claim_request())).claims
            settled += len((await stores[0].settle([sent(claim) for claim in claims])).applied)
    return settled


async def test_everything_works_with_default_settings_and_nothing_stays_behind(
    pooled: PostgresStore, pooled_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "homing.postgres")
    async with opened(pooled_url) as another:
        assert await _deliver_concurrently([pooled, another], 10) == 2 * _CONCURRENT * 10
    assert len([record for record in caplog.records if "go through a pooler" in record.message]) == 1
    assert await _values(pooled_url, "SELECT name FROM pg_prepared_statements") == set()
    changed = await _values(pooled_url, "SELECT name FROM pg_settings WHERE source = 'session'")
    assert changed <= {"application_name", "client_encoding", "DateStyle", "TimeZone"}  # PgBouncer's own
    locks = "SELECT objid FROM pg_locks WHERE locktype = 'advisory'"
    assert await _values(pooled_url, locks) == set()


async def test_a_pooler_without_a_free_server_session_is_not_given_up(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction has the only session, so a check on another connection has to do without one."""
    monkeypatch.setattr(connection, "_SLOW_S", 0.1)
    monkeypatch.setattr(connection, "_WATCH_INTERVAL_S", 0.05)
    with skip_if_missing(), PgBouncer(postgres_url, settings="default_pool_size=1") as pooler:
        database = connection.Database(parse_database_url(f"{pooler.url}?connect_timeout=1"), timeout_s=30)
        await database.open()
        try:
            assert await database.do(lambda tx: tx.one("SELECT 7 FROM pg_sleep(2)"), timed=False) == 7
        finally:
            await database.close()


_PREPARE_ALL = """
DO $$ BEGIN FOR number IN 0..20000 LOOP
    EXECUTE format('PREPARE "__asyncpg_stmt_%s__" AS SELECT 1', to_hex(number));
END LOOP; END $$
"""


@pytest.mark.parametrize("has_names_in_use", [False, True])
async def test_a_pooler_that_gives_out_the_servers_ids_is_found_by_its_first_lost_statement(
    pooled: PostgresStore, pooled_url: str, monkeypatch: pytest.MonkeyPatch, has_names_in_use: bool
) -> None:
    if has_names_in_use:  # the driver of another process has prepared statements under the same names
        other = await asyncpg.connect(pooled_url, statement_cache_size=0)
        await other.execute(_PREPARE_ALL)
        await other.close()

    async def same_pid(of: Any) -> int:
        pid: int = of.get_server_pid()
        return pid

    monkeypatch.setattr(connection, "_read_server_pid", same_pid)
    async with opened(pooled_url) as misled:
        assert misled._database.is_pooled is has_names_in_use
        reads = (misled._database.resolve_clock() for _ in range(_CONCURRENT))
        settled, *_ = await asyncio.gather(_deliver_concurrently([misled, pooled], 5), *reads)
        assert settled == 2 * _CONCURRENT * 5
        assert misled._database.is_pooled


async def test_one_of_several_hosts_may_be_a_pooler_whose_statement_names_are_in_use(
    pooled: PostgresStore, pooled_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver asks each of several hosts whether it accepts writes, unless the pooler has reported it."""

    async def asks(of: Any) -> bool:
        return not await of.fetchval("SELECT pg_catalog.pg_is_in_recovery()")

    monkeypatch.setitem(connect_utils.target_attrs_check, connect_utils.SessionAttribute.read_write, asks)
    other = await asyncpg.connect(pooled_url, statement_cache_size=0)
    await other.execute(_PREPARE_ALL)
    await other.close()
    host = urlsplit(pooled_url).netloc.rpartition("@")[2]
    async with opened(pooled_url.replace(host, f"{host},127.0.0.1:1")) as store:
        assert store._database.is_pooled
        assert len(await store.accept([a_submission()])) == 1


async def test_a_statement_cache_that_the_url_demands_is_used_and_its_loss_is_explained(
    pooled: PostgresStore, pooled_url: str
) -> None:
    with pytest.raises(StoreError, match="cached_statements"):
        async with opened(f"{pooled_url}?cached_statements=50") as store:
            await _deliver_concurrently([store, pooled], 20)


async def test_each_transaction_gets_all_settings_and_keeps_none(
    pooled: PostgresStore, pooled_url: str
) -> None:
    settings = ("enable_seqscan", "array_nulls", "plan_cache_mode")
    read = "SELECT ARRAY[" + ", ".join(f"current_setting('{name}')" for name in settings) + "]"
    values = await pooled._database.do(lambda tx: tx.one(read), timed=False)
    assert values == ["off", "on", "force_generic_plan"]
    kept = await _values(pooled_url, read.replace("ARRAY[", "concat_ws(' ', ").replace("]", ")"))
    assert kept == {"on on auto"}


# LISTEN ------------------------------------------------------------------------------------------------


@pytest.fixture
def session_pooler(postgres_url: str) -> Iterator[PgBouncer]:
    with skip_if_missing(), PgBouncer(postgres_url, pool_mode="session") as pooler:
        yield pooler


@asynccontextmanager
async def listening(store: PostgresStore) -> AsyncIterator[asyncio.Event]:
    woken = asyncio.Event()
    task = asyncio.create_task(store.listen(woken.set, lambda: None))
    try:
        yield woken
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_listener_that_receives_nothing_says_so_once_and_stops(
    pooled: PostgresStore, pooled_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listen_notify, "_TEST_TIMEOUT_S", 0.05)
    monkeypatch.setattr(listen_notify, "_NEXT_TEST_S", 0.05)
    tests = 0
    passes_test = listen_notify.Listener._passes_test

    async def counted(self: listen_notify.Listener, on: Any) -> bool:
        nonlocal tests
        tests += 1
        return await passes_test(self, on)

    monkeypatch.setattr(listen_notify.Listener, "_passes_test", counted)
    async with listening(pooled) as woken, asyncio.timeout(60):
        while tests < 3:
            await pooled.accept([a_submission()])
            await asyncio.sleep(0.01)
        assert not pooled.hears
        assert not woken.is_set()
    warnings = [record for record in caplog.records if "no message arrives" in record.getMessage()]
    assert len(warnings) == 1
    assert "listen_url" in warnings[0].getMessage()
    assert await _values(pooled_url, "SELECT pg_listening_channels()") & {"homing"} == set()


async def test_a_direct_url_for_listen_receives_what_is_accepted_through_the_pooler(
    pooled: PostgresStore, pooled_url: str, postgres_url: str
) -> None:
    async with opened(f"{pooled_url}?listen_url={postgres_url}") as store, listening(store) as woken:
        await asyncio.wait_for(woken.wait(), 60)
        assert store.hears
        woken.clear()
        await pooled.accept([a_submission()])
        await asyncio.wait_for(woken.wait(), 60)
    assert not store.hears


async def test_a_wrong_url_for_listen_is_told_once_and_tried_less_and_less_often(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    is_enough = asyncio.Event()
    note_failure = listen_notify.Listener._note_failure

    def without_pause(self: listen_notify.Listener, error: Exception) -> float:
        pauses.append(note_failure(self, error))
        if len(pauses) == 8:
            is_enough.set()
        return 0 if len(pauses) < 8 else 60

    monkeypatch.setattr(listen_notify.Listener, "_note_failure", without_pause)
    wrong = f"{postgres_url.rpartition('/')[0]}/no_such_database"
    url = f"{postgres_url}?listen_url={wrong}"
    async with opened(url) as store, asyncio.timeout(60), listening(store):
        await is_enough.wait()
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "rejected the login; check the user, password and database" in warning
    assert "listen_url" in warning


async def test_a_pooler_in_session_mode_supports_listen(session_pooler: PgBouncer) -> None:
    async with opened(session_pooler.url) as store, listening(store) as woken:
        await asyncio.wait_for(woken.wait(), 60)
        assert store.hears


async def test_a_store_that_must_not_listen_waits(postgres_url: str) -> None:
    async with opened(f"{postgres_url}?listen=0") as store:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.listen(lambda: None, lambda: None), 0.05)
        assert not store.hears


# Migrations --------------------------------------------------------------------------------------------


async def test_a_migration_outside_a_transaction_leaves_no_lock_in_a_session_of_the_pooler(
    pooled: PostgresStore, pooled_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = f"-- outside a transaction\n-- runs with: {len(migrations.MIGRATIONS)}\n"
    sql = f"{header}CREATE INDEX CONCURRENTLY messages_type ON homing.messages (type);"
    number = len(migrations.MIGRATIONS) + 1
    added = Migration(number, f"{number:04}_index", sql)
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, added))
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(pooled_url)) for _ in range(3)]
        applied = await asyncio.gather(*(store.migrate() for store in stores))
    assert sorted(applied) == [(), (), (added.name,)]
    assert await _values(pooled_url, "SELECT objid FROM pg_locks WHERE locktype = 'advisory'") == set()
