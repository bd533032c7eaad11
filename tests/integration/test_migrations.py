"""Two releases on one schema: which of them may use it, and how the newer one migrates it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import pytest
from msgspec import to_builtins

from homing.core.errors import SchemaError, StoreBusy
from homing.core.lifecycle.effects import SUPPRESSION
from homing.core.lifecycle.events import ALERT, STATUS_CHANGED
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.notifications import Status
from homing.core.ports.stores import Backend
from homing.stores.common.migrations import Migration, load_migrations
from homing.stores.postgres import PostgresStore
from homing.stores.postgres import migrations as migrating
from homing.stores.postgres import migrations as postgres_schema
from homing.stores.sqlite import SqliteStore
from homing.stores.sqlite import migrations as sqlite_schema
from homing.testing.builders import a_claim_request, a_notification, a_receipt, a_submission, sent
from homing.testing.store_suite.harness import subscribe

Admin: TypeAlias = "asyncpg.Connection[Any]"
SQLITE, POSTGRES = sqlite_schema.MIGRATIONS, postgres_schema.MIGRATIONS


def next_migration(known: tuple[Migration, ...], sql: str, *header: str) -> tuple[Migration, ...]:
    """This release's migrations, and one more."""
    number = len(known) + 1
    return (*known, Migration(number, f"{number:04}_next", "\n".join((*header, sql))))


async def goes_through(store: Backend) -> None:
    """Accepts, claims, settles and reads a notification."""
    [answer] = await store.accept([a_submission()])
    await store.settle([sent(claim) for claim in (await store.claim(a_claim_request())).claims])
    history = await store.get("default", answer.ids[0])
    assert history is not None
    assert history.notification.status is Status.SENT


@pytest.fixture
async def admin(postgres_url: str) -> AsyncIterator[Admin]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


def test_the_header_of_a_migration_is_parsed() -> None:
    said = Migration(5, "0005_x", "-- runs with: 3\n-- outside a transaction\nSELECT 1;")
    assert (said.runs_with, said.outside_transaction) == (3, True)
    silent = Migration(5, "0005_x", "-- this one runs with: 3, or so\nSELECT 1;")
    assert (silent.runs_with, silent.outside_transaction) == (5, False)


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_the_migrations_of_a_release_are_complete_and_numbered(dialect: str) -> None:
    known = load_migrations(dialect)
    assert [one.version for one in known] == list(range(1, len(known) + 1))


# Receipts stored by the previous release ----------------------------------------------------------------

KEPT_BEFORE = {
    "m-dead": {"recipient_at_fault": True, "address_dead": True},
    "m-fault": {"recipient_at_fault": True, "address_dead": False},
    "m-other": {"recipient_at_fault": False, "address_dead": False},
}
"""Message → the failure as the previous release wrote it."""


def kept_before(message: str, flags: dict[str, bool]) -> str:
    """Returns an early receipt as the previous release stored it."""
    receipt = to_builtins(a_receipt(message, ReceiptEvent.FAILED, event_id=message))
    for name in ("outcome", "retry_after_ms", "backoff_ms"):
        del receipt[name]
    return json.dumps(receipt | flags)


async def keep_and_settle(store: Backend, rewrite: Callable[[str, str], Awaitable[None]]) -> None:
    """Checks that early receipts stored by the previous release are applied correctly."""
    await store.accept([a_submission(a_notification()) for _ in KEPT_BEFORE])
    claims = (await store.claim(a_claim_request())).claims
    for message, flags in KEPT_BEFORE.items():
        await store.receipt([a_receipt(message, ReceiptEvent.FAILED, event_id=message)])
        await rewrite(message, kept_before(message, flags))
    older = [
        sent(claim, message, bounce_always=None, bounce_ms=None)
        for claim, message in zip(claims, KEPT_BEFORE, strict=True)
    ]
    await store.settle(older)
    found = [await store.get("default", claim.id) for claim in claims]
    statuses = [one.notification.status for one in found if one is not None]
    assert statuses == [Status.FAILED, Status.FAILED, Status.RETRYING]
    [suppressed] = await store.list_entries("default", SUPPRESSION)
    assert suppressed.value["why"] == "dead_address"


async def test_early_receipts_stored_by_the_previous_release_are_read_in_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "homing.db"

    async def rewrite(message: str, kept: str) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE homing_receipts SET kept = ? WHERE event_id = ?", (kept, message))

    store = SqliteStore(path)
    await store.open()
    await store.migrate()
    await keep_and_settle(store, rewrite)
    await store.close()


async def test_early_receipts_stored_by_the_previous_release_are_read_in_postgres(
    postgres_url: str, admin: Admin
) -> None:
    async def rewrite(message: str, kept: str) -> None:
        await admin.execute("UPDATE homing.receipts SET kept = $1 WHERE event_id = $2", kept, message)

    store = PostgresStore(postgres_url)
    await store.open()
    await store.migrate()
    await keep_and_settle(store, rewrite)
    await store.close()


