"""Limits how long requests wait for the store.

A timer for each call would cost a tenth of a send, so one timer checks all waiting calls.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from homing.core.errors import StoreUnavailable

_CHECK_INTERVAL_S = 0.25


class StoreDeadline:
    """Ends calls that have waited for the store for `timeout_ms`, up to a quarter of a second late."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self.waiting: dict[asyncio.Task[Any], float] = {}
        """Task of each waiting call → loop time at which it is ended. A task that was ended is removed."""
        self._checking: asyncio.AbstractEventLoop | None = None
        """The event loop in which the timer is running."""

    def until(self) -> float:
        """Returns the loop time until which a call that starts now may wait."""
        return asyncio.get_running_loop().time() + self._timeout_s

    def limit(self, until: float | None) -> StoreWait:
        """Limits the code in a `with` statement to the loop time `until`, or not at all if it is None.

        The code is cancelled then, and `StoreUnavailable` is raised. The statement must not be nested, but
        several of them, one after the other, may use the same limit.
        """
        return StoreWait(self, until)

    def check_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the timer if it is not running."""
        if self._checking is not loop:
            if self._checking is not None:  # it was closed with its timer; its tasks cannot be ended any more
                self.waiting = {task: end for task, end in self.waiting.items() if task.get_loop() is loop}
            self._checking = loop
            loop.call_later(_CHECK_INTERVAL_S, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._checking = None
        now = loop.time()
        for task in [task for task, until in self.waiting.items() if until <= now]:
            del self.waiting[task]
            task.cancel()
        if self.waiting:
            self.check_later(loop)


class StoreWait:
    """The wait for the store, of one task at a time."""

    __slots__ = ("_cancelling", "_deadline", "_task", "_until")

    def __init__(self, deadline: StoreDeadline, until: float | None) -> None:
        self._deadline = deadline
        self._until = until
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0

    def __enter__(self) -> None:
        if self._until is None:
            return
        self._task = task = asyncio.current_task()
        assert task is not None, "the engine runs in tasks"
        self._cancelling = task.cancelling()
        self._deadline.waiting[task] = self._until
        self._deadline.check_later(task.get_loop())

    async def exclude(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs something whose time does not count, also within the `with` statement."""
        if self._until is None:
            await work()
            return
        loop, task, waiting = asyncio.get_running_loop(), asyncio.current_task(), self._deadline.waiting
        began = loop.time()
        is_limited = task is not None and task in waiting
        if task is not None and is_limited:
            waiting[task] = math.inf
        try:
            await work()
        finally:
            self._until += loop.time() - began
            if task is not None and is_limited:
                waiting[task] = self._until

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, deadline = self._task, self._deadline
        if task is None or deadline.waiting.pop(task, None) is not None:
            return
        if task.uncancel() > self._cancelling or kind is not asyncio.CancelledError:
            return  # the caller has cancelled it too, or the call ended at the last moment
        raise StoreUnavailable(
            "the store did not answer in time (store_timeout_ms). The request may be stored or not; "
            "repeat it with the same idempotency key."
        ) from None
