"""Fixtures with real parts: a PostgreSQL store, a server that misbehaves, and the HTTP client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from homing.net.http_client import CurlTransport
from homing.stores.postgres import PostgresStore
from homing.testing.fault_server import FaultServer


@pytest.fixture
async def store(migrated_postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(migrated_postgres_url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def server() -> AsyncIterator[FaultServer]:
    async with FaultServer() as running:
        yield running


@pytest.fixture
async def transport() -> AsyncIterator[CurlTransport]:
    made = CurlTransport()
    yield made
    await made.close()
