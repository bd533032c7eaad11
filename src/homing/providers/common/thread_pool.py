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
    threads are daemons, so that a call that never returns does not keep the process from exiting. After
    `close`, the next call starts new threads.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._threads: _Threads[_T] = _Threads(name, most)

    async def call(self, function: Callable[[], _T]) -> _T:
        """Calls a function in a thread and returns its result.

        If the caller is cancelled while the function runs, this method raises `CancelledError` only after
        the function has returned or the pool was closed, so the caller keeps what it holds for the call, such
        as a slot of its provider.
        """
        threads = self._threads
        future = await threads.start(function)
        threads.held.add(future)
        future.add_done_callback(threads.held.discard)
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
            return await self._threads.start(call)

    async def close(self, within_ms: int) -> None:
        """Ends the idle threads and waits at most `within_ms` for running calls, then leaves them behind.

        A caller that still waits in `call` then gets a `CancelledError`, or a `RuntimeError` if its function
        has no thread yet.
        """
        threads, self._threads = self._threads, _Threads(self._name, self._most)
        await threads.close(within_ms)


class _Threads(Generic[_T]):
    """The threads of a pool until it is closed."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._free = asyncio.Semaphore(most)
        self._waiting = 0
        """Number of callers that wait for a thread."""
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = 0
        self._closed = False
        self._running: set[asyncio.Future[_T]] = set()
        self.held: set[asyncio.Future[_T]] = set()
        """Futures of the running calls that `ThreadPool.call` waits for."""

    async def start(self, call: Callable[[], _T]) -> asyncio.Future[_T]:
        """Waits for a thread, starts a call in it and returns the call's future."""
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        if self._closed:
            raise RuntimeError("the thread pool was closed before a thread was free")
        try:
            self._start_thread()
        except BaseException:
            self._free.release()
            raise
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._running.add(future)
        context = copy_context()
        self._work.put(lambda: self._call(lambda: context.run(call), loop, future))
        return future

    async def close(self, within_ms: int) -> None:
        self._closed = True
        for _ in range(self._started):
            self._work.put(None)
        for _ in range(self._waiting):
            self._free.release()
        if self._running:
            await asyncio.wait(self._running, timeout=within_ms / 1000)
        for future in list(self.held):
            future.cancel()

    def _start_thread(self) -> None:
        if self._started < self._most:
            Thread(target=self._loop, name=f"{self._name}-{self._started + 1}", daemon=True).start()
            self._started += 1

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
