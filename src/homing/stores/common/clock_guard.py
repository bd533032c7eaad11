"""Compares the clock of a store with the monotonic clock of this process, and corrects it after a step.

Every transaction takes its time from here. If the clock was set by more than a little, the transaction gets
the time from before the step, and the step is recorded in the store, where all other processes find it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from homing.core.clock_offset import OffsetBounds, measure_offset
from homing.core.clock_steps import (
    MAX_BELIEVED_STEP_MS,
    RENEW_EVERY_MS,
    VOID_AFTER_MS,
    ClockStep,
    describe_step,
)
from homing.core.plain_values import MAX_INTEGER

log = logging.getLogger("homing.store")

_EXPECTATION_MS = 60_000
"""If this process has not read the clock for longer, it does not know what to expect and trusts the clock.

Other processes may have accepted a step, or started after it.
"""


class StoreTime(Struct, frozen=True):
    """The time of one transaction."""

    now: int
    """Epoch milliseconds."""
    settling: bool = False
    """True if a step was accepted shortly before, so that no lease and no leadership may be taken over."""


class ResolvedTime(Struct, frozen=True):
    """The time of a transaction, and the record that has to be written."""

    time: StoreTime
    record: ClockStep | None = None
    """The suspected step to be stored. None if the stored record stays as it is."""
    clear: bool = False
    """True if the stored record has to be deleted, because the clock shows the old time again."""


def steady_clock_ms() -> int:
    """Returns the monotonic time in milliseconds. It also counts while the machine is suspended.

    So a suspended machine does not look like a machine whose clock was set.
    """
    return _read_steady_ns() // 1_000_000


def _find_steady_clock() -> Callable[[], int]:
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):  # macOS counts suspended time in CLOCK_MONOTONIC
        number = getattr(time, name, None)
        if number is not None:
            return partial(time.clock_gettime_ns, number)
    return time.monotonic_ns


_read_steady_ns = _find_steady_clock()


class ClockGuard:
    """What one process knows about the clock of its store. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bounds: OffsetBounds | None = None
        self._checked_ms = 0
        """Monotonic time at which the clock was last read."""
        self._step: ClockStep | None = None
        """The suspected or accepted step, as this process last read or wrote it. None if there is none."""
        self._first_ms: int | None = None
        """Monotonic time at which the clock was first read, or was first read after more than a minute."""
        self._read_ms = 0
        """Monotonic time at which the record was last read."""
        self._has_record = True
        """False if there is no record that this process can read. The clock is believed then."""
        self._may_record = True
        """False once this process could not write a record, because it may not.

        A missing or older record then means nothing.
        """

    def check(self, clock_now: int, asked_ms: int, answered_ms: int) -> StoreTime | None:
        """Returns the time of a transaction, or None if `resolve` has to be called with the stored record.

        `clock_now` is a time of the store's clock that was read between the two monotonic times.
        """
        with self._lock:
            if not self._has_record or self._agrees(clock_now, asked_ms, answered_ms):
                return StoreTime(clock_now)
            measured = measure_offset(clock_now, asked_ms, answered_ms)
            if self._bounds is None or not self._is_fresh(answered_ms) or self._has_stepped(measured):
                return None
            if self._is_new(answered_ms) and answered_ms - self._read_ms >= RENEW_EVERY_MS:
                return None
            step, time_ = self._step, StoreTime(clock_now)
            if step is not None:
                if not step.is_pending(clock_now):
                    time_ = StoreTime(clock_now, step.is_settling(clock_now))
                    if not time_.settling:
                        self._step = None
                elif step.corrected(clock_now) - step.renewed_at < RENEW_EVERY_MS:
                    time_ = StoreTime(step.corrected(clock_now))
                else:
                    return None
            self._note(measured, answered_ms)
            return time_

    def resolve(
        self,
        clock_now: int,
        asked_ms: int,
        answered_ms: int,
        stored: ClockStep | None,
        *,
        writable: bool = True,
    ) -> ResolvedTime:
        """Returns the time of a transaction, and the record that the caller has to write.

        `stored` is the record in the store. If the caller cannot write, a new step is not remembered here
        either, so that the next transaction that can write records it.
        """
        with self._lock:
            measured = measure_offset(clock_now, asked_ms, answered_ms)
            resolution, step = self._resolve(measured, clock_now, answered_ms, stored)
            has_to_delete = resolution.clear and stored is not None
            is_complete = writable or not (has_to_delete or resolution.record is not None)
            is_renewal = step is not None and stored is not None and step.suspected_at == stored.suspected_at
            if is_complete or is_renewal:
                self._has_record, self._read_ms = True, answered_ms
                if self._first_ms is None or not self._is_fresh(answered_ms):
                    self._first_ms = answered_ms
                self._log_change(step, clock_now)
                if resolution.clear:
                    log.warning("the store's clock shows the expected time again")
                self._note(measured, answered_ms)
                self._step = step if is_complete else stored
            return resolution

    def believe_clock(self) -> None:
        """Believes the clock until `resolve` is called: there is no record that this process can read."""
        with self._lock:
            self._has_record = False

    def keep_unrecorded(self, step: ClockStep | None) -> None:
        """Goes on by a step that this process may not write into the store. Others do that."""
        with self._lock:
            self._step, self._may_record = step, False

    def correct(self, clock_now: int) -> int:
        """Returns a time of the store's clock, corrected by the suspected step that this process knows of.

        For a time that was read long ago, which cannot be compared with the monotonic clock.
        """
        with self._lock:
            step = self._step
            return step.corrected(clock_now) if step is not None and step.is_current(clock_now) else clock_now

    def correction_ms(self, mono_ms: int) -> int:
        """Returns the duration that is added to the time of the store's clock at this monotonic time.

        Hot path: called once per claim.
        """
        step, bounds = self._step, self._bounds
        if step is None or bounds is None or not step.is_current(bounds.low + mono_ms):
            return 0
        return step.correction_ms

    def _resolve(
        self, measured: OffsetBounds, clock_now: int, answered_ms: int, stored: ClockStep | None
    ) -> tuple[ResolvedTime, ClockStep | None]:
        own, expected = self._step, self._expect(measured, answered_ms)
        if expected is None and self._is_unrecorded(stored, clock_now, answered_ms):
            assert own is not None, "checked by _is_unrecorded"
            expected = own.corrected(clock_now)
        if stored is not None and stored.is_current(clock_now):
            now = stored.corrected(clock_now)
            if expected is None or abs(now - expected) <= MAX_BELIEVED_STEP_MS:
                step = stored.renewed(clock_now) if now - stored.renewed_at >= RENEW_EVERY_MS else stored
                return ResolvedTime(StoreTime(now), None if step is stored else step), step
        if expected is not None:
            if abs(expected - clock_now) <= MAX_BELIEVED_STEP_MS:
                return ResolvedTime(StoreTime(clock_now), clear=True), None
            step = ClockStep(correction_ms=expected - clock_now, suspected_at=expected, renewed_at=expected)
            return ResolvedTime(StoreTime(expected), step), _unconfirmed(step)
        if own is not None and self._is_fresh(answered_ms) and own.is_current(clock_now):
            # The transaction that wrote it has failed, or another process saw the clock set twice since. That
            # process has replaced the record, or removed it because the clock showed the old time meanwhile.
            step = own.renewed(clock_now)
            is_removed = stored is None and self._may_record
            if is_removed or (
                stored is not None and own.suspected_at < stored.suspected_at <= step.renewed_at
            ):
                step = replace(step, suspected_at=step.renewed_at)
            return ResolvedTime(StoreTime(step.corrected(clock_now)), step), _unconfirmed(step)
        if stored is not None and stored.is_settling(clock_now):
            return ResolvedTime(StoreTime(clock_now, settling=True)), stored
        return ResolvedTime(StoreTime(clock_now)), None

    def _is_unrecorded(self, stored: ClockStep | None, clock_now: int, answered_ms: int) -> bool:
        """Returns True if the stored record is older than a step that this process should have recorded.

        The transaction that wrote the step has failed, and the record of an earlier step is still there.
        """
        own = self._step
        if own is None or stored is None or own.suspected_at <= stored.suspected_at or not self._may_record:
            return False
        return self._is_fresh(answered_ms) and own.is_current(clock_now)

    def _agrees(self, clock_now: int, asked_ms: int, answered_ms: int) -> bool:
        """Returns True if the clock shows what is expected and no step is known.

        Hot path: nearly every transaction ends here. It avoids objects for the measurement.
        """
        bounds = self._bounds
        if self._step is not None or bounds is None or self._is_new(answered_ms):
            return False
        low, high = clock_now - answered_ms, clock_now - asked_ms
        agrees = low <= bounds.high and bounds.low <= high and high - low >= bounds.high - bounds.low
        if not agrees or not self._is_fresh(answered_ms) or answered_ms - bounds.measured_ms > VOID_AFTER_MS:
            return False
        self._checked_ms = answered_ms
        return True

    def _expect(self, measured: OffsetBounds, answered_ms: int) -> int | None:
        """Returns the time that this process has expected, or None if the clock has not stepped for it."""
        bounds, own = self._bounds, self._step
        if bounds is None or not self._is_fresh(answered_ms) or not self._has_stepped(measured):
            return None
        expected = bounds.low + answered_ms
        return own.corrected(expected) if own is not None and own.is_pending(expected) else expected

    def _is_fresh(self, answered_ms: int) -> bool:
        return answered_ms - self._checked_ms <= _EXPECTATION_MS

    def _is_new(self, answered_ms: int) -> bool:
        """Returns True for a minute after this process has started, or was idle for so long that it may have.

        It may have started just after a step, before another process recorded it.
        """
        return self._first_ms is not None and answered_ms - self._first_ms <= VOID_AFTER_MS

    def _has_stepped(self, measured: OffsetBounds) -> bool:
        bounds = self._bounds
        return bounds is not None and bounds.distance_ms(measured) > MAX_BELIEVED_STEP_MS

    def _note(self, measured: OffsetBounds, answered_ms: int) -> None:
        bounds = self._bounds
        self._bounds = measured if bounds is None else bounds.narrowed(measured)
        self._checked_ms = answered_ms

    def _log_change(self, step: ClockStep | None, clock_now: int) -> None:
        """Logs a step that this process has not known of."""
        suspected = step if step is not None and step.is_current(clock_now) else None
        known = self._step
        if suspected is not None and (known is None or known.suspected_at != suspected.suspected_at):
            log.warning("%s; Homing goes on by the old time for now", describe_step(suspected))


def reclaim_bounds(now: int, settling: bool) -> tuple[int, int, int]:
    """Returns which leases a reclaim takes over: those that ended by the first of the three times.

    It also takes those that end after the second time, if their row was changed after the third time, which
    is in the future: the clock was set back since. While a step settles, it takes over none.
    """
    if settling:
        return -1, MAX_INTEGER, MAX_INTEGER
    return now, now + VOID_AFTER_MS, now + MAX_BELIEVED_STEP_MS


def _unconfirmed(step: ClockStep) -> ClockStep:
    """Returns the record so that the next transaction reads it again: the write may not be committed."""
    return replace(step, renewed_at=step.renewed_at - RENEW_EVERY_MS)