# SQLite -------------------------------------------------------------------------------------------------


async def sqlite_store(
    path: Path, monkeypatch: pytest.MonkeyPatch, known: tuple[Migration, ...]
) -> SqliteStore:
    """Returns a store opened by a program with these migrations."""
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", known)
    store = SqliteStore(path)
    await store.open()
    return store


async def test_the_previous_release_keeps_working_on_a_sqlite_file_if_the_migration_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = "ALTER TABLE homing_notifications ADD COLUMN new INTEGER NOT NULL DEFAULT 0;"
    newer = next_migration(SQLITE, column, f"-- runs with: {len(SQLITE)}")
    store = await sqlite_store(tmp_path / "homing.db", monkeypatch, newer)
    assert len(await store.migrate()) == len(newer)
    await store.close()
    older = await sqlite_store(tmp_path / "homing.db", monkeypatch, SQLITE)
    assert await older.migrate() == ()
    await goes_through(older)
    assert (await older.size())["schema_version"] == len(newer)
    await older.close()


async def test_a_program_too_old_for_a_sqlite_file_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "homing.db"
    newer = next_migration(SQLITE, "DROP TABLE homing_receipts;")
    store = await sqlite_store(path, monkeypatch, newer)
    await store.migrate()
    await store.close()
    with pytest.raises(SchemaError, match=rf"with schema version {len(newer)} or newer.*Upgrade Homing"):
        await sqlite_store(path, monkeypatch, SQLITE)


async def test_the_first_release_refuses_versions_it_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "homing.db"
    store = SqliteStore(path)
    await store.open()
    await store.migrate()
    await store.close()
    with closing(sqlite3.connect(path)) as connection:
        # The check of the first release, which has only one migration.
        assert connection.execute("SELECT max(version) FROM homing_schema").fetchone() == (1,)


# PostgreSQL ---------------------------------------------------------------------------------------------


async def postgres_store(
    url: str, monkeypatch: pytest.MonkeyPatch, known: tuple[Migration, ...]
) -> PostgresStore:
    """Returns a store opened by a program with these migrations."""
    monkeypatch.setattr(postgres_schema, "MIGRATIONS", known)
    store = PostgresStore(url)
    await store.open()
    return store


async def test_the_previous_release_keeps_working_on_a_postgres_schema_if_the_migration_allows_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = "".join(
        f"ALTER TABLE homing.{table} ADD COLUMN new integer NOT NULL DEFAULT 0;"
        for table in ("messages", "live", "settled", "attempts", "ledger", "receipts", "outbox")
    )
    newer = next_migration(POSTGRES, columns, f"-- runs with: {len(POSTGRES)}")
    older = await postgres_store(postgres_url, monkeypatch, POSTGRES)
    await older.migrate()
    await goes_through(older)
    store = await postgres_store(postgres_url, monkeypatch, newer)
    assert await store.migrate() == (newer[-1].name,)
    await goes_through(older)  # it was not restarted yet
    restarted = await postgres_store(postgres_url, monkeypatch, POSTGRES)
    assert await restarted.migrate() == ()
    await goes_through(restarted)
    for one in (older, store, restarted):
        await one.close()


