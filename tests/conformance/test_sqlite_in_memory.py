"""The SQLite store in memory passes the store suite, and never waits for anything."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import json

from homing.core.errors import StoreError
from homing.core.ports.stores import Backend
from homing.stores.common.blocking_calls import run_without_loop
from homing.stores.sqlite import SqliteStore, amend
from homing.stores.sqlite.memory_database import MemoryDatabase
from homing.testing.builders import a_notification, a_submission
from homing.testing.manual_clock import START_MS, ManualClock
from homing.testing.store_suite import StoreSuite
from homing.testing.store_suite.random_walk import RandomWalker
from support.command_pages import check_command_pages
from support.exact_retention import check_retention


class MemoryHarness:
    """Stores over one database in memory, on a manual clock."""

    def __init__(self) -> None:
        self._clock = ManualClock()
        self._database = MemoryDatabase()
        self.store: Backend = self._make()

    def _make(self) -> SqliteStore:
        return SqliteStore(self._database, clock=self._clock.now_ms)

    async def advance(self, duration_ms: int) -> None:
        self._clock.advance(duration_ms)

    async def second(self) -> Backend:
        return self._make()


class TestSqliteStoreInMemory(StoreSuite):
    """Runs the suite on the SQLite store in memory."""

    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()


async def test_a_callers_connection_is_refused() -> None:
    store = SqliteStore(":memory:")
    with closing(sqlite3.connect(":memory:")) as mine, pytest.raises(StoreError, match="send without a conn"):
        await store.accept([a_submission()], tx=mine)
    assert await store.tallies(None) == ()


def test_calls_need_neither_an_event_loop_nor_a_thread() -> None:
    threads = threading.active_count()
    store = SqliteStore(":memory:", clock=ManualClock().now_ms)
    run_without_loop(store.open())
    assert run_without_loop(store.migrate()) == ()
    run_without_loop(store.accept([a_submission()]))
    assert [tally.count for tally in run_without_loop(store.tallies(None))] == [1]
    assert run_without_loop(store.size())["bytes"] > 0
    run_without_loop(store.close())
    assert threading.active_count() == threads


async def test_the_time_is_that_of_the_clock_that_is_passed_in() -> None:
    clock = ManualClock()
    store = SqliteStore(":memory:", clock=clock.now_ms)
    clock.advance(5_000)
    assert await store.now_ms() == START_MS + 5_000


async def test_two_databases_in_memory_share_nothing() -> None:
    one, other = SqliteStore(":memory:"), SqliteStore(":memory:")
    await one.accept([a_submission()])
    assert await other.tallies(None) == ()


async def test_a_failed_call_changes_nothing_and_the_next_one_succeeds() -> None:
    store = SqliteStore(":memory:")
    taken = a_notification()
    await store.accept([a_submission(taken)])
    with pytest.raises(StoreError, match="already belongs to another request"):
        await store.accept([a_submission(), a_submission(taken)])
    assert [tally.count for tally in await store.tallies(None)] == [1]
    await store.accept([a_submission()])
    assert [tally.count for tally in await store.tallies(None)] == [2]


def test_the_same_steps_give_the_same_events_in_every_process() -> None:
    """A simulation must depend only on its seed, not on the order of sets or on hashes."""
    walks = [
        subprocess.run(
            [sys.executable, __file__],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            check=True,
            timeout=240,
        ).stdout
        for seed in ("1", "2")
    ]
    assert walks[0].count(b"StatusChanged") > 100
    assert walks[0] == walks[1]


async def _walk() -> bytes:
    harness = MemoryHarness()
    walker = RandomWalker(harness, harness.store, random.Random(7))
    for _ in range(300):
        await walker.step()
    return json.encode(await harness.store.outbox("sink", "relay", 100_000, 1))


if __name__ == "__main__":
    sys.stdout.buffer.write(asyncio.run(_walk()))


async def test_old_data_is_removed_in_the_millisecond_in_which_it_has_its_age() -> None:
    clock = ManualClock()

    async def set_clock(now: int) -> None:
        clock.advance(now - clock.now_ms())

    store = SqliteStore(MemoryDatabase(), clock=clock.now_ms)
    await check_retention(store, set_clock, clock.now_ms())


async def test_a_command_for_a_filter_reaches_all_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amend, "_PAGE_ROWS", 2)
    await check_command_pages(SqliteStore(MemoryDatabase()))
