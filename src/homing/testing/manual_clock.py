"""A clock for tests that moves only when the test advances it."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

START_MS = 1_750_000_000_000
"""Default start of a manual clock: 15 June 2025, 15:06:40 UTC."""


class ManualClock:
    """A `Clock` under a test's control. Time passes only when `advance` is called."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now = now_ms
        self._passed = 0
        self._order = count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        """Returns the wall-clock time in epoch milliseconds."""
        return self._now

    def monotonic_ms(self) -> int:
        """Returns the milliseconds by which the clock was advanced since it was created."""
        return self._passed

    async def sleep_ms(self, duration_ms: int) -> None:
        """Waits until the clock has been advanced by `duration_ms`."""
        if duration_ms <= 0:
            await asyncio.sleep(0)
            return
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._passed + duration_ms, next(self._order), waker))
        await waker

    def advance(self, duration_ms: int) -> None:
        """Advances the clock and wakes the sleepers whose time has come, earliest first."""
        assert duration_ms >= 0, "duration_ms must not be negative"
        self._now += duration_ms
        self._passed += duration_ms
        while self._sleepers and self._sleepers[0][0] <= self._passed:
            _, _, waker = heapq.heappop(self._sleepers)
            if not waker.done():
                waker.set_result(None)
