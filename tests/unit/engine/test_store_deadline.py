"""The limit on how long requests wait for the store."""

from __future__ import annotations

import asyncio

import pytest

from homing.core.errors import StoreUnavailable
from homing.engine.intake.store_deadline import StoreDeadline

TIMEOUT_MS = 10_000


async def _wait(deadline: StoreDeadline, seconds: float) -> float:
    with deadline.limit(deadline.until()):
        await asyncio.sleep(seconds)
    return seconds


async def test_calls_that_take_too_long_end_and_the_others_do_not() -> None:
    deadline, loop = StoreDeadline(TIMEOUT_MS), asyncio.get_running_loop()
    began = loop.time()
    calls = [asyncio.create_task(_wait(deadline, seconds)) for seconds in (1, 9.5, 11, 1_000)]
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert done[:2] == [1, 9.5]
    assert [type(one) for one in done[2:]] == [StoreUnavailable] * 2
    assert loop.time() - began <= 10.25
    assert not deadline.waiting


async def test_a_task_goes_on_after_its_call_was_ended() -> None:
    deadline = StoreDeadline(TIMEOUT_MS)
    with pytest.raises(StoreUnavailable, match="store_timeout_ms"):
        await _wait(deadline, 60)
    assert await _wait(deadline, 5) == 5
    async with asyncio.timeout(1):
        await asyncio.sleep(0.5)


async def test_a_caller_that_is_cancelled_gets_its_cancellation() -> None:
    deadline = StoreDeadline(TIMEOUT_MS)
    call = asyncio.create_task(_wait(deadline, 60))
    await asyncio.sleep(5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not deadline.waiting


async def test_a_caller_with_a_timeout_of_its_own_gets_that_one() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await _wait(StoreDeadline(TIMEOUT_MS), 60)


async def test_without_a_limit_a_call_may_take_any_time() -> None:
    deadline = StoreDeadline(TIMEOUT_MS)
    with deadline.limit(None):
        await asyncio.sleep(1_000)
    assert not deadline.waiting


async def test_several_waits_under_one_limit_count_together() -> None:
    deadline = StoreDeadline(TIMEOUT_MS)
    limit = deadline.limit(deadline.until())
    with limit:
        await asyncio.sleep(6)
    with pytest.raises(StoreUnavailable), limit:
        await asyncio.sleep(6)
    assert not deadline.waiting


async def test_what_is_excluded_does_not_count() -> None:
    deadline = StoreDeadline(TIMEOUT_MS)
    limit = deadline.limit(deadline.until())

    async def work() -> None:
        await asyncio.sleep(100)

    await limit.exclude(work)
    assert not deadline.waiting
    with limit:
        await asyncio.sleep(4)
        await limit.exclude(work)
        await asyncio.sleep(5)
    with pytest.raises(StoreUnavailable), limit:
        await asyncio.sleep(3)
    assert not deadline.waiting


def test_calls_are_ended_in_a_second_event_loop_too() -> None:
    """The first one was closed while its timer was running."""
    deadline = StoreDeadline(10)
    asyncio.run(_wait(deadline, 0))
    with pytest.raises(StoreUnavailable):
        asyncio.run(asyncio.wait_for(_wait(deadline, 60), 10))
