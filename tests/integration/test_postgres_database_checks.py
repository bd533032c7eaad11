"""`examine` finds what would keep Homing from working with a server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from homing.core.errors import SchemaError
from homing.core.ports.stores import StoreCheckResult
from homing.stores.common.clock_guard import steady_clock_ms
from homing.stores.postgres import PostgresStore, database_checks, listen_notify
from homing.stores.postgres.session_settings import DURABILITY_OVERRIDE
from support.postgres_servers import skip_if_missing
from support.private_postgres import PrivatePostgres

ROLE = f"homing_test_{os.getpid()}_runner"
"""Role names are unique per process: roles belong to the server, and tests run in several processes."""


@pytest.fixture
async def url(postgres_url: str) -> AsyncIterator[str]:
    """A migrated store, and the URL of a role that does not own it."""
    store = PostgresStore(postgres_url)
    await store.open()
    await store.migrate()
    await store.close()
    parts = urlsplit(postgres_url)
    await _execute(postgres_url, f"DROP ROLE IF EXISTS {ROLE}", f"CREATE ROLE {ROLE} LOGIN")
    yield parts._replace(netloc=f"{ROLE}@{parts.netloc.rpartition('@')[2]}").geturl()
    await _execute(postgres_url, f"DROP OWNED BY {ROLE} CASCADE", f"DROP ROLE {ROLE}")


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


async def _findings(url: str, *, skew_ms: int = 0) -> dict[str, StoreCheckResult]:
    store = PostgresStore(url)
    await store.open()
    found = await store.examine(now_ms=time.time_ns() // 1_000_000 + skew_ms)
    await store.close()
    return {finding.name: finding for finding in found}


async def test_the_owner_of_a_migrated_schema_gets_no_findings(postgres_url: str, url: str) -> None:
    setting = f"ALTER DATABASE {urlsplit(postgres_url).path[1:]} SET {DURABILITY_OVERRIDE}"
    await _execute(postgres_url, f"{setting} = 'on'")
    findings = await _findings(postgres_url)
    await _execute(postgres_url, f"{setting} = 'off'")
    assert set(findings) == {
        *("server", "encoding", "commits", "writes", "schema", "role", "rows", "clock"),
        *("prepared", "vacuum", "pooler", "listen"),
    }
    assert all(finding.ok and not finding.advice for finding in findings.values())


async def test_commits_that_the_database_does_not_sync_for_homing_are_reported(
    postgres_url: str, url: str
) -> None:
    commits = (await _findings(postgres_url))["commits"]  # the databases of tests are set so
    assert commits.ok
    assert "a crash loses acknowledged sends" in commits.detail
    assert DURABILITY_OVERRIDE in commits.advice


async def test_a_role_without_grants_is_told_what_to_grant(postgres_url: str, url: str) -> None:
    await _execute(postgres_url, f"GRANT USAGE ON SCHEMA homing TO {ROLE}")
    await _execute(postgres_url, f"GRANT SELECT ON homing.schema_versions, homing.copies TO {ROLE}")
    role = (await _findings(url))["role"]
    assert not role.ok
    assert role.advice == f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA homing TO {ROLE}"
    assert "may not migrate" in role.detail


async def test_a_role_that_would_see_empty_tables_is_reported(postgres_url: str, url: str) -> None:
    granted = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA homing TO {ROLE}"
    await _execute(postgres_url, f"GRANT USAGE ON SCHEMA homing TO {ROLE}", granted)
    role = (await _findings(url))["role"]
    assert not role.ok
    assert "row-level security hides all rows" in role.advice
    await _execute(postgres_url, f"ALTER ROLE {ROLE} BYPASSRLS")
    assert (await _findings(url))["role"].ok


async def test_a_wrong_clock_is_reported(postgres_url: str, url: str) -> None:
    clock = (await _findings(postgres_url, skew_ms=600_000))["clock"]
    assert not clock.ok
    assert clock.detail.startswith(("-600", "-599"))


async def test_a_role_that_may_not_read_the_record_of_the_clock_trusts_the_clock(
    postgres_url: str, url: str
) -> None:
    await _grant_reading(postgres_url)
    await _execute(postgres_url, f"REVOKE ALL ON homing.clock FROM {ROLE}")
    store = PostgresStore(url)
    await store.open()
    assert await store.size()
    assert await store.now_ms() > 0
    await store.close()


async def test_a_role_that_may_only_read_goes_on_by_the_old_time(postgres_url: str, url: str) -> None:
    await _grant_reading(postgres_url)
    ahead_ms = 0
    store = PostgresStore(url, steady_clock=lambda: steady_clock_ms() + ahead_ms)
    await store.open()
    now = await store.now_ms()
    for ahead_ms in (40_000, 41_000, 55_000):  # the store's clock was set back by the first of them
        assert await store.size()
        assert abs(await store.now_ms() - now - ahead_ms) < 10_000
    await store.close()


async def _grant_reading(url: str) -> None:
    await _execute(
        url,
        f"GRANT USAGE ON SCHEMA homing TO {ROLE}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA homing TO {ROLE}",
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA homing TO {ROLE}",
    )


# Servers in a bad state --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def primary() -> Iterator[PrivatePostgres]:
    """A server with a store, on which transactions can be prepared, and which does not write full pages."""
    options = {"max_prepared_transactions": "5", "full_page_writes": "off"}
    with skip_if_missing(), PrivatePostgres(options=options) as server:
        asyncio.run(_migrate(server.url))
        yield server


@pytest.fixture(scope="module")
def standby(primary: PrivatePostgres) -> Iterator[PrivatePostgres]:
    """A standby that does not sync its disk."""
    server = PrivatePostgres(fsync=False, options={"max_prepared_transactions": "5"})
    server.become_standby_of(primary.port)
    yield server
    server.__exit__()


async def _migrate(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    try:
        await store.migrate()
    finally:
        await store.close()


async def test_a_standby_and_a_disk_that_is_not_synced_are_refused(standby: PrivatePostgres) -> None:
    findings = await _findings(standby.url)
    assert not findings["writes"].ok
    assert "standby" in findings["writes"].detail
    assert not findings["commits"].ok
    assert "fsync is off" in findings["commits"].detail


async def test_full_pages_that_are_not_written_are_reported(primary: PrivatePostgres) -> None:
    commits = (await _findings(primary.url))["commits"]
    assert commits.ok
    assert "full_page_writes is off" in commits.detail
    assert DURABILITY_OVERRIDE not in commits.advice


@pytest.mark.parametrize("level", ["off", "local", "remote_write"])
async def test_each_level_that_may_lose_commits_is_reported_beside_other_findings(
    primary: PrivatePostgres, level: str
) -> None:
    primary.query(f"ALTER DATABASE postgres SET {DURABILITY_OVERRIDE} = '{level}'")
    try:
        commits = (await _findings(primary.url))["commits"]
    finally:
        primary.query(f"ALTER DATABASE postgres RESET {DURABILITY_OVERRIDE}")
    assert commits.ok
    assert "full_page_writes is off" in commits.detail
    assert f"synchronous_commit is {level}: " in commits.detail
    assert DURABILITY_OVERRIDE in commits.advice


async def test_a_server_that_is_read_only_is_refused(primary: PrivatePostgres) -> None:
    primary.fence()
    try:
        writes = (await _findings(primary.url))["writes"]
    finally:
        primary.unfence()
    assert not writes.ok
    assert "default_transaction_read_only" in writes.detail
    assert (await _findings(primary.url))["writes"].ok


async def test_a_database_without_utf_8_is_refused_with_the_command_for_a_better_one(
    primary: PrivatePostgres,
) -> None:
    primary.query("DROP DATABASE IF EXISTS latin")
    primary.query("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    url = primary.url.replace("/postgres", "/latin")
    encoding = (await _findings(url))["encoding"]
    assert (encoding.ok, encoding.detail) == (False, "LATIN1")
    assert "ENCODING 'UTF8'" in encoding.advice
    with pytest.raises(SchemaError, match="CREATE DATABASE homing ENCODING 'UTF8'"):
        await _migrate(url)
    primary.query("DROP DATABASE IF EXISTS better")
    primary.query(encoding.advice.replace("homing", "better"))
    await _migrate(primary.url.replace("/postgres", "/better"))


@pytest.mark.parametrize(
    ("statement", "ok", "what"),
    [
        ("LOCK TABLE homing.live", False, "locks Homing's tables"),
        ("LOCK TABLE homing.live IN SHARE MODE", False, "locks Homing's tables"),
        ("DELETE FROM homing.live", True, "may lock rows of Homing"),
        ("SELECT 1 FROM homing.live", True, "holds back vacuum"),
        ("SELECT txid_current()", True, "holds back vacuum"),
    ],
)
async def test_an_old_prepared_transaction_is_named(
    primary: PrivatePostgres, monkeypatch: pytest.MonkeyPatch, statement: str, ok: bool, what: str
) -> None:
    monkeypatch.setattr(database_checks, "_OLD_PREPARED_MS", 0)
    await _execute(primary.url, "BEGIN", statement, "PREPARE TRANSACTION 'it''s forgotten'")
    try:
        prepared = (await _findings(primary.url))["prepared"]
    finally:
        await _execute(primary.url, "ROLLBACK PREPARED 'it''s forgotten'")
    assert prepared.ok is ok
    assert what in prepared.detail
    assert prepared.advice == "COMMIT PREPARED or ROLLBACK PREPARED 'it''s forgotten'"
    assert (await _findings(primary.url))["prepared"].advice == ""


async def test_an_old_transaction_of_another_session_is_named(
    primary: PrivatePostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_checks, "_OLD_SNAPSHOT_MS", 0)
    other = await asyncpg.connect(primary.url)
    pid = other.get_server_pid()
    await other.execute("BEGIN; SELECT txid_current()")
    vacuum = (await _findings(primary.url))["vacuum"]
    await other.close()
    assert vacuum.ok
    assert f"by pid {pid}, which is idle in transaction" in vacuum.detail
    assert f"pg_terminate_backend({pid})" in vacuum.advice


async def test_a_vacuum_that_takes_long_is_not_reported(
    primary: PrivatePostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_checks, "_OLD_SNAPSHOT_MS", 0)
    await _execute(
        primary.url,
        "CREATE TABLE slow AS SELECT n, repeat('x', 500) AS x FROM generate_series(1, 20000) AS n",
        "DELETE FROM slow WHERE n % 2 = 0",
    )
    other = await asyncpg.connect(primary.url)
    pid = other.get_server_pid()
    await other.execute("SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1")
    vacuuming = asyncio.create_task(other.execute("VACUUM slow"))
    running = (
        "SELECT count(*) FROM pg_stat_progress_vacuum AS v JOIN pg_stat_activity AS a USING (pid)"
        f" WHERE pid = {pid} AND a.backend_xmin IS NOT NULL"
    )
    try:
        async with asyncio.timeout(60):
            while await asyncio.to_thread(primary.query, running) != [(1,)]:
                pass
        vacuum = (await _findings(primary.url))["vacuum"]
        assert primary.query(running) == [(1,)]
    finally:
        primary.query(f"SELECT pg_cancel_backend({pid})")
        await asyncio.gather(vacuuming, return_exceptions=True)
        await other.close()
        await _execute(primary.url, "DROP TABLE slow")
    assert (vacuum.ok, vacuum.advice) == (True, "")


async def test_a_pooler_and_a_listener_that_receives_nothing_are_reported(
    postgres_url: str, pooled_url: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen_notify, "_TEST_TIMEOUT_S", 0.05)
    findings = await _findings(pooled_url)
    assert findings["pooler"].detail == "found; 0 prepared statements are kept per connection"
    assert (findings["listen"].ok, "listen_url" in findings["listen"].advice) == (True, True)
    listening = await _findings(f"{pooled_url}?listen_url={postgres_url}&cached_statements=20")
    assert listening["pooler"].detail == "found; 20 prepared statements are kept per connection"
    assert (listening["listen"].ok, listening["listen"].advice) == (True, "")
    off = await _findings(f"{pooled_url}?listen=false")
    assert "listen=false" in off["listen"].detail


async def test_a_direct_url_that_leads_nowhere_is_refused(postgres_url: str, url: str) -> None:
    listen = (await _findings(f"{postgres_url}?listen_url=postgresql://u:secret@127.0.0.1:1/x"))["listen"]
    assert not listen.ok
    assert "127.0.0.1:1/x (Connection refused)" in listen.detail
    assert "secret" not in listen.detail


async def test_a_role_that_is_called_like_the_schema_is_a_warning(postgres_url: str, url: str) -> None:
    """Its objects without a schema would be created in Homing's schema."""
    await _execute(postgres_url, f"GRANT CREATE ON DATABASE {urlsplit(postgres_url).path[1:]} TO {ROLE}")
    own = f"{url}?schema={ROLE}"
    store = PostgresStore(own)
    await store.open()
    await store.migrate()
    await store.close()
    found = (await _findings(own))["role"]
    assert found.ok
    assert "land in Homing's schema" in found.advice
