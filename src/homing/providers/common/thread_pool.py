"""A bounded thread pool for blocking calls that cannot be cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

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
        self._held: set[asyncio.Future[_T]] = set()
        """Futures of the running calls that `call` waits for."""

    async def call(self, function: Callable[[], _T]) -> _T:
        """Calls a function in a thread and returns its result.

        If the caller is cancelled while the function runs, this method raises `CancelledError` only after
        the function has returned or the pool was closed, so the caller keeps what it holds for the call, such
        as a slot of its provider.
        """
        await self._free.acquire()
        future = self._start(function)
        self._held.add(future)
        future.add_done_callback(self._held.discard)
        cancelled = False
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        return future.result()

    async def run(self, call: Callable[[], _T], *, thread_within_ms: int) -> asyncio.Future[_T]:
        """Starts a call and returns its future. Raises `TimeoutError` if no thread becomes free in time."""
        async with asyncio.timeout(thread_within_ms / 1000):
            await self._free.acquire()
        return self._start(call)

    async def close(self, within_ms: int) -> None:
        """Ends the idle threads and waits at most `within_ms` for running calls, then leaves them behind.

        A caller that still waits in `call` then gets a `CancelledError`.
        """
        for _ in range(self._started):
            self._work.put(None)
        if self._running:
            await asyncio.wait(self._running, timeout=within_ms / 1000)
        for future in list(self._held):
            future.cancel()

    def _start(self, call: Callable[[], _T]) -> asyncio.Future[_T]:
        if self._started < self._most:
            self._started += 1
            Thread(target=self._loop, name=f"{self._name}-{self._started}", daemon=True).start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._running.add(future)
        context = copy_context()
        self._work.put(lambda: self._call(lambda: context.run(call), loop, future))
        return future

    def _loop(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _call(
        self, call: Callable[[], _T], loop: asyncio.AbstractEventLoop, future: asyncio.Future[_T]
    ) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = call()
        except StopIteration as raised:  # a future refuses this one
            error = RuntimeError(f"the call raised StopIteration: {raised}")
        except BaseException as raised:  # passed on through the future
            error = raised
        with suppress(RuntimeError):  # the loop was closed before the call returned
            loop.call_soon_threadsafe(self._done, future, result, error)

    def _done(self, future: asyncio.Future[_T], result: Any, error: BaseException | None) -> None:
        self._free.release()
        self._running.discard(future)
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
            future.exception()  # marks the exception as retrieved: the caller may have stopped waiting
        else:
            future.set_result(result)
