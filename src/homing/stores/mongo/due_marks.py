"""The low-water marks of busy queues: the due time at which a claim starts to search them.

For five minutes (the server's `minSnapshotHistoryWindowInSeconds`), MongoDB keeps the index entry of each row
that was leased, and a search for the first row of a queue steps over all of them. So a claim searches a queue
from where this process has last taken rows from it. A sweep, which searches all queues from the beginning,
finds rows that were added below a mark. Sweeps are limited to about a twentieth of the time, unless they are
fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nlargest
from math import ceil

from homing.core.routing.fair_share import DueQueue
from homing.stores.common.sweep_pace import SweepPace
from homing.stores.mongo.documents import queue_key

_FAST_SWEEP_S = 0.004

_MAX_MARKS = 8
"""Maximum number of queues that have a mark, the busiest ones. A claim searches each of them by itself."""

_MARGIN_MS = 200
"""A mark is this much earlier than its row: a row may be committed after others that are due later.

The search steps over the entries of all rows that were due in this time, which were thousands with 2 seconds.
A row that is committed even later waits for a sweep.
"""


class DueMarks:
    """The low-water marks, as known to this process."""

    def __init__(self) -> None:
        self.pace = SweepPace(fast_s=_FAST_SWEEP_S)
        self._marks: dict[str, int] = {}
        self._busy: dict[str, int] = {}
        """Weight of each queue with a mark: the rows of the last claim, half of those before, and so on."""

    @property
    def by_queue(self) -> Mapping[str, int]:
        """The marks by the keys of the queues."""
        return self._marks

    def begin(self) -> Mapping[str, int]:
        """Returns the marks for a claim that begins. There are none if a sweep is due."""
        return {} if self.pace.due() else self._marks

    def sweep_at(self, now: int) -> int:
        """Returns the time after `now` at which the next sweep may run."""
        return now + max(1, ceil(1000 * self.pace.due_in_s()))

    def note(self, queues: Sequence[DueQueue], taken: Mapping[str, int]) -> None:
        """Sets the marks after a claim. `taken` has the number of its rows by the key of their queue."""
        marks, busy = dict(self._marks), {key: weight // 2 for key, weight in self._busy.items()}
        for queue in queues:
            if queue.took:
                key = queue_key(queue.lane, queue.tenant, queue.outlet)
                first_at = queue.rows[0][0] if queue.rows else queue.after[0]
                marks[key], busy[key] = first_at - _MARGIN_MS, busy.get(key, 0) + taken.get(key, 0)
        kept = nlargest(_MAX_MARKS, marks, key=busy.__getitem__)
        self._marks, self._busy = {key: marks[key] for key in kept}, {key: busy[key] for key in kept}
