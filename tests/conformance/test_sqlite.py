"""The SQLite store passes the store suite."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from homing.core.ports.stores import Backend
from homing.stores.sqlite import SqliteStore
from homing.testing.store_suite import StoreSuite


class SqliteHarness:
    """A store in a new file on the wall clock, plus the time that the test lets pass."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._passed_ms = 0
        self._opened: list[SqliteStore] = []
        self.store: Backend = self._make()

    def _now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._passed_ms

    def _make(self) -> SqliteStore:
        store = SqliteStore(self._path, clock=self._now_ms)
        self._opened.append(store)
        return store

    def add_next_release(self) -> None:
        """Adds an unknown column to every table: the code must work on the next release's schema."""
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            columns = (
                f"ALTER TABLE {name} ADD COLUMN of_the_next_release INTEGER NOT NULL DEFAULT 7;"
                for (name,) in tables
                if not name.startswith("sqlite_")
            )
            connection.executescript(f"BEGIN; {' '.join(columns)} COMMIT;")

    async def advance(self, duration_ms: int) -> None:
        self._passed_ms += duration_ms

    async def second(self) -> Backend:
        store = self._make()
        await store.open()
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


class TestSqliteStore(StoreSuite):
    """Runs the suite on the SQLite store."""

    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[SqliteHarness]:
        harness = SqliteHarness(tmp_path / "homing.db")
        await harness.store.open()
        await harness.store.migrate()
        harness.add_next_release()
        yield harness
        await harness.close()
