"""The interfaces of the runtime: clock and random numbers."""

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
