"""A timer over a heap, shared by the engines of a test, that can fail, hang and lose what it is given."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Sequence

from homing.core.lifecycle.due_times import DueTime
from homing.core.ports.timers import Wake


class TimerServer:
    """The part that all processes share, as a Redis server would be: due times and who listens."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, str]] = []
        self.changed = asyncio.Event()
        self.batches: list[tuple[DueTime, ...]] = []

    @property
    def scheduled(self) -> list[DueTime]:
        return [one for batch in self.batches for one in batch]

    def add(self, batch: Sequence[DueTime]) -> None:
        self.batches.append(tuple(batch))
        for one in batch:
            heapq.heappush(self.heap, (one.due_at, one.id))
        self.changed.set()
        self.changed = asyncio.Event()


class HeapTimer:
    """A process's connection to the `TimerServer`."""

    def __init__(self, server: TimerServer | None = None) -> None:
        self.server = server or TimerServer()
        self.opened = self.closed = 0
        self.listens = 0
        self.fails: set[str] = set()
        """Calls that raise: `open`, `schedule`, `listen`."""
        self.hangs = False
        """True if `schedule` never returns."""
        self.loses = False
        """True if scheduled due times are forgotten."""
        self.on_schedule: Callable[[Sequence[DueTime]], Awaitable[None]] | None = None

    async def open(self, store_now_ms: Callable[[], int]) -> None:
        self._maybe_fail("open")
        self._store_now_ms = store_now_ms
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    async def schedule(self, batch: Sequence[DueTime]) -> None:
        self._maybe_fail("schedule")
        if self.hangs:
            await asyncio.Event().wait()
        if self.on_schedule is not None:
            await self.on_schedule(batch)
        if not self.loses:
            self.server.add(batch)

    async def listen(self, wake: Wake) -> None:
        self.listens += 1
        self._maybe_fail("listen")
        wake()
        while True:
            changed = self.server.changed.wait()
            wait_ms = self.server.heap[0][0] - self._store_now_ms() if self.server.heap else None
            try:
                async with asyncio.timeout(None if wait_ms is None else max(0, wait_ms) / 1000):
                    await changed
            except TimeoutError:
                due_at, _ = heapq.heappop(self.server.heap)
                wake(due_at)
            self._maybe_fail("listen")

    def _maybe_fail(self, call: str) -> None:
        if call in self.fails:
            raise ConnectionError("the timer is away")
