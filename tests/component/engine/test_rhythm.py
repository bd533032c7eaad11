"""When a worker looks for more: at once where it has little to do, and together where it has much."""

from __future__ import annotations

import asyncio

import pytest

from homing.engine.answering import Deadlines
from homing.engine.clock import LocalWaker
from homing.engine.rhythm import Rhythm
from homing.engine.seats import Seats
from support.engine_world import World


async def test_who_is_woken_with_little_to_do_looks_at_once(world: World) -> None:
    waker = LocalWaker()
    rhythm = Rhythm(waker, world.clock, lambda: False)
    rhythm.look()
    began_ms = world.clock.monotonic_ms()
    waker.wake()
    await rhythm.sleep(1_000)
    assert world.clock.monotonic_ms() == began_ms


async def test_who_is_woken_with_much_to_do_gathers_for_a_moment(world: World) -> None:
    waker = LocalWaker()
    rhythm = Rhythm(waker, world.clock, lambda: True)
    rhythm.look()
    began_ms = world.clock.monotonic_ms()
    for _ in range(3):
        waker.wake()
    await rhythm.sleep(1_000)
    assert world.clock.monotonic_ms() == began_ms + 10


async def test_what_comes_due_while_it_looks_shortens_the_sleep_after(world: World) -> None:
    rhythm = Rhythm(LocalWaker(), world.clock, lambda: False)
    rhythm.look()
    rhythm.look_in(300)
    began_ms = world.clock.monotonic_ms()
    await rhythm.sleep(1_000)
    assert world.clock.monotonic_ms() == began_ms + 300


async def test_what_comes_due_while_it_sleeps_wakes_it_then(world: World) -> None:
    rhythm = Rhythm(LocalWaker(), world.clock, lambda: False)
    rhythm.look()
    began_ms = world.clock.monotonic_ms()
    sleeping = asyncio.create_task(rhythm.sleep(1_000))
    await asyncio.sleep(0)
    rhythm.look_in(400)
    rhythm.look_in(700)
    await sleeping
    assert world.clock.monotonic_ms() == began_ms + 400
    rhythm.close()


async def test_a_seat_goes_to_who_waits_longest(world: World) -> None:
    seats = Seats(1)
    assert seats.take()
    assert not seats.take()
    first, second = (asyncio.create_task(seats.wait()) for _ in range(2))
    await asyncio.sleep(0)
    seats.release()
    assert not seats.take()  # it is the first one's
    await first
    assert not second.done()
    seats.release()
    await second
    seats.release()
    assert seats.take()


async def test_a_seat_given_to_who_has_just_left_goes_to_the_next(world: World) -> None:
    seats = Seats(1)
    seats.take()
    first, second = (asyncio.create_task(seats.wait()) for _ in range(2))
    await asyncio.sleep(0)
    seats.release()
    first.cancel()
    await second
    assert first.cancelled()
    third = asyncio.create_task(seats.wait())
    await asyncio.sleep(0)
    third.cancel()
    await asyncio.gather(third, return_exceptions=True)
    seats.release()
    assert seats.take()


async def test_each_deadline_ends_its_own_block_at_its_own_time(world: World) -> None:
    deadlines = Deadlines(world.clock)
    ended: dict[int, int] = {}

    async def wait(for_ms: int) -> None:
        began_ms = world.clock.monotonic_ms()
        with pytest.raises(TimeoutError), deadlines.at(began_ms + for_ms):
            await asyncio.sleep(3_600)
        ended[for_ms] = world.clock.monotonic_ms() - began_ms

    await asyncio.gather(*(wait(ms) for ms in (500, 100, 2_000, 300)))
    assert ended == {500: 500, 100: 100, 2_000: 2_000, 300: 300}


async def test_a_task_that_is_cancelled_from_outside_is_cancelled_and_not_out_of_time(world: World) -> None:
    deadlines = Deadlines(world.clock)

    async def wait() -> None:
        with deadlines.at(world.clock.monotonic_ms() + 1_000):
            await asyncio.sleep(3_600)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_a_block_that_does_not_mind_its_end_leaves_no_trace_of_it(world: World) -> None:
    deadlines = Deadlines(world.clock)
    with deadlines.at(world.clock.monotonic_ms() + 100):
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
