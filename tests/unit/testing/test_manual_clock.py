"""The manual clock advances only when a test advances it."""

from __future__ import annotations

import asyncio

import pytest

from homing.testing.manual_clock import START_MS, ManualClock


def test_time_passes_only_by_advancing() -> None:
    clock = ManualClock()
    assert (clock.now_ms(), clock.monotonic_ms()) == (START_MS, 0)
    clock.advance(250)
    assert (clock.now_ms(), clock.monotonic_ms()) == (START_MS + 250, 250)


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(AssertionError):
        ManualClock().advance(-1)


async def test_a_sleeper_wakes_when_its_time_has_come() -> None:
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep_ms(100))
    await asyncio.sleep(0)
    clock.advance(99)
    await asyncio.sleep(0)
    assert not sleeper.done()
    clock.advance(1)
    await asyncio.wait_for(sleeper, 1)


async def test_sleepers_wake_in_order_of_time_and_then_of_arrival() -> None:
    clock, woken = ManualClock(), []

    async def sleep(name: str, duration_ms: int) -> None:
        await clock.sleep_ms(duration_ms)
        woken.append(name)

    async with asyncio.TaskGroup() as group:
        for name, duration_ms in (("c", 30), ("a", 10), ("b", 20), ("b too", 20), ("at once", 0)):
            group.create_task(sleep(name, duration_ms))
        await asyncio.sleep(0)
        clock.advance(60)
    assert woken == ["at once", "a", "b", "b too", "c"]


async def test_a_cancelled_sleeper_does_not_affect_others() -> None:
    clock = ManualClock()
    gone, stays = asyncio.create_task(clock.sleep_ms(10)), asyncio.create_task(clock.sleep_ms(10))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    clock.advance(10)
    await asyncio.wait_for(stays, 1)
    assert gone.cancelled()
