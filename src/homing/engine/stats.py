"""Counters of a worker: results, and how late attempts were claimed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from msgspec import Struct, field

from homing.core.model import Settlement, Status

_SUCCEEDED = frozenset({Status.SENT, Status.DELIVERED})
LATENESS_BUCKETS_MS = (5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000, 300_000)


class Processed(Struct, kw_only=True):
    """Counts of settled notifications by result."""

    processed: int = 0
    succeeded: int = 0
    retried: int = 0
    failed: int = 0
    other: int = 0
    """Notifications that expired or were skipped, cancelled, postponed or left in doubt."""

    def count(self, settlement: Settlement) -> None:
        """Counts one settlement."""
        self.processed += 1
        status = settlement.status
        if status in _SUCCEEDED:
            self.succeeded += 1
        elif status is Status.RETRYING and settlement.attempt is not None:
            self.retried += 1
        elif status is Status.FAILED:
            self.failed += 1
        else:
            self.other += 1


class Lateness(Struct):
    """Histogram of how long after their due time notifications were claimed."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_BUCKETS_MS) + 1))
    total_ms: int = 0
    longest_ms: int = 0
    seen: int = 0

    def note(self, late_ms: Sequence[int]) -> None:
        """Adds the lateness of each claim of a batch. The batch must not be empty."""
        self.seen += len(late_ms)
        self.total_ms += sum(late_ms)
        self.longest_ms = max(self.longest_ms, *late_ms)
        counts = self.counts
        for late in late_ms:
            counts[bisect_left(LATENESS_BUCKETS_MS, late)] += 1
