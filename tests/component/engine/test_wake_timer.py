"""When a worker claims again: at once if it is idle, and in batches if it is busy."""

from __future__ import annotations

import asyncio

import pytest

from homing.engine.delivery.attempts import DeadlineTimer
from homing.engine.delivery.concurrency_limit import ConcurrencyLimit
from homing.engine.delivery.wake_timer import WakeTimer
from homing.engine.system_runtime import LocalWaker
from support.engine_harness import EngineHarness


async def test_an_idle_worker_that_is_woken_claims_at_once(harness: EngineHarness) -> None:
    waker = LocalWaker()
    timer = WakeTimer(waker, harness.clock, lambda: False)
    timer.claim_started()
    began_ms = harness.clock.monotonic_ms()
    waker.wake()
    await timer.sleep(1_000)
    assert harness.clock.monotonic_ms() == began_ms


async def test_a_busy_worker_that_is_woken_waits_for_the_batching_window(harness: EngineHarness) -> None:
    waker = LocalWaker()
    timer = WakeTimer(waker, harness.clock, lambda: True)
    timer.claim_started()
    began_ms = harness.clock.monotonic_ms()
    for _ in range(3):
        waker.wake()
    await timer.sleep(1_000)
    assert harness.clock.monotonic_ms() == began_ms + 10


async def test_a_row_due_during_a_claim_shortens_the_next_sleep(harness: EngineHarness) -> None:
    timer = WakeTimer(LocalWaker(), harness.clock, lambda: False)
    timer.claim_started()
    timer.claim_in(300)
    began_ms = harness.clock.monotonic_ms()
    await timer.sleep(1_000)
    assert harness.clock.monotonic_ms() == began_ms + 300


async def test_a_row_due_during_a_sleep_wakes_the_worker_at_that_time(harness: EngineHarness) -> None:
    timer = WakeTimer(LocalWaker(), harness.clock, lambda: False)
    timer.claim_started()
    began_ms = harness.clock.monotonic_ms()
    sleeping = asyncio.create_task(timer.sleep(1_000))
    await asyncio.sleep(0)
    timer.claim_in(400)
    timer.claim_in(700)
    await sleeping
    assert harness.clock.monotonic_ms() == began_ms + 400
    timer.close()


async def test_a_slot_goes_to_the_longest_waiting_task(harness: EngineHarness) -> None:
    limit = ConcurrencyLimit(1)
    assert limit.try_acquire()
    assert not limit.try_acquire()
    first, second = (asyncio.create_task(limit.acquire()) for _ in range(2))
    await asyncio.sleep(0)
    limit.release()
    assert not limit.try_acquire()  # the slot belongs to the first one
    await first
    assert not second.done()
    limit.release()
    await second
    limit.release()
    assert limit.try_acquire()


async def test_a_slot_given_to_a_task_that_was_just_cancelled_goes_to_the_next(
    harness: EngineHarness,
) -> None:
    limit = ConcurrencyLimit(1)
    limit.try_acquire()
    first, second = (asyncio.create_task(limit.acquire()) for _ in range(2))
    await asyncio.sleep(0)
    limit.release()
    first.cancel()
    await second
    assert first.cancelled()
    third = asyncio.create_task(limit.acquire())
    await asyncio.sleep(0)
    third.cancel()
    await asyncio.gather(third, return_exceptions=True)
    limit.release()
    assert limit.try_acquire()


async def test_each_deadline_ends_its_own_block_at_its_own_time(harness: EngineHarness) -> None:
    deadlines = DeadlineTimer(harness.clock)
    ended: dict[int, int] = {}

    async def wait(for_ms: int) -> None:
        began_ms = harness.clock.monotonic_ms()
        with pytest.raises(TimeoutError), deadlines.at(began_ms + for_ms):
            await asyncio.sleep(3_600)
        ended[for_ms] = harness.clock.monotonic_ms() - began_ms

    await asyncio.gather(*(wait(ms) for ms in (500, 100, 2_000, 300)))
    assert ended == {500: 500, 100: 100, 2_000: 2_000, 300: 300}


async def test_a_task_cancelled_from_outside_is_cancelled_and_not_timed_out(harness: EngineHarness) -> None:
    deadlines = DeadlineTimer(harness.clock)

    async def wait() -> None:
        with deadlines.at(harness.clock.monotonic_ms() + 1_000):
            await asyncio.sleep(3_600)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_a_block_that_ignores_its_timeout_leaves_no_cancellation_behind(harness: EngineHarness) -> None:
    deadlines = DeadlineTimer(harness.clock)
    with deadlines.at(harness.clock.monotonic_ms() + 100):
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
