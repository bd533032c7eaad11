"""The MongoDB store passes the store suite, on a real replica set."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from homing.core.ports.stores import Backend
from homing.stores.common.clock_guard import steady_clock_ms
from homing.stores.mongo import MongoStore
from homing.testing.store_suite import StoreSuite


class MongoHarness:
    """A store in an emptied database on the server's clock, plus the time that the test lets pass."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: list[MongoStore] = []
        self._passed_ms = 0
        self.store: Backend = self._make()

    def _make(self) -> MongoStore:
        store = MongoStore(
            self._url,
            steady_clock=lambda: steady_clock_ms() + self._passed_ms,
            adjust_clock=lambda now: now + self._passed_ms,
        )
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


class TestMongoStore(StoreSuite):
    """Runs the suite on the MongoDB store."""

    walk_steps = 120  # half the steps of the SQLite store: each takes several times as long here
    claims_share_rows = True  # there is no SKIP LOCKED

    @pytest.fixture
    async def harness(self, migrated_mongo_url: str) -> AsyncIterator[MongoHarness]:
        harness = MongoHarness(migrated_mongo_url)
        await harness.store.open()
        yield harness
        await harness.close()
