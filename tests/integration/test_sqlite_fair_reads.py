"""Long reads of a SQLite file: they end with their caller and after a time, and tenants take turns."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from homing.core.errors import StoreBusy
from homing.stores.sqlite import SqliteStore, fair_reads
from homing.stores.sqlite.statements import SqliteTransaction

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


def endless(tx: SqliteTransaction) -> Any:
    return tx.one(ENDLESS)


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    store = SqliteStore(tmp_path / "homing.db")
    await store.open()
    await store.migrate()
    yield store
    await store.close()


async def test_a_read_ends_when_its_caller_leaves(store: SqliteStore) -> None:
    for _ in range(2 * fair_reads.THREADS):
        reading = asyncio.create_task(store._read(endless, "a"))
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    async with asyncio.timeout(60):
        assert await store.tallies("a") == ()


async def test_a_read_that_takes_too_long_fails_and_the_next_one_works(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_reads, "READ_WITHIN_S", 0.05)
    async with asyncio.timeout(60):
        with pytest.raises(StoreBusy, match="took longer"):
            await store._read(endless, "a")
        assert await store.tallies("a") == ()


async def test_long_reads_of_one_tenant_do_not_stop_others_or_key_checks(store: SqliteStore) -> None:
    slow = [asyncio.create_task(store._read(endless, "greedy")) for _ in range(50)]
    await asyncio.sleep(0.05)
    async with asyncio.timeout(60):
        assert await store.tallies("modest") == ()
        assert await store.get_many("*", "api_key", ["k"]) == {}
    assert not any(one.done() for one in slow)
    for one in slow:
        one.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


async def test_a_tenant_cannot_queue_reads_without_end(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_reads, "_MOST_WAITING", 3)
    slow = [asyncio.create_task(store._read(endless, "greedy")) for _ in range(8)]
    done, waiting = await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    assert done
    assert all(isinstance(one.exception(), StoreBusy) for one in done)
    for one in waiting:
        one.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


async def test_reads_that_wait_are_done_before_the_store_closes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "homing.db")
    await store.open()
    await store.migrate()
    reads = [asyncio.create_task(store.tallies(f"t{number % 3}")) for number in range(30)]
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.gather(*reads) == [()] * 30


def test_the_connections_are_closed_one_after_the_other(tmp_path: Path) -> None:
    """SQLite writes the log to the main file when the last one is closed, if no other is being closed."""
    closers: list[int] = []

    class Connection(sqlite3.Connection):
        def close(self) -> None:
            closers.append(threading.get_ident())
            super().close()

    path = tmp_path / "homing.db"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, check_same_thread=False, factory=Connection)

    fair_reads.FairReads(connect, path).stop()
    assert closers == [threading.get_ident()] * fair_reads.THREADS
