"""A bounded thread pool for blocking calls that cannot be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

_T = TypeVar("_T")


class ThreadPool(Generic[_T]):
    """Runs calls in at most `most` threads.

    A call cannot be stopped. If its caller stops waiting, it still occupies its thread until it returns. The
    threads are daemons, so that a call that never returns does not keep the process from exiting.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._free = asyncio.Semaphore(most)
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = 0
        self._running: set[asyncio.Future[_T]] = set()

    async def run(self, call: Callable[[], _T], *, thread_within_ms: int) -> asyncio.Future[_T]:
        """Starts a call and returns its future. Raises `TimeoutError` if no thread becomes free in time."""
        async with asyncio.timeout(thread_within_ms / 1000):
            await self._free.acquire()
        if self._started < self._most:
            self._started += 1
            Thread(target=self._loop, name=f"{self._name}-{self._started}", daemon=True).start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._running.add(future)
        self._work.put(lambda: self._call(call, loop, future))
        return future

    async def close(self, within_ms: int) -> None:
        """Ends the idle threads and waits at most `within_ms` for running calls, then leaves them behind."""
        for _ in range(self._started):
            self._work.put(None)
        if self._running:
            await asyncio.wait(self._running, timeout=within_ms / 1000)

    def _loop(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _call(
        self, call: Callable[[], _T], loop: asyncio.AbstractEventLoop, future: asyncio.Future[_T]
    ) -> None:
        result: _T | Exception
        try:
            result = call()
        except Exception as error:  # passed on through the future
            result = error
        with suppress(RuntimeError):  # the loop was closed before the call returned
            loop.call_soon_threadsafe(self._done, future, result)

    def _done(self, future: asyncio.Future[_T], result: _T | Exception) -> None:
        self._free.release()
        self._running.discard(future)
        if future.cancelled():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
            future.exception()  # marks the exception as retrieved: the caller may have stopped waiting
        else:
            future.set_result(result)