async def test_a_program_too_old_for_a_postgres_schema_refuses_it(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = next_migration(POSTGRES, "DROP TABLE homing.leads;")
    store = await postgres_store(postgres_url, monkeypatch, newer)
    await store.migrate()
    await store.close()
    with pytest.raises(SchemaError, match=rf"with schema version {len(newer)} or newer.*Upgrade Homing"):
        await postgres_store(postgres_url, monkeypatch, POSTGRES)


async def test_a_migration_that_waits_for_a_table_does_not_block_others(
    postgres_url: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrating, "LOCK_TIMEOUT_MS", 50)
    store = await postgres_store(postgres_url, monkeypatch, POSTGRES)
    await store.migrate()
    sql = "ALTER TABLE homing.live ADD COLUMN new integer;"
    monkeypatch.setattr(postgres_schema, "MIGRATIONS", next_migration(POSTGRES, sql))
    async with admin.transaction():
        await admin.execute("LOCK TABLE homing.live IN ACCESS SHARE MODE")  # a long report
        waiting = asyncio.create_task(store.migrate())
        for _ in range(5):
            await asyncio.wait_for(goes_through(store), 60)
        assert not waiting.done()
    assert len(await asyncio.wait_for(waiting, 60)) == 1
    await store.close()


async def test_a_migration_without_its_lock_names_the_blocker_and_changes_nothing(
    postgres_url: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrating, "LOCK_TIMEOUT_MS", 20)
    monkeypatch.setattr(migrating, "PATIENCE_S", 0.0)
    store = await postgres_store(postgres_url, monkeypatch, POSTGRES)
    await store.migrate()
    newer = next_migration(
        POSTGRES, "CREATE TABLE homing.new (); ALTER TABLE homing.live ADD COLUMN new integer;"
    )
    monkeypatch.setattr(postgres_schema, "MIGRATIONS", newer)
    async with admin.transaction():
        await admin.execute("LOCK TABLE homing.live IN ACCESS SHARE MODE")
        with pytest.raises(StoreBusy, match="pg_stat_activity"):
            await store.migrate()
    assert await admin.fetchval("SELECT to_regclass('homing.new')") is None
    assert (await store.size())["schema_version"] == len(POSTGRES)
    await store.close()


async def test_an_index_on_a_big_table_is_built_concurrently_by_one_process(
    postgres_url: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await postgres_store(postgres_url, monkeypatch, POSTGRES)
    await store.migrate()
    sql = (
        "DROP INDEX CONCURRENTLY IF EXISTS homing.messages_type;\n"
        "CREATE INDEX CONCURRENTLY messages_type ON homing.messages (type);"
    )
    header = ("-- outside a transaction", f"-- runs with: {len(POSTGRES)}")
    newer = next_migration(POSTGRES, sql, *header)
    others = [await postgres_store(postgres_url, monkeypatch, newer) for _ in range(3)]
    applied = await asyncio.gather(*(other.migrate() for other in others))
    assert sorted(applied) == [(), (), (newer[-1].name,)]
    valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'homing.messages_type'::regclass"
    assert await admin.fetchval(valid) is True
    await goes_through(store)
    for one in (store, *others):
        await one.close()


async def test_an_index_is_built_concurrently_even_if_the_server_limits_statements(
    postgres_url: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await postgres_store(postgres_url, monkeypatch, POSTGRES)
    await store.migrate()
    header = ("-- outside a transaction", f"-- runs with: {len(POSTGRES)}")
    newer = next_migration(POSTGRES, "SELECT pg_sleep(0.5);", *header)
    limited = await postgres_store(postgres_url, monkeypatch, newer)
    database = await admin.fetchval("SELECT current_database()")
    await admin.execute(f"ALTER DATABASE {database} SET statement_timeout = 250")
    try:
        assert await limited.migrate() == (newer[-1].name,)
    finally:
        await admin.execute(f"ALTER DATABASE {database} RESET statement_timeout")
        for one in (store, limited):
            await one.close()


# Events of the previous release ------------------------------------------------------------------------

_OLD_EVENT = (
    "(id, name, tenant, at, notification_id, payload) VALUES ('e-{0}', '{1}', 'default', {0}, 'n', '{{}}')"
)


async def check_old_events(store: Backend, write: Callable[[str], Awaitable[object]], table: str) -> None:
    """Writes events as the previous release does, before and after sinks are registered."""
    for number, name in ((1, ALERT), (2, STATUS_CHANGED)):
        await write(f"INSERT INTO {table} {_OLD_EVENT.format(number, name)}")
    await subscribe(store, ALERT, sink="a")
    await subscribe(store, ALERT, STATUS_CHANGED, sink="b")
    for number, name in ((3, ALERT), (4, STATUS_CHANGED), (3, ALERT)):
        await write(f"INSERT INTO {table} {_OLD_EVENT.format(number, name)} ON CONFLICT (id) DO NOTHING")
    found = {sink: await store.outbox(sink, "relay", 10, 1000) for sink in ("a", "b")}
    assert [event.id for event in found["a"]] == ["e-1", "e-3"]
    assert [event.id for event in found["b"]] == ["e-1", "e-2", "e-3", "e-4"]
    await subscribe(store, ALERT, sink="a")  # a restart does not publish them again
    await store.published("a", found["a"])
    await subscribe(store, ALERT, sink="a")
    assert await store.outbox("a", "relay", 10, 1000) == ()


async def test_events_of_the_previous_release_go_to_every_registered_sink_in_sqlite(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "homing.db")
    await store.open()
    await store.migrate()
    with closing(sqlite3.connect(tmp_path / "homing.db", isolation_level=None)) as connection:

        async def write(sql: str) -> object:
            return connection.execute(sql)

        await check_old_events(store, write, "homing_outbox")
    await store.close()


async def test_events_of_the_previous_release_go_to_every_registered_sink_in_postgres(
    postgres_url: str, admin: Admin
) -> None:
    store = PostgresStore(postgres_url)
    await store.open()
    await store.migrate()
    await check_old_events(store, admin.execute, "homing.outbox")
    await store.close()


async def test_an_empty_sqlite_file_is_not_filled_unless_that_is_asked_for(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "homing.db")
    await store.open()
    try:
        with pytest.raises(SchemaError, match="homing db migrate"):
            await store.migrate(create=False)
        assert await store.migrate() == tuple(one.name for one in SQLITE)
    finally:
        await store.close()
