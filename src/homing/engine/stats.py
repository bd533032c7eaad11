"""What a worker counts while it runs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from msgspec import Struct, field

from homing.core.model import Settlement, Status

_TAKEN = frozenset({Status.SENT, Status.DELIVERED})
LATENESS_BUCKETS_MS = (5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000, 300_000)


class Processed(Struct, kw_only=True):
    """What became of what was taken: the answer of processing once."""

    processed: int = 0
    succeeded: int = 0
    retried: int = 0
    failed: int = 0
    other: int = 0
    """Expired, skipped, cancelled, in doubt or postponed."""

    def count(self, settlement: Settlement) -> None:
        self.processed += 1
        status = settlement.status
        if status in _TAKEN:
            self.succeeded += 1
        elif status is Status.RETRYING and settlement.attempt is not None:
            self.retried += 1
        elif status is Status.FAILED:
            self.failed += 1
        else:
            self.other += 1


class Lateness(Struct):
    """How long after their due time attempts were claimed."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_BUCKETS_MS) + 1))
    total_ms: int = 0
    longest_ms: int = 0
    seen: int = 0

    def note(self, late_ms: Sequence[int]) -> None:
        """Of each attempt of a batch, of which there is one at least."""
        self.seen += len(late_ms)
        self.total_ms += sum(late_ms)
        self.longest_ms = max(self.longest_ms, *late_ms)
        counts = self.counts
        for late in late_ms:
            counts[bisect_left(LATENESS_BUCKETS_MS, late)] += 1
