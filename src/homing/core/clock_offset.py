"""Bounds for the difference between two clocks, of which one is read through calls that take time.

A caller that asks another process for its time does not know when exactly the answer was true. It was true at
some moment between the call and the response, so the difference is known only as an interval.
"""

from __future__ import annotations

from msgspec import Struct

_RECENT_MS = 60_000
"""Bounds that are older than this are replaced by newer ones, even by wider ones, because clocks drift."""


class OffsetBounds(Struct, frozen=True):
    """Interval that contains the remote clock's time minus the local monotonic time, in milliseconds."""

    low: int
    high: int
    measured_ms: int
    """Monotonic time of the earliest call that the bounds come from."""

    def narrowed(self, newer: OffsetBounds) -> OffsetBounds:
        """Returns these bounds after a newer measurement.

        A measurement that agrees with these bounds narrows them. If it contradicts them, the remote clock was
        set or has drifted, and only the measurement counts.
        """
        low, high = max(self.low, newer.low), min(self.high, newer.high)
        if low > high or newer.measured_ms - self.measured_ms > _RECENT_MS:
            return newer
        if (low, high) == (newer.low, newer.high):
            return newer
        return OffsetBounds(low, high, self.measured_ms)

    def distance_ms(self, other: OffsetBounds) -> int:
        """Returns how far apart the two intervals are. 0 if they overlap."""
        return max(0, other.low - self.high, self.low - other.high)


def measure_offset(remote_now: int, asked_ms: int, answered_ms: int) -> OffsetBounds:
    """Returns the bounds that follow from one response of the remote clock.

    `asked_ms` and `answered_ms` are the monotonic times of the call and of the response.
    """
    return OffsetBounds(remote_now - answered_ms, remote_now - asked_ms, asked_ms)
