"""The system clock and a waker for one process. Simulations pass in a clock of their own."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Wall-clock time, monotonic time and asyncio's sleep."""

    def now_ms(self) -> int:
        """Returns the wall-clock time in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Returns the monotonic time in milliseconds."""
        return time.monotonic_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        """Sleeps for this long."""
        await asyncio.sleep(duration_ms / 1000)


class LocalWaker:
    """Wakes a waiting task of this process. Other processes find new work by polling."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Ends the current or the next `wait`."""
        self._event.set()

    async def wait(self, timeout_ms: int) -> None:
        """Waits until `wake` is called, for at most `timeout_ms`."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._event.clear()
