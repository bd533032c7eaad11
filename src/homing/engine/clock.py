"""The real clock. The simulator hands in another one."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Wall time, monotonic time and the event loop's sleep."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)


class LocalWaker:
    """Wakes the workers of this process. Other processes find new work by looking, at least once a second."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()

    async def wait(self, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._event.clear()
