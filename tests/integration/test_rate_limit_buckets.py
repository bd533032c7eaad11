"""Recipients' rate-limit buckets: those that have been full for long are removed, and no others."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import asyncpg

from homing.core.ports.stores import Retention, SharedState, TokenRequest
from homing.core.routing.rate_limits import RateLimit
from homing.stores.postgres import PostgresStore
from homing.stores.sqlite import SqliteStore

EIGHT_DAYS_MS = 8 * 86_400_000
OLD = ["recipient:acme:id:u-1", "recipient:acme:email:ada@example.org", "tenant:acme", "provider:mail"]
YOUNG = "recipient:acme:id:u-2"
LEFT = {"tenant:acme", "provider:mail", YOUNG}


async def _take(store: SharedState, *keys: str) -> None:
    await store.take_many({key: TokenRequest(RateLimit(1.0, 5), 1) for key in keys})


async def test_full_buckets_are_removed_in_sqlite(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "homing.db")
    await store.open()
    await store.migrate()
    await _take(store, *OLD)
    with sqlite3.connect(tmp_path / "homing.db") as db:
        db.execute("UPDATE homing_buckets SET at = at - ?", (EIGHT_DAYS_MS,))
    await _take(store, YOUNG)
    await store.prune(Retention(), 100)
    left = {key for (key,) in db.execute("SELECT key FROM homing_buckets")}
    db.close()
    await store.close()
    assert left == LEFT


async def test_full_buckets_are_removed_in_postgres(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    await store.open()
    await store.migrate()
    await _take(store, *OLD)
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(f"UPDATE homing.buckets SET at = at - {EIGHT_DAYS_MS}")
    await _take(store, YOUNG)
    await store.prune(Retention(), 100)
    left = {row["key"] for row in await connection.fetch("SELECT key FROM homing.buckets")}
    await connection.close()
    await store.close()
    assert left == LEFT
