"""The SQLite store keeps the promises of the port."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from homing.core.ports import Backend
from homing.stores.sqlite import SqliteStore
from homing.testing.store_suite import StoreSuite


class SqliteHarness:
    """A store in a fresh file on the wall clock, shifted by what the test lets pass."""

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
    """The suite, against the SQLite store."""

    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[SqliteHarness]:
        harness = SqliteHarness(tmp_path / "homing.db")
        await harness.store.open()
        await harness.store.migrate()
        yield harness
        await harness.close()
