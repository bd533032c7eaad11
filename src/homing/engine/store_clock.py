"""The store's clock, as this process sees it.

Due times and leases are times of the store, so that workers with skewed clocks agree. Asking the store for
its time before every attempt would be slow. Each claim returns the store's time, and the local monotonic
clock continues from there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from homing.core.ports.runtime import Clock

STORE_PAUSE_MS = 1_000
"""Wait after a failed call to the store, before work that needs the store is tried again."""


class StoreClock:
    """Estimates the store's time with the local monotonic clock."""

    def __init__(self, read_store_time: Callable[[], Awaitable[int]], clock: Clock) -> None:
        self._read_store_time = read_store_time
        self._clock = clock
        self._offset_ms = 0
        self.synced_ms = 0
        """Monotonic time of the call whose response the estimate is based on. 0 before the first response."""

    def now(self) -> int:
        """Returns the estimated store time in milliseconds."""
        return self._clock.monotonic_ms() + self._offset_ms

    def at(self, mono_ms: int) -> int:
        """Returns the estimated store time at the given monotonic time, in milliseconds."""
        return mono_ms + self._offset_ms

    def sync(self, store_now: int, asked_ms: int) -> None:
        """Updates the estimate from a response to a call made at `asked_ms` (monotonic).

        Assumes that the store read its clock when the call was made. A slow call makes the estimate run
        ahead, so that a lease is never assumed to last longer than it does.
        """
        if asked_ms >= self.synced_ms:  # responses may arrive out of order
            self._offset_ms, self.synced_ms = store_now - asked_ms, asked_ms

    async def refresh(self) -> None:
        """Asks the store for its time."""
        asked_ms = self._clock.monotonic_ms()
        self.sync(await self._read_store_time(), asked_ms)
