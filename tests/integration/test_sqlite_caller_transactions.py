"""A send that joins the caller's transaction is accepted with the caller's own data, or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from homing.core.errors import SchemaError, StoreBusy, StoreError
from homing.core.notifications import Status
from homing.stores.sqlite import SqliteStore
from homing.testing.builders import a_notification, a_submission
from homing.testing.store_suite.harness import claim_all, count_by_status, get_notification


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "app.db", busy_timeout_ms=100)
    await store.open()
    await store.migrate()
    yield store
    await store.close()


@pytest.fixture
def app(store: SqliteStore, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "app.db", timeout=60)
    connection.execute("CREATE TABLE orders (number INTEGER)")
    yield connection
    connection.close()


async def test_both_are_stored_after_the_commit(store: SqliteStore, app: sqlite3.Connection) -> None:
    app.execute("INSERT INTO orders VALUES (1)")
    new = a_notification()
    [answer] = await store.accept([a_submission(new)], tx=app)
    assert answer.ids == (new.id,)
    assert await count_by_status(store) == {}  # other connections do not see it yet
    app.commit()
    assert (await get_notification(store, new.id)).status is Status.PENDING
    assert [claim.id for claim in await claim_all(store)] == [new.id]
    assert await count_by_status(store) == {Status.SENDING: 1}


async def test_neither_is_stored_after_a_rollback(store: SqliteStore, app: sqlite3.Connection) -> None:
    app.execute("INSERT INTO orders VALUES (1)")
    await store.accept([a_submission(key="k")], tx=app)
    app.rollback()
    assert await count_by_status(store) == {}
    assert await claim_all(store) == ()
    [answer] = await store.accept([a_submission(key="k", fingerprint="other")])
    assert not answer.conflict


async def test_a_key_of_the_caller_s_transaction_is_known_only_there(
    store: SqliteStore, app: sqlite3.Connection
) -> None:
    app.execute("INSERT INTO orders VALUES (1)")
    [answer] = await store.accept([a_submission(key="k")], tx=app)
    key = ("default", "k")
    assert (await store.known_requests([key], tx=app))[key].ids == answer.ids
    assert await store.known_requests([key]) == {}
    app.commit()
    assert (await store.known_requests([key]))[key].ids == answer.ids


async def test_a_transaction_is_started_when_sqlite3_would_start_one(
    store: SqliteStore, app: sqlite3.Connection
) -> None:
    await store.accept([a_submission()], tx=app)
    assert app.in_transaction
    assert await count_by_status(store) == {}
    app.commit()
    assert await count_by_status(store) == {Status.PENDING: 1}


async def test_in_autocommit_mode_there_is_no_transaction_to_join(
    store: SqliteStore, app: sqlite3.Connection
) -> None:
    app.isolation_level = None
    with pytest.raises(StoreError, match="Begin one first"):
        await store.accept([a_submission()], tx=app)
    app.execute("BEGIN")
    await store.accept([a_submission()], tx=app)
    app.execute("COMMIT")
    assert await count_by_status(store) == {Status.PENDING: 1}


async def test_a_failed_send_is_undone_alone(store: SqliteStore, app: sqlite3.Connection) -> None:
    taken = a_submission()
    await store.accept([taken])
    app.execute("INSERT INTO orders VALUES (1)")
    # Many, with the invalid one last, so that part of them is written before the error.
    many = [a_notification() for _ in range(300)]
    many.append(a_notification(id=taken.notifications[0].id))
    with pytest.raises(StoreError, match="ids must be new"):
        await store.accept([a_submission(*many)], tx=app)
    app.commit()
    assert app.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert app.execute("SELECT count(*) FROM homing_notifications").fetchone() == (1,)
    assert await count_by_status(store) == {Status.PENDING: 1}


async def test_the_settings_of_the_connection_are_unchanged(
    store: SqliteStore, app: sqlite3.Connection
) -> None:
    app.row_factory = lambda _, row: {"row": row}
    await store.accept([a_submission(key="k")], tx=app)
    await store.accept([a_submission(key="k")], tx=app)
    app.commit()
    assert app.execute("SELECT 1").fetchone() == {"row": (1,)}
    assert await count_by_status(store) == {Status.PENDING: 1}


async def test_a_lock_of_another_connection_raises_busy(
    store: SqliteStore, app: sqlite3.Connection, tmp_path: Path
) -> None:
    app.execute("PRAGMA busy_timeout = 100")
    other = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        await store.accept([a_submission()], tx=app)
    other.execute("ROLLBACK")
    other.close()


async def test_a_connection_to_another_file_has_no_schema(store: SqliteStore, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(SchemaError):
        await store.accept([a_submission()], tx=other)
    other.close()


async def test_an_object_that_is_not_a_connection_is_refused(store: SqliteStore) -> None:
    with pytest.raises(StoreError, match=r"sqlite3\.Connection"):
        await store.accept([a_submission()], tx="BEGIN")
