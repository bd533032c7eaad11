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


def test_a_slow_response_makes_it_run_ahead_so_that_no_lease_is_overestimated() -> None:
    clock, _ = store_clock()
    clock.sync(10_000, asked_ms=100)
    assert clock.at(400) == 10_300


def test_an_older_response_that_arrives_late_is_ignored() -> None:
    clock, _ = store_clock()
    clock.sync(20_000, asked_ms=200)
    clock.sync(99_000, asked_ms=100)
    assert (clock.at(200), clock.synced_ms) == (20_000, 200)
