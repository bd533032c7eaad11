"""The threads on which the calls of MongoDB's synchronous client run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from homing.stores.common.blocking_calls import run_without_loop
from homing.stores.mongo.call_threads import CallThreads


@pytest.fixture
def threads() -> Iterator[CallThreads]:
    threads = CallThreads()
    yield threads
    threads.close()


async def test_a_call_runs_on_a_thread_in_the_context_of_its_caller(threads: CallThreads) -> None:
    limit_s: ContextVar[int] = ContextVar("limit_s", default=0)
    limit_s.set(7)
    found = await threads.run(lambda: (limit_s.get(), threading.current_thread()))
    assert found[0] == 7
    assert found[1] is not threading.current_thread()
    assert found[1].daemon


async def test_the_caller_gets_the_error_of_a_call(threads: CallThreads) -> None:
    def fail() -> None:
        raise ConnectionError("away")

    with pytest.raises(ConnectionError, match="away"):
        await threads.run(fail)
    assert await threads.run(lambda: "the thread goes on") == "the thread goes on"


async def test_calls_run_at_the_same_time(threads: CallThreads) -> None:
    met = threading.Barrier(4)
    assert await asyncio.gather(*(threads.run(lambda: met.wait(20)) for _ in range(4)))


async def test_a_thread_that_is_free_is_used_again(threads: CallThreads) -> None:
    used = {await threads.run(threading.get_ident) for _ in range(20)}
    assert len(used) == 1


async def test_a_call_whose_caller_was_cancelled_is_not_begun(threads: CallThreads) -> None:
    go_on = threading.Event()
    busy = [asyncio.create_task(threads.run(lambda: go_on.wait(20))) for _ in range(8)]
    begun = threading.Event()
    waiting = asyncio.create_task(threads.run(begun.set))
    await asyncio.sleep(0)  # the tasks start
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    await asyncio.gather(*busy)
    assert await threads.run(lambda: True)
    assert not begun.is_set()


async def test_a_cancelled_caller_does_not_wait_for_its_call(threads: CallThreads) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(20)
        ended.set()

    task = asyncio.create_task(threads.run(work))
    assert await asyncio.to_thread(begun.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not ended.is_set()
    assert await threads.run(lambda: True), "the next call does not wait for it either"
    go_on.set()
    assert await asyncio.to_thread(ended.wait, 20)


def test_a_result_that_comes_after_the_end_of_the_loop_is_dropped(threads: CallThreads) -> None:
    go_on = threading.Event()

    async def give_up_waiting() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(threads.run(lambda: go_on.wait(20)), 0.05)

    asyncio.run(give_up_waiting())
    go_on.set()
    assert asyncio.run(threads.run(lambda: "the thread goes on")) == "the thread goes on"


def test_a_coroutine_that_waits_for_nothing_needs_no_event_loop() -> None:
    async def add(one: int, other: int) -> int:
        return one + other

    async def work() -> int:
        return await add(1, 2)

    assert run_without_loop(work()) == 3


def test_a_coroutine_that_waits_for_an_event_loop_is_refused() -> None:
    async def work() -> None:
        await asyncio.sleep(1)

    with pytest.raises(RuntimeError):
        run_without_loop(work())
