"""The MongoDB store passes the store suite, on a real replica set."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pymongo import WriteConcern
from pymongo.synchronous.database import Database

from homing.core.ports.stores import Backend
from homing.stores.common.clock_guard import steady_clock_ms
from homing.stores.mongo import MongoStore
from homing.stores.mongo.schema import COLLECTIONS, META, META_ID
from homing.testing.store_suite import StoreSuite
from support.mongo_server import PrivateMongo, mongo_server

__all__ = ["mongo_server"]


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


@pytest.fixture(scope="session")
def database(mongo_server: PrivateMongo) -> Iterator[tuple[str, Database[dict[str, Any]]]]:
    """The address of a database of this process with its collections, and the database itself."""
    name = f"homing_suite_{os.getpid()}"
    url = mongo_server.database_url(name)
    asyncio.run(_migrate(url))
    with mongo_server.client() as client:
        yield url, client.get_database(name, write_concern=WriteConcern(1))
        client.drop_database(name)


async def _migrate(url: str) -> None:
    store = MongoStore(url)
    await store.open()
    await store.migrate()
    await store.close()


class TestMongoStore(StoreSuite):
    """Runs the suite on the MongoDB store."""

    walk_steps = 120  # half the steps of the SQLite store: each takes several times as long here

    @pytest.fixture
    async def harness(self, database: tuple[str, Database[dict[str, Any]]]) -> AsyncIterator[MongoHarness]:
        url, collections = database
        for name in COLLECTIONS:
            if name != META:
                collections[name].delete_many({})
        # The store reads what a majority has. The last write waits until the others have reached it.
        collections[META].with_options(write_concern=WriteConcern("majority")).update_one(
            {"_id": META_ID}, {"$set": {"sinks": []}, "$unset": {"clock": ""}}
        )
        harness = MongoHarness(url)
        await harness.store.open()
        yield harness
        await harness.close()
