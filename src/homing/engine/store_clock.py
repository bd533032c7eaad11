"""The store's clock, as this process sees it.

Due times and leases are times of the store, so that workers with skewed clocks agree. Asking the store for
its time before every attempt would be slow. Each claim returns the store's time, and the local monotonic
clock continues from there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from homing.core.clock_offset import OffsetBounds, measure_offset
from homing.core.clock_steps import MAX_BELIEVED_STEP_MS
from homing.core.ports.runtime import Clock

STORE_PAUSE_MS = 1_000
"""Wait after a failed call to the store, before work that needs the store is tried again."""


class StoreClock:
    """Estimates the store's time with the local monotonic clock.

    The store reads its clock at some moment between a call and its response, so the estimate is an interval.
    `now` and `at` return its start, which never runs ahead: nothing expires early, and no wait is cut short.
    `latest_at` returns its end, by which no lease is assumed to last longer than it does.
    """

    def __init__(self, read_store_time: Callable[[], Awaitable[int]], clock: Clock) -> None:
        self._read_store_time = read_store_time
        self._clock = clock
        self._bounds: OffsetBounds | None = None
        self._earliest_offset_ms = 0
        self._latest_offset_ms = 0
        self._stepped_ms: int | None = None
        self.synced_ms = 0
        """Monotonic time of the newest call whose response was used. 0 before the first response."""

    def now(self) -> int:
        """Returns the estimated store time in milliseconds. The store's clock shows at least this time."""
        return self._clock.monotonic_ms() + self._earliest_offset_ms

    def at(self, mono_ms: int) -> int:
        """Returns the earliest store time at the given monotonic time, in milliseconds."""
        return mono_ms + self._earliest_offset_ms

    def latest_at(self, mono_ms: int) -> int:
        """Returns the latest store time at the given monotonic time, in milliseconds."""
        return mono_ms + self._latest_offset_ms

    def sync(self, store_now: int, asked_ms: int) -> None:
        """Updates the estimate from a response that has just arrived to a call made at `asked_ms`.

        The newest call counts, unless the response of an earlier one is more exact and agrees with it.
        """
        if asked_ms < self.synced_ms:  # responses may arrive out of order
            return
        self.synced_ms = asked_ms
        measured = measure_offset(store_now, asked_ms, self._clock.monotonic_ms())
        if self._bounds is not None and self._bounds.distance_ms(measured) > MAX_BELIEVED_STEP_MS:
            self._stepped_ms = asked_ms
        self._bounds = measured if self._bounds is None else self._bounds.narrowed(measured)
        self._earliest_offset_ms, self._latest_offset_ms = self._bounds.low, self._bounds.high

    def has_stepped_within(self, duration_ms: int) -> bool:
        """Returns True if the store's time made a large step within the last `duration_ms`."""
        return self._stepped_ms is not None and self._clock.monotonic_ms() - self._stepped_ms < duration_ms

    async def refresh(self) -> None:
        """Asks the store for its time."""
        asked_ms = self._clock.monotonic_ms()
        self.sync(await self._read_store_time(), asked_ms)
