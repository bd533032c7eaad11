"""When a worker claims again: at once if it is idle, and in batches if it is busy."""

from __future__ import annotations

import asyncio

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


class Due:
    """Records when its deadline passed."""

    def __init__(self, harness: EngineHarness, deadlines: DeadlineTimer, after_ms: int) -> None:
        self._deadlines = deadlines
        self._began_ms = harness.clock.monotonic_ms()
        self.due_ms = self._began_ms + after_ms
        self.expired_ms: int | None = None

    def expire(self, now_ms: int) -> None:
        del self._deadlines.open[self]
        self.expired_ms = now_ms - self._began_ms


async def test_each_deadline_passes_at_its_own_time(harness: EngineHarness) -> None:
    deadlines = DeadlineTimer(harness.clock)
    due = {ms: Due(harness, deadlines, ms) for ms in (500, 100, 2_000, 300)}
    for one in due.values():
        deadlines.add((one,))
    deadlines.open.pop(due[300])  # ended in time
    await asyncio.sleep(3)
    assert {ms: one.expired_ms for ms, one in due.items()} == {500: 500, 100: 100, 2_000: 2_000, 300: None}


async def test_a_deadline_whose_end_fails_does_not_keep_others_from_ending(harness: EngineHarness) -> None:
    deadlines = DeadlineTimer(harness.clock)

    class Failing(Due):
        def expire(self, now_ms: int) -> None:
            super().expire(now_ms)
            raise LookupError("unexpected")

    first, second, third = (
        Failing(harness, deadlines, 100),
        Due(harness, deadlines, 100),
        Due(harness, deadlines, 900),
    )
    deadlines.add([first, second, third])
    await asyncio.sleep(1)
    assert not deadlines.open
