"""The low-water marks of the queues: the due time at which a claim starts to search each queue.

A claimed row leaves a dead entry in the index until no transaction can see it any more. If every claim
started at the oldest entry, it would have to skip all dead entries for as long as some transaction keeps an
old snapshot. So a claim starts where this process last found the first row of the queue, its low-water mark.
A sweep from the beginning finds rows that were added below the mark. Every claim sweeps while sweeps are
fast. When they are slow, they are limited to about a twentieth of the time.
"""

from __future__ import annotations

from collections.abc import Mapping

from homing.stores.common.sweep_pace import SweepPace


class DueWatermark:
    """The low-water marks, as known to this process, of all queues that have waiting rows."""

    def __init__(self) -> None:
        self.pace = SweepPace()
        self.quiet = False
        """True if the last claim found few rows in few queues."""
        self._marks: dict[int, int] = {}

    def clear(self) -> None:
        """Forgets all marks, so that the next claim sweeps."""
        self.pace = SweepPace()
        self._marks = {}

    def replace_marks(self, marks: Mapping[int, int]) -> None:
        """Replaces all marks after a sweep. A queue without a mark has no waiting rows."""
        self._marks = dict(marks)

    def begin(self, now: int) -> dict[int, int]:
        """Returns the marks of the queues that may have due rows."""
        return {queue: mark for queue, mark in self._marks.items() if mark <= now}

    def later(self, now: int) -> dict[int, int]:
        """Returns the marks of the queues whose first row is due after `now`."""
        return {queue: mark for queue, mark in self._marks.items() if mark > now}

    def mark(self, queue: int, due_at: int | None) -> None:
        """Sets the mark of a queue to the due time of its first row. None means that no row waits in it."""
        if due_at is None:
            self._marks.pop(queue, None)
        else:
            self._marks[queue] = due_at
