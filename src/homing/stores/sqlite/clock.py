"""The time of a transaction, and the record of a suspected step of the clock."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from homing.core.clock_steps import ClockStep
from homing.stores.common.clock_guard import ClockGuard, StoreTime
from homing.stores.sqlite.statements import SqliteTransaction

READ_STEP = "SELECT correction_ms, suspected_at, renewed_at FROM homing_clock"

WRITE_STEP = """
INSERT INTO homing_clock (id, correction_ms, suspected_at, renewed_at) VALUES (1, ?1, ?2, ?3)
ON CONFLICT DO UPDATE SET correction_ms = excluded.correction_ms, suspected_at = excluded.suspected_at,
  renewed_at = excluded.renewed_at
"""


class CheckedClock:
    """A wall clock that is compared with a monotonic clock. Both return milliseconds."""

    def __init__(self, clock: Callable[[], int], steady_clock: Callable[[], int]) -> None:
        self._clock = clock
        self._steady_clock = steady_clock
        self._guard = ClockGuard()

    def read(self) -> StoreTime | None:
        """Returns the time, or None if the stored record is needed."""
        return self._guard.check(*self._measure())

    def read_in(self, cursor: sqlite3.Cursor, *, writable: bool) -> StoreTime:
        """Returns the time of a transaction. If it is `writable`, also writes the record of a step."""
        measured = self._measure()
        time = self._guard.check(*measured)
        if time is not None:
            return time
        try:
            found = cursor.execute(READ_STEP).fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return StoreTime(measured[0])  # the file has no tables yet
        resolution = self._guard.resolve(*measured, _decode(found), writable=writable)
        if writable and resolution.clear:
            cursor.execute("DELETE FROM homing_clock")
        elif writable and (step := resolution.record) is not None:
            cursor.execute(WRITE_STEP, (step.correction_ms, step.suspected_at, step.renewed_at))
        return resolution.time

    def _measure(self) -> tuple[int, int, int]:
        asked_ms = self._steady_clock()
        return self._clock(), asked_ms, self._steady_clock()


def suspected_step(tx: SqliteTransaction, clock_now: int) -> ClockStep | None:
    """Returns the suspected step, or None if there is none."""
    step = _decode(tx.cursor.execute(READ_STEP).fetchone())
    return step if step is not None and step.is_current(clock_now) else None


def _decode(found: tuple[int, int, int] | None) -> ClockStep | None:
    if found is None:
        return None
    correction_ms, suspected_at, renewed_at = found
    return ClockStep(correction_ms=correction_ms, suspected_at=suspected_at, renewed_at=renewed_at)
