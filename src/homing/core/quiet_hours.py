"""Quiet hours: when the recipient's clock shows a time at which nobody is to be disturbed.

Told by the wall clock alone: a moment is quiet if the clock *shows* a time in the window. So an hour that
daylight saving skips is never waited for, and one that exists twice is quiet both times.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from msgspec import Struct

from homing.core.model import Claim, Mode, Priority

_DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)


class Window(Struct, frozen=True):
    """From `start` to before `end`, in milliseconds of the day; over midnight if `end` is the earlier one.

    The same time twice is no window at all.
    """

    start_ms: int
    end_ms: int

    def shows(self, wall_ms: int) -> bool:
        """Whether a clock that shows this time of day is in the window."""
        length = (self.end_ms - self.start_ms) % _DAY_MS
        return (wall_ms - self.start_ms) % _DAY_MS < length


class QuietHours(Struct, frozen=True, kw_only=True):
    """The window that holds where the recipient has none of their own, and what goes out all the same."""

    window: Window = Window(0, 0)
    exempt_priorities: frozenset[Priority] = frozenset({Priority.CRITICAL})
    exempt_categories: frozenset[str] = frozenset()
    exempt_types: frozenset[str] = frozenset()

    def spares(self, claim: Claim) -> bool:
        """Whether this one goes out at any hour. A synchronous one does: it is sent now or not at all."""
        return (
            claim.mode is Mode.SYNCHRONOUS
            or claim.priority in self.exempt_priorities
            or claim.category in self.exempt_categories
            or claim.type in self.exempt_types
        )


def time_of_day_ms(text: str) -> int | None:
    """Of `22:30`; None: it is no time of day."""
    found = _TIME.fullmatch(text)
    return None if found is None else (int(found[1]) * 60 + int(found[2])) * 60_000


def quiet_ms(window: Window, zone: tzinfo, at: int) -> int:
    """How long from the moment `at` until the clock of that zone shows a time outside; 0: it does now."""
    now = at
    while window.shows((now + _offset_ms(zone, now)) % _DAY_MS):
        end = now + (window.end_ms - now - _offset_ms(zone, now)) % _DAY_MS
        now = _first_change(zone, now, end) if _offset_ms(zone, now) != _offset_ms(zone, end) else end
    return now - at


def _first_change(zone: tzinfo, before: int, after: int) -> int:
    """The moment between the two at which the zone leaves the offset that it has `before`."""
    offset = _offset_ms(zone, before)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset_ms(zone, middle) == offset:
            before = middle
        else:
            after = middle
    return after


def _offset_ms(zone: tzinfo, at: int) -> int:
    offset = (_EPOCH + timedelta(milliseconds=at)).astimezone(zone).utcoffset()
    return 0 if offset is None else offset // timedelta(milliseconds=1)
