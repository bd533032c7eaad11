"""Steps of the store's clock: how large a step is believed at once, and what is recorded about a larger one.

The time of the store decides what is due, expired or lost. If its clock is set forward by a day, everything
that waits would expire or be sent early. So a step is only suspected at first: all processes go on by the old
time, which their monotonic clocks continue. They believe the new time after ten steady minutes.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from homing.core.durations import format_duration

MAX_BELIEVED_STEP_MS = 5_000
"""A step up to this is believed at once. It is half the margin of a lease, which absorbs it."""

ACCEPTED_AFTER_MS = 10 * 60_000
"""A suspected step is accepted after this time without another step."""

RENEW_EVERY_MS = 10_000
"""Interval at which processes that know of a suspected step renew its record."""

VOID_AFTER_MS = 60_000
"""A record that was not renewed for this long is void: all processes that knew of the step have ended."""

SET_BACK_MS = 60_000
"""A time that was written earlier and lies further ahead than this shows that the clock was set back."""

SETTLING_MS = 60_000
"""After a step was accepted, no lease and no leadership is taken over for this long.

Leases and terms that were taken by the old time are renewed by their holders meanwhile.
"""


class ClockStep(Struct, frozen=True, kw_only=True):
    """A suspected step of the store's clock, as recorded in the store. Its times are corrected times."""

    correction_ms: int
    """Duration to be added to the time of the clock, to get the time from before the step."""
    suspected_at: int
    """Time of the step. After another step, the ten minutes begin again."""
    renewed_at: int
    """Time at which a live process last renewed the record."""

    def corrected(self, clock_now: int) -> int:
        """Returns the time that would be without the step, for a time of the store's clock."""
        return clock_now + self.correction_ms

    def is_current(self, clock_now: int) -> bool:
        """Returns True if the step is still suspected.

        It is no longer if it was accepted, if the clock was set again, or if no process renewed the record.
        """
        age_ms = self.corrected(clock_now) - self.renewed_at
        return -MAX_BELIEVED_STEP_MS <= age_ms <= VOID_AFTER_MS and self.is_pending(clock_now)

    def is_pending(self, clock_now: int) -> bool:
        """Returns True before the time at which the step is accepted."""
        return self.corrected(clock_now) - self.suspected_at < ACCEPTED_AFTER_MS

    def is_settling(self, clock_now: int) -> bool:
        """Returns True for a minute after the step was accepted."""
        accepted_at = self.suspected_at + ACCEPTED_AFTER_MS
        was_accepted = accepted_at - self.renewed_at <= VOID_AFTER_MS
        return was_accepted and 0 <= self.corrected(clock_now) - accepted_at < SETTLING_MS

    def renewed(self, clock_now: int) -> ClockStep:
        """Returns the record as a live process renews it now."""
        return replace(self, renewed_at=max(self.renewed_at, self.corrected(clock_now)))


def was_set_back(written_at: int, now: int) -> bool:
    """Returns True if a time that was written earlier lies so far ahead that the clock was set back."""
    return written_at > now + SET_BACK_MS


def describe_step(step: ClockStep) -> str:
    """Returns a sentence about a suspected step, without a full stop."""
    direction = "back" if step.correction_ms > 0 else "forward"
    return f"the store's clock was set {direction} by {format_duration(abs(step.correction_ms))}"
