"""The thread pool for blocking calls: limited, and not blocked by calls that never end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from homing.providers.common.thread_pool import ThreadPool
from support.event_loops import LoopKind


async def test_a_call_runs_in_a_thread_of_the_pool() -> None:
    pool: ThreadPool[str] = ThreadPool("pool", 2)
    future = await pool.run(lambda: threading.current_thread().name, thread_within_ms=60_000)
    assert await future == "pool-1"
    await pool.close(1000)


async def test_no_more_calls_run_at_once_than_there_are_threads() -> None:
    pool: ThreadPool[int] = ThreadPool("pool", 3)
    lock, running, most = threading.Lock(), 0, 0
    gate = threading.Barrier(3)

    def call() -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait(60)  # all three threads are in use at the same time
        with lock:
            running -= 1
        return 7

    async def one() -> int:
        return await (await pool.run(call, thread_within_ms=60_000))

    assert await asyncio.gather(*(one() for _ in range(30))) == [7] * 30
    assert most == 3
    await pool.close(1000)


async def test_a_full_pool_raises_in_time() -> None:
    pool: ThreadPool[bool] = ThreadPool("pool", 1)
    end = threading.Event()
    busy = await pool.run(lambda: end.wait(60), thread_within_ms=60_000)
    with pytest.raises(TimeoutError):
        await pool.run(lambda: True, thread_within_ms=20)
    end.set()
    assert await busy
    assert await (await pool.run(lambda: True, thread_within_ms=60_000))
    await pool.close(1000)


async def test_an_abandoned_call_keeps_its_thread_until_it_ends() -> None:
    pool: ThreadPool[bool] = ThreadPool("pool", 1)
    end = threading.Event()
    given_up = await pool.run(lambda: end.wait(60), thread_within_ms=60_000)
    given_up.cancel()
    with pytest.raises(TimeoutError):
        await pool.run(lambda: True, thread_within_ms=20)
    end.set()
    assert await (await pool.run(lambda: True, thread_within_ms=60_000))
    await pool.close(1000)


async def test_an_error_of_a_call_is_raised_to_its_caller() -> None:
    pool: ThreadPool[None] = ThreadPool("pool", 1)

    def call() -> None:
        raise LookupError("no")

    with pytest.raises(LookupError):
        await (await pool.run(call, thread_within_ms=60_000))
    await pool.close(1000)


async def test_closing_does_not_wait_for_a_hanging_call() -> None:
    pool: ThreadPool[bool] = ThreadPool("pool", 1)
    end = threading.Event()
    hanging = await pool.run(lambda: end.wait(60), thread_within_ms=60_000)
    await asyncio.wait_for(pool.close(20), 50)
    assert not hanging.done()
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("pool-"))
    end.set()
    assert await hanging


async def test_idle_threads_end_when_the_pool_closes() -> None:
    pool: ThreadPool[threading.Thread] = ThreadPool("pool", 1)
    thread = await (await pool.run(threading.current_thread, thread_within_ms=60_000))
    await pool.close(1000)
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()


def test_a_call_that_outlives_its_event_loop_causes_no_error(loop_kind: LoopKind) -> None:
    end, ended = threading.Event(), threading.Event()

    async def leave() -> None:
        pool: ThreadPool[None] = ThreadPool("pool", 1)

        def call() -> None:
            end.wait(60)
            ended.set()

        await pool.run(call, thread_within_ms=60_000)

    loop_kind.run(leave())
    end.set()
    assert ended.wait(60)


async def test_after_it_was_closed_a_pool_starts_new_threads() -> None:
    pool: ThreadPool[int] = ThreadPool("pool", 1)
    assert await pool.call(lambda: 1) == 1
    await pool.close(1000)
    assert await asyncio.wait_for(pool.call(lambda: 2), 60) == 2
    await pool.close(1000)


async def test_a_call_left_behind_takes_no_thread_of_the_reopened_pool() -> None:
    pool: ThreadPool[bool] = ThreadPool("pool", 1)
    end = threading.Event()
    hanging = await pool.run(lambda: end.wait(60), thread_within_ms=60_000)
    await pool.close(0)
    assert await asyncio.wait_for(pool.call(lambda: True), 60)
    end.set()
    assert await hanging
    again = threading.Event()
    busy = await pool.run(lambda: again.wait(60), thread_within_ms=60_000)
    with pytest.raises(TimeoutError):  # the call that was left behind freed no thread when it ended
        await pool.run(lambda: True, thread_within_ms=20)
    again.set()
    assert await busy
    await pool.close(1000)


async def test_a_caller_that_waits_for_a_thread_gets_an_error_when_the_pool_closes() -> None:
    pool: ThreadPool[bool] = ThreadPool("pool", 1)
    end = threading.Event()
    hanging = await pool.run(lambda: end.wait(60), thread_within_ms=60_000)
    waiting = asyncio.create_task(pool.call(lambda: True))
    await asyncio.sleep(0)
    await pool.close(0)
    with pytest.raises(RuntimeError, match="closed"):
        await asyncio.wait_for(waiting, 60)
    end.set()
    assert await hanging


async def test_a_thread_that_cannot_be_started_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    pool: ThreadPool[int] = ThreadPool("pool", 1)
    with monkeypatch.context() as patched:
        patched.setattr("homing.providers.common.thread_pool.Thread", Refused)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="start"):
                await asyncio.wait_for(pool.call(lambda: 1), 60)
    assert await asyncio.wait_for(pool.call(lambda: 1), 60) == 1
    await pool.close(1000)
