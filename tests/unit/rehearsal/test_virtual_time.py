"""The virtual-time loop: asyncio as usual, but waiting takes no time and every run is deterministic."""

from __future__ import annotations

import asyncio
import gc
import time
from contextvars import copy_context

import pytest

from homing.rehearsal.virtual_time import (
    START_MS,
    TASK_GROUP,
    VirtualBlock,
    VirtualBlockingCalls,
    VirtualClock,
    VirtualDeadlock,
    VirtualLoop,
    VirtualTask,
    run_virtual,
)

DAY_S = 86_400


def test_waiting_for_days_takes_no_time() -> None:
    async def main(loop: VirtualLoop) -> float:
        await asyncio.sleep(30 * DAY_S)
        return loop.time()

    assert run_virtual(main) == 30 * DAY_S


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    async def main(loop: VirtualLoop) -> list[float]:
        woken: list[float] = []

        async def sleeper(seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append(loop.time())

        await asyncio.gather(*(sleeper(seconds) for seconds in (5, 0.25, 3600, 1)))
        return woken

    assert run_virtual(main) == [0.25, 1, 5, 3600]


def test_a_timeout_ends_a_slow_task() -> None:
    async def main(loop: VirtualLoop) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(12):
                await asyncio.Event().wait()
        return loop.time()

    assert run_virtual(main) == 12


def test_a_task_that_nothing_will_wake_is_an_error_and_not_a_hang() -> None:
    async def main(loop: VirtualLoop) -> None:
        await asyncio.Event().wait()

    with pytest.raises(VirtualDeadlock):
        run_virtual(main)


def test_threads_are_refused() -> None:
    async def main(loop: VirtualLoop) -> None:
        await asyncio.to_thread(time.sleep, 1)

    with pytest.raises(RuntimeError, match="code that uses threads cannot run on virtual time"):
        run_virtual(main)


def test_the_wall_clock_can_jump_and_the_monotonic_one_cannot() -> None:
    async def main(loop: VirtualLoop) -> tuple[int, int]:
        clock = VirtualClock(loop, monotonic_from_ms=500)
        await clock.sleep_ms(1_000)
        clock.jump(-60_000)
        await clock.sleep_ms(250)
        return clock.now_ms(), clock.monotonic_ms()

    assert run_virtual(main) == (START_MS + 1_250 - 60_000, 500 + 1_250)


def test_a_frozen_group_stands_still_while_the_others_continue() -> None:
    async def main(loop: VirtualLoop) -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def ticks(name: str) -> None:
            for _ in range(3):
                await asyncio.sleep(1)
                seen.append((name, loop.time()))

        context = copy_context()
        context.run(TASK_GROUP.set, "frozen")
        one = loop.create_task(ticks("frozen"), context=context)
        other = loop.create_task(ticks("free"))
        await asyncio.sleep(1.5)
        loop.freeze("frozen")
        await asyncio.sleep(10)
        loop.thaw("frozen")
        await asyncio.gather(one, other)
        return seen

    assert run_virtual(main) == [
        ("frozen", 1),
        ("free", 1),
        ("free", 2),
        ("free", 3),
        ("frozen", 11.5),
        ("frozen", 12.5),
    ]


def test_cancelling_a_group_cancels_exactly_its_tasks() -> None:
    async def main(loop: VirtualLoop) -> tuple[int, bool]:
        async def parent() -> None:
            asyncio.create_task(asyncio.sleep(100))  # noqa: RUF006 (that it is found all the same is the point)
            await asyncio.sleep(100)

        context = copy_context()
        context.run(TASK_GROUP.set, "doomed")
        loop.create_task(parent(), context=context)
        other = loop.create_task(asyncio.sleep(1))
        await asyncio.sleep(0.5)
        number = loop.cancel_group("doomed")
        await other
        return number, other.cancelled()

    assert run_virtual(main) == (2, False)


def test_a_set_of_tasks_has_the_same_order_in_every_run() -> None:
    async def main(loop: VirtualLoop) -> list[int]:
        tasks = {loop.create_task(asyncio.sleep(0)) for _ in range(50)}
        order = [task.number for task in tasks if isinstance(task, VirtualTask)]
        await asyncio.gather(*tasks)
        return order

    assert run_virtual(main) == run_virtual(main)


def test_a_blocking_call_that_fails_after_its_caller_was_cancelled_is_not_reported() -> None:
    """A report would come with the garbage collection, at a different time in every run."""
    reported: list[dict[str, object]] = []

    async def fail() -> None:
        await asyncio.sleep(2)
        raise ConnectionError

    async def main(loop: VirtualLoop) -> bool:
        loop.set_exception_handler(lambda _, context: reported.append(context))
        call = loop.create_task(VirtualBlockingCalls(1).call(lambda: VirtualBlock(fail())))
        await asyncio.sleep(1)
        call.cancel()
        await asyncio.wait({call})
        gc.collect()
        return call.cancelled()

    assert run_virtual(main)
    assert reported == []
