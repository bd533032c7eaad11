"""Threads for the calls of PyMongo's synchronous client, so that they do not block the event loop.

PyMongo's asynchronous client needs about ten iterations of the event loop per command, and an iteration of a
busy worker takes milliseconds. A thread continues as soon as the answer is there. See ADR 67.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

R = TypeVar("R")

_MAX_THREADS = 8
"""Maximum number of calls at the same time. A worker makes up to four."""


class CallThreads:
    """A few threads, which are started when they are needed.

    They are daemons, so that a server that does not answer keeps no process from exiting.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._lock = Lock()
        self._started = 0
        self._unended = 0
        """Number of calls that wait for a thread or run, even if their callers were cancelled."""

    async def run(self, call: Callable[[], R]) -> R:
        """Runs a call on a thread, in the context of the caller, which has PyMongo's time limit.

        If the caller is cancelled, a call that has begun goes on without it.
        """
        loop = asyncio.get_running_loop()
        future: Future[R] = loop.create_future()
        with self._lock:
            self._unended += 1
            if self._started < min(self._unended, _MAX_THREADS):
                self._started += 1
                Thread(target=self._work, name=f"homing-mongo-{self._started}", daemon=True).start()
        self._calls.put(_Call(call, copy_context(), loop, future))
        return await future

    def close(self) -> None:
        """Ends the threads when they have made all calls."""
        with self._lock:
            for _ in range(self._started):
                self._calls.put(None)
            self._started = 0

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.make()
            with self._lock:  # before the caller goes on, who may need a thread at once
                self._unended -= 1
            call.report()


class _Call:
    """One call, and where its result goes."""

    __slots__ = ("_call", "_context", "_error", "_future", "_loop", "_result")

    def __init__(
        self, call: Callable[[], Any], context: Context, loop: AbstractEventLoop, future: Future[Any]
    ) -> None:
        self._call = call
        self._context = context
        self._loop = loop
        self._future = future
        self._result: Any = None
        self._error: BaseException | None = None

    def make(self) -> None:
        """Makes the call, unless its caller was cancelled before."""
        if self._future.cancelled():
            return
        try:
            self._result = self._context.run(self._call)
        except BaseException as error:  # passed on through the future
            self._error = error

    def report(self) -> None:
        """Passes the result to the caller."""
        with suppress(RuntimeError):  # the loop was closed before the call returned
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self._future.done():
            return
        if self._error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(self._error)
