"""Limits the time that a process spends on searches for due rows from the beginning (sweeps)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FAST_SWEEP_S = 0.02

_RECENT_SWEEPS = 5
"""Number of consecutive slow sweeps after which some are skipped. A single slow one may be a coincidence."""

_PAUSE_FACTOR = 20
"""The pause after slow sweeps, as a multiple of the shortest recent duration."""


class SweepPace:
    """Decides when the next sweep may run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, fast_s: float = _FAST_SWEEP_S) -> None:
        """A sweep that takes at most `fast_s` is never followed by a pause."""
        self._clock = clock
        self._fast_s = fast_s
        self._durations_s: deque[float] = deque([0.0] * _RECENT_SWEEPS, maxlen=_RECENT_SWEEPS)
        self._last_ended_s = float("-inf")

    def due(self) -> bool:
        """Returns True if one of the last few sweeps was fast, or the pause after a slow one is over."""
        return self.due_in_s() <= 0

    def due_in_s(self) -> float:
        """Returns how long the pause after slow sweeps still lasts, or 0 if a sweep may run now."""
        duration_s = min(self._durations_s)
        if duration_s <= self._fast_s:
            return 0.0
        return max(0.0, self._last_ended_s + _PAUSE_FACTOR * duration_s - self._clock())

    @contextmanager
    def sweep(self) -> Iterator[None]:
        """Measures the duration of the sweep inside the `with` block."""
        started_s = self._clock()
        yield
        self._last_ended_s = self._clock()
        self._durations_s.append(self._last_ended_s - started_s)
