"""The time of a transaction, and the record of a suspected step of the clock.

PostgreSQL's `now()` is the time at which a transaction began, so it lies between the call of BEGIN and its
response.
"""

from __future__ import annotations

from typing import Any

from asyncpg import exceptions

from homing.core.clock_steps import ClockStep
from homing.stores.common.clock_guard import ClockGuard, ResolvedTime, StoreTime
from homing.stores.postgres.address import in_schema
from homing.stores.postgres.errors import PERMISSION_ERRORS

_READ_STEP = """
SELECT homing.now_ms(), c.correction_ms, c.suspected_at, c.renewed_at
FROM (SELECT 1) AS one LEFT JOIN homing.clock AS c ON true
"""

_WRITE_STEP = """
INSERT INTO homing.clock (id, correction_ms, suspected_at, renewed_at) VALUES (1, $1, $2, $3)
ON CONFLICT (id) DO UPDATE SET correction_ms = excluded.correction_ms, suspected_at = excluded.suspected_at,
  renewed_at = excluded.renewed_at
"""


class ClockUnresolvedError(Exception):
    """Raised in a transaction whose time is unknown until the record of a step was read."""


class TransactionClock:
    """The time of one transaction."""

    __slots__ = ("_answered_ms", "_asked_ms", "_guard", "_is_last_try")

    def __init__(self, guard: ClockGuard, asked_ms: int, answered_ms: int, is_last_try: bool) -> None:
        """The monotonic times are those of BEGIN. In the last try, a time that is not resolved is used."""
        self._guard = guard
        self._asked_ms = asked_ms
        self._answered_ms = answered_ms
        self._is_last_try = is_last_try

    @property
    def correction_ms(self) -> int:
        """The duration that has to be added to `homing.now_ms()` in SQL."""
        return self._guard.correction_ms(self._answered_ms)

    def time_of(self, clock_now: int) -> StoreTime:
        """Returns the time of the transaction, for the result of `homing.now_ms()`."""
        time = self._guard.check(clock_now, self._asked_ms, self._answered_ms)
        if time is not None:
            return time
        if self._is_last_try:
            return StoreTime(self._guard.correct(clock_now))
        raise ClockUnresolvedError


async def resolve(
    connection: Any, schema: str, guard: ClockGuard, asked_ms: int, answered_ms: int
) -> ResolvedTime | None:
    """Reads the record of a step, and writes it if necessary.

    The caller has begun a transaction between these monotonic times, and commits it. Returns None if the
    schema has no table for the record yet, or this role may not read it. A role that may not write it goes on
    by the old time all the same.
    """
    try:
        found = await connection.fetchrow(in_schema(_READ_STEP, schema))
    except (exceptions.UndefinedTableError, exceptions.InsufficientPrivilegeError):
        guard.believe_clock()
        return None
    clock_now, stored = found[0], _decode(found[1:])
    resolution = guard.resolve(clock_now, asked_ms, answered_ms, stored)
    try:
        if resolution.clear:
            await connection.execute(in_schema("DELETE FROM homing.clock", schema))
        elif (step := resolution.record) is not None:
            values = (step.correction_ms, step.suspected_at, step.renewed_at)
            await connection.execute(in_schema(_WRITE_STEP, schema), *values)
    except PERMISSION_ERRORS:
        guard.keep_unrecorded(resolution.record)
    return resolution


async def suspected_step(tx: Any) -> ClockStep | None:
    """Returns the suspected step, or None if there is none."""
    [(clock_now, *found)] = await tx.rows(_READ_STEP)
    step = _decode(found)
    return step if step is not None and step.is_current(clock_now) else None


def _decode(found: Any) -> ClockStep | None:
    correction_ms, suspected_at, renewed_at = found
    if correction_ms is None:
        return None
    return ClockStep(correction_ms=correction_ms, suspected_at=suspected_at, renewed_at=renewed_at)
