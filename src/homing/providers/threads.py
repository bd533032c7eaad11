"""A bounded pool of threads for calls that block and cannot be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Threads(Generic[_T]):
    """Runs calls, as many at once as it has threads.

    A call cannot be stopped: one that is given up keeps its place until it ends. The threads are daemons,
    so that a call that never ends does not keep the process from ending.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._free = asyncio.Semaphore(most)
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = 0
        self._running: set[asyncio.Future[_T]] = set()

    async def run(self, call: Callable[[], _T], *, place_within_ms: int) -> asyncio.Future[_T]:
        """Starts a call and gives its future; raises `TimeoutError` if no thread came free in time."""
        async with asyncio.timeout(place_within_ms / 1000):
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
        """Waits so long for what runs; then leaves it alone. Idle threads end."""
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
        except Exception as error:  # told to who waits for the future
            result = error
        with suppress(RuntimeError):  # the loop ended before the call did: nobody waits any more
            loop.call_soon_threadsafe(self._done, future, result)

    def _done(self, future: asyncio.Future[_T], result: _T | Exception) -> None:
        self._free.release()
        self._running.discard(future)
        if future.cancelled():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
            future.exception()  # seen: who gave the call up does not ask for it
        else:
            future.set_result(result)
