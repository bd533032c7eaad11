"""The interface of timers, which wake workers when notifications become due.

A timer only makes delivery more punctual. The store knows every due time, and workers ask it at least once
per poll interval. A timer may therefore lose, delay or repeat everything that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from homing.core.lifecycle.due_times import DueTime
from homing.core.notifications import Priority


class Wake(Protocol):
    """Function that wakes the worker of this process. It never raises and never blocks.

    It must be called on the event loop. A timer with a thread of its own uses `call_soon_threadsafe`.
    """

    def __call__(self, due_at: int = 0) -> None:
        """Makes the worker claim at `due_at` (epoch milliseconds by the store's clock), or now if it has
        passed."""


class Timer(Protocol):
    """Carries due times from the process that wrote them to the workers of all processes.

    Every process calls `open`, `schedule` and `close`. A process with a worker also calls `listen`. Calls of
    `schedule` and `listen` overlap, on the same event loop.
    """

    async def open(self, store_now_ms: Callable[[], int]) -> None:
        """Connects. Called before all other methods, and again later if it raises.

        `store_now_ms` returns the store's current time, as this process estimates it.
        """

    async def close(self) -> None:
        """Disconnects. Called once, after all other calls have ended, and only if `open` has succeeded."""

    async def schedule(self, batch: Sequence[DueTime]) -> None:
        """Takes due times that a commit has just written.

        The same notification may be given again with another due time, and the latest one is right. If this
        method raises or takes longer than 5 s, the batch is discarded, and the next call follows after a
        pause.
        """

    async def listen(self, wake: Wake) -> None:
        """Calls `wake` when a notification becomes due, until it is cancelled.

        One call may stand for many notifications, and it may come early if it names the due time. A timer
        that keeps a record of what was due, such as an offset, may forget it as soon as `wake` has returned.
        If this method raises or returns, it is called again after a pause, and workers poll meanwhile. Work
        may have become due during the pause, so each call of this method starts with a call of `wake`.
        """


class AssignedTimer(Struct, frozen=True):
    """A timer with the priorities whose due times it gets."""

    timer: Timer
    priorities: frozenset[Priority] = frozenset(Priority)


class TimerState(Struct, frozen=True, kw_only=True):
    """Whether a timer works in this process, and how many due times it has lost."""

    connected: bool
    """False after a failed call, until a later call succeeds."""
    scheduled: int
    """Number of due times that the timer has taken."""
    discarded: int
    """Number of due times that it did not get, because it failed or was too slow."""
    failures: int
    """Number of failed calls, of all methods."""
    waiting: int = 0
    """Number of due times that the timer has not taken yet."""
