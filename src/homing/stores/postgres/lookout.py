"""What one process remembers of where it found rows last, so that it need not begin at the beginning.

A claimed row leaves a dead entry in the index until no transaction can see it any more. A claim that began at
the oldest entry would walk over all of them, every time, for as long as somebody holds an old snapshot open.
So a claim begins where the last one of this process found the first row (the low-water mark of the queue),
and a sweep from the beginning finds what came in below: with every claim while that is cheap, and so rarely
that it takes a twentieth of the time at most when it is not.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

_CHEAP_S = 0.02
_SEVERAL = 5
"""Sweeps in a row that have to be dear before they are spared: a busy moment says little."""
_SHARE = 20
"""A sweep that took a second is followed by none for twenty."""


class Pace:
    """Decides when the next sweep is worth its price."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._took: deque[float] = deque([0.0] * _SEVERAL, maxlen=_SEVERAL)
        self._ended = float("-inf")

    def due(self) -> bool:
        """While the cheapest of the last few is cheap, always."""
        price = min(self._took)
        return price <= _CHEAP_S or self._clock() - self._ended >= _SHARE * price

    @contextmanager
    def sweep(self) -> Iterator[None]:
        begun = self._clock()
        yield
        self._ended = self._clock()
        self._took.append(self._ended - begun)


class Lookout:
    """The queues that have rows, with the due time from which on there are any."""

    def __init__(self) -> None:
        self.pace = Pace()
        self.quiet = False
        """The last claim found little, and in few queues."""
        self._marks: dict[int, int] = {}

    def swept(self, marks: Mapping[int, int]) -> None:
        """A look at everything: what is not in it has no rows."""
        self._marks = dict(marks)

    def begin(self, now: int) -> dict[int, int]:
        """Queues that may have due rows, and where to begin in each."""
        return {queue: mark for queue, mark in self._marks.items() if mark <= now}

    def later(self, now: int) -> dict[int, int]:
        """Queues whose first row is due later, and when."""
        return {queue: mark for queue, mark in self._marks.items() if mark > now}

    def mark(self, queue: int, due_at: int | None) -> None:
        """The first row of this queue is due then; None: it has none."""
        if due_at is None:
            self._marks.pop(queue, None)
        else:
            self._marks[queue] = due_at
