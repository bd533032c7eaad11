"""The interfaces of the runtime: clock, random numbers and the waker of a worker."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A source of time. `now_ms` is the wall clock; `monotonic_ms` never goes back or jumps."""

    def now_ms(self) -> int: ...
    def monotonic_ms(self) -> int: ...
    async def sleep_ms(self, duration_ms: int) -> None: ...


class RandomSource(Protocol):
    """A source of random numbers. `random.Random` is one."""

    def random(self) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...


class Waker(Protocol):
    """Wakes a worker early. A lost wake-up only delays work, because workers also poll."""

    def wake(self) -> None:
        """Makes the current call of `wait` return or, if none is running, the next one."""

    async def wait(self, timeout_ms: int) -> None:
        """Returns when woken, at the latest after `timeout_ms`."""
