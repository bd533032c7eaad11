"""The sums of a minute stay beside those of its hour until another minute begins."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from homing.stores.common.copy import COPY_PARTS
from homing.stores.sqlite import SqliteStore
from homing.stores.sqlite.copy import SqliteCopySource
from homing.testing.builders import HOUR_MS, MINUTE_MS, a_notification, a_submission
from homing.testing.manual_clock import START_MS

HOUR_AT = START_MS - START_MS % HOUR_MS

MINUTES = next(part for part in COPY_PARTS if part.name == "minute_roll_ups")


class MinuteSums:
    """A store whose clock is set by the test, and a connection to inspect its file."""

    def __init__(self, path: Path) -> None:
        self.now = HOUR_AT + 10 * MINUTE_MS
        self.store = SqliteStore(path, clock=lambda: self.now)
        self.path = path

    async def accept(self, *tenants: str) -> None:
        """Accepts one notification for each tenant, in one transaction."""
        await self.store.accept([a_submission(a_notification(), tenant=tenant) for tenant in tenants])

    async def read(self, tenant: str) -> dict[int, int]:
        """Returns the number of accepted notifications by minute of the hour."""
        found = await self.store.minute_roll_ups(tenant, since_ms=HOUR_MS)
        return {one.minute_at.minute: one.accepted for one in found}

    def rows(self, table: str) -> int:
        with closing(sqlite3.connect(self.path)) as connection:
            number: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            return number


@pytest.fixture
async def sums(tmp_path: Path) -> AsyncIterator[MinuteSums]:
    sums = MinuteSums(tmp_path / "homing.db")
    await sums.store.open()
    await sums.store.migrate()
    yield sums
    await sums.store.close()


async def test_a_minute_moves_to_its_own_row_once_the_next_one_begins(sums: MinuteSums) -> None:
    await sums.accept("a")
    await sums.accept("a")
    assert sums.rows("homing_minute_roll_ups") == 0
    sums.now += MINUTE_MS
    await sums.accept("a")
    assert sums.rows("homing_minute_roll_ups") == 1
    assert await sums.read("a") == {10: 2, 11: 1}
    assert [one.accepted for one in await sums.store.roll_ups("a", since_ms=HOUR_MS)] == [3]


async def test_each_row_of_a_transaction_begins_its_minute_separately(sums: MinuteSums) -> None:
    await sums.accept("a", "b")
    sums.now += MINUTE_MS
    await sums.accept("b")
    await sums.accept("a", "b", "c")  # the row of a has another minute, that of b this one, and c has none
    assert await sums.read("a") == {10: 1, 11: 1}
    assert await sums.read("b") == {10: 1, 11: 2}
    assert await sums.read("c") == {11: 1}


async def test_nothing_is_lost_if_the_clock_goes_back_by_a_minute(sums: MinuteSums) -> None:
    for step in (0, 1, -1, 1):
        sums.now += step * MINUTE_MS
        await sums.accept("a")
    assert await sums.read("a") == {10: 2, 11: 2}


async def test_what_the_previous_release_counts_in_a_minute_is_added(sums: MinuteSums) -> None:
    await sums.accept("a")
    with closing(sqlite3.connect(sums.path)) as connection:
        connection.execute(
            "INSERT INTO homing_minute_roll_ups (minute_at, tenant, channel, provider, accepted)"
            " SELECT minute_at, tenant, channel, provider, 5 FROM homing_roll_ups"
        )
        connection.commit()
    assert await sums.read("a") == {10: 6}
    sums.now += MINUTE_MS
    await sums.accept("a")
    assert await sums.read("a") == {10: 6, 11: 1}


async def test_a_copy_reads_the_minutes_page_by_page(sums: MinuteSums) -> None:
    """Uniting both tables for each page would take longer than the copy itself."""
    key = ", ".join(MINUTES.key)
    with closing(sqlite3.connect(sums.path)) as connection:
        connection.executemany(
            f"INSERT INTO homing_minute_roll_ups ({key}, accepted) VALUES (?, ?, 'email', 'sendgrid', 1)",
            [(HOUR_AT + minute * MINUTE_MS, f"t{number}") for minute in range(50) for number in range(400)],
        )
        connection.commit()
    await sums.accept("t0")
    source, steps = SqliteCopySource(sums.path), 0

    def count() -> None:
        nonlocal steps
        steps += 1000

    await source.open()
    assert source._connection is not None
    source._connection.set_progress_handler(count, 1000)
    found = list(await source.page(MINUTES, None, 100))
    found += await source.page(MINUTES, tuple(found[-1][: len(MINUTES.key)]), 100)
    assert len(found) == 200
    assert steps <= 50_000
    assert (await source.counts())[MINUTES.name] == 20_000, "one of them is in both tables"
    await source.close()


async def test_a_transaction_with_one_notification_writes_eleven_pages(sums: MinuteSums) -> None:
    """Two tables, seven indexes (one has the recipient's id), the tallies and the sums.

    Each page costs about 4 % of accepting a single notification, so another one needs a reason.
    """
    for _ in range(3):
        await sums.accept("a")
    with closing(sqlite3.connect(sums.path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    await sums.accept("a")
    log = sums.path.with_name("homing.db-wal")
    assert (log.stat().st_size - 32) // (4096 + 24) == 11
