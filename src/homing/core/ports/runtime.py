"""The interfaces of the runtime: clock, random numbers and blocking calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

_T = TypeVar("_T")


class Clock(Protocol):
    """A source of time. `now_ms` is the wall clock; `monotonic_ms` never goes back or jumps."""

    def now_ms(self) -> int: ...
    def monotonic_ms(self) -> int: ...
    async def sleep_ms(self, duration_ms: int) -> None: ...


class RandomSource(Protocol):
    """A source of random numbers. `random.Random` is one."""

    def random(self) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...


DEFAULT_THREADS = 32
"""Number of blocking calls of one provider that may run at the same time, unless `max_in_flight` is set."""


class BlockingCalls(Protocol):
    """Runs blocking calls beside the event loop, at most a fixed number at the same time."""

    async def call(self, function: Callable[[], _T]) -> _T:
        """Calls a function that may block, and returns its result.

        A call that has started cannot be stopped: if the caller is cancelled, this method raises
        `CancelledError` only after the function has returned. Cancelled before that, the function is never
        called.
        """

    async def close(self, within_ms: int) -> None:
        """Waits at most `within_ms` for running calls, and then no longer waits for them."""


@runtime_checkable
class RunsBlockingCalls(Protocol):
    """A clock whose event loop has no threads, such as one of virtual time, and runs the calls itself."""

    def blocking_calls(self, name: str, most: int) -> BlockingCalls:
        """Returns an object that runs at most `most` calls at the same time."""


def is_async(function: Any) -> bool:
    """Returns True if a call of the function, or of the object's `__call__`, only creates a coroutine.

    Any other function may block and belongs in a thread.
    """
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # the method is inspected, not called
    )
