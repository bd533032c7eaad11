"""The estimate of the store's time."""

from __future__ import annotations

from homing.engine.store_clock import StoreClock
from homing.testing.manual_clock import ManualClock


def store_clock(store_now: int = 0) -> tuple[StoreClock, ManualClock]:
    async def read() -> int:
        return store_now

    local = ManualClock(5_000)
    return StoreClock(read, local), local


async def test_it_follows_the_time_of_the_store_although_the_local_clock_differs() -> None:
    clock, local = store_clock(1_700_000_000_000)
    await clock.refresh()
    assert clock.now() == 1_700_000_000_000
    local.advance(250)
    assert clock.now() == 1_700_000_000_250
    assert clock.at(local.monotonic_ms() - 100) == 1_700_000_000_150


def test_after_a_slow_response_it_neither_runs_ahead_nor_overestimates_a_lease() -> None:
    """The store may have read its clock when it was asked, or only when it answered."""
    clock, local = store_clock()
    local.advance(400)
    clock.sync(10_000, asked_ms=100)
    assert (clock.at(400), clock.latest_at(400)) == (10_000, 10_300)


def test_a_fast_response_stays_in_use_while_slow_ones_agree_with_it() -> None:
    clock, local = store_clock()
    local.advance(100)
    clock.sync(10_000, asked_ms=100)
    local.advance(5_000)
    clock.sync(12_000, asked_ms=1_000)
    assert clock.at(5_100) == clock.latest_at(5_100) == 15_000


def test_it_follows_a_clock_that_was_set_back() -> None:
    clock, local = store_clock()
    clock.sync(10_000, asked_ms=0)
    local.advance(1_000)
    clock.sync(7_000, asked_ms=1_000)
    assert clock.now() == 7_000


def test_an_older_response_that_arrives_late_is_ignored() -> None:
    clock, local = store_clock()
    local.advance(200)
    clock.sync(20_000, asked_ms=200)
    clock.sync(99_000, asked_ms=100)
    assert (clock.at(200), clock.synced_ms) == (20_000, 200)
