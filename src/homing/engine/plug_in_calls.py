"""Calls plug-ins, such as directories, sinks and health checks, which may raise anything or never return."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

AT_ONCE = 16
"""Maximum number of calls of a plug-in that are made at the same time, while some of them take long."""

_T = TypeVar("_T")

_R = TypeVar("_R")

_left_behind: set[asyncio.Task[Any]] = set()
"""Calls that did not return in time. The event loop itself keeps only weak references to tasks."""


class PlugInExit(Exception):
    """A plug-in raised an exception that would end the process or the task, such as `SystemExit`."""


async def call_within(call: Callable[[], Awaitable[_T]], timeout_ms: float | None) -> _T:
    """Calls an async function of a plug-in in a task of its own and returns its result.

    Raises `TimeoutError` once `timeout_ms` has elapsed, even if the function ignores its cancellation. If it
    is None, there is no limit, but the caller can be cancelled. The function is then left behind and its
    result is discarded. Exceptions of the function are raised; those that are not an `Exception`, such as
    `SystemExit`, are raised as `PlugInExit`.
    """
    task = asyncio.create_task(contain(call))
    try:
        await asyncio.wait({task}, timeout=None if timeout_ms is None else max(0.0, timeout_ms / 1000))
        if task.done():
            return task.result()
        raise TimeoutError
    finally:
        task.cancel()  # no effect on a task that has ended
        leave_behind(task)


def leave_behind(task: asyncio.Task[Any]) -> None:
    """Keeps a cancelled task, which may never end, until it ends, and ignores its result."""
    if task.done():
        _forget(task)
    else:
        _left_behind.add(task)
        task.add_done_callback(_forget)


def is_cancelled() -> bool:
    """Returns True if the current task was cancelled.

    If not, a `CancelledError` in this task was raised by the code that it called.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def contain(call: Callable[[], Awaitable[_T]]) -> _T:
    """Calls an async function of a plug-in and returns its result.

    Exceptions that are not an `Exception` are raised as `PlugInExit`, except for a cancellation of this task.
    """
    try:
        return await call()
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise PlugInExit("it cancelled itself") from error
    except Exception:
        raise
    except BaseException as error:  # in a task, it would end the event loop
        raise PlugInExit(type(error).__name__) from error


async def map_at_once(
    work: Callable[[_T], Awaitable[_R]], items: Sequence[_T], at_once: int = AT_ONCE
) -> list[_R]:
    """Works on all items, on up to `at_once` at a time, and returns the results in order.

    If one raises an exception, the others are cancelled.
    """
    free = asyncio.Semaphore(at_once)

    async def run(item: _T) -> _R:
        async with free:
            return await work(item)

    tasks = [asyncio.create_task(run(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()  # no effect on a task that has ended
        await asyncio.gather(*tasks, return_exceptions=True)


def _forget(task: asyncio.Task[Any]) -> None:
    _left_behind.discard(task)
    if not task.cancelled():
        task.exception()  # marks the exception as retrieved: no caller waits for it any longer
