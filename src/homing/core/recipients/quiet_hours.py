"""Quiet hours: times of day at which recipients are not disturbed.

A moment is quiet if the recipient's wall clock shows a time in the window. So an hour that daylight saving
skips is never waited for, and an hour that occurs twice is quiet both times.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from msgspec import Struct

from homing.core.lifecycle.claims import Claim
from homing.core.notifications import Mode, Priority

DEFAULT_TIME_ZONE = "UTC"
"""Time zone of recipients whose own is not known, unless the settings name another one."""

_DAY_MS = 86_400_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)", re.ASCII)


class Window(Struct, frozen=True):
    """A daily window in milliseconds of the day, from `start_ms` inclusive to `end_ms` exclusive.

    It spans midnight if the end is before the start. If both are equal, the window is empty.
    """

    start_ms: int
    end_ms: int

    def shows(self, wall_ms: int) -> bool:
        """Returns True if this time of day is in the window."""
        length = (self.end_ms - self.start_ms) % _DAY_MS
        return (wall_ms - self.start_ms) % _DAY_MS < length


class QuietHours(Struct, frozen=True, kw_only=True):
    """The quiet hours of recipients without their own, and the notifications exempt from any quiet hours."""

    window: Window = Window(0, 0)
    exempt_priorities: frozenset[Priority] = frozenset({Priority.CRITICAL})
    exempt_categories: frozenset[str] = frozenset()
    exempt_types: frozenset[str] = frozenset()

    def exempts(self, claim: Claim) -> bool:
        """Returns True if the notification may be sent at any hour.

        This includes every synchronous notification, because it cannot wait.
        """
        return (
            claim.mode is Mode.SYNCHRONOUS
            or claim.priority in self.exempt_priorities
            or claim.category in self.exempt_categories
            or claim.type in self.exempt_types
        )


def time_of_day_ms(text: str) -> int | None:
    """Returns a time of day such as `22:30` in milliseconds, or None if the text is not a time of day."""
    found = _TIME.fullmatch(text)
    return None if found is None else (int(found[1]) * 60 + int(found[2])) * 60_000


def format_time_of_day(ms: int) -> str:
    """Returns milliseconds of the day as a time of day such as `22:30`."""
    hours, minutes = divmod(ms // 60_000, 60)
    return f"{hours:02d}:{minutes:02d}"


def quiet_ms(window: Window, zone: tzinfo, at: int) -> int:
    """Returns the milliseconds from `at` until the wall clock of the zone is outside the window."""
    now = at
    while window.shows((now + _offset_ms(zone, now)) % _DAY_MS):
        end = now + (window.end_ms - now - _offset_ms(zone, now)) % _DAY_MS
        now = _first_change(zone, now, end) if _offset_ms(zone, now) != _offset_ms(zone, end) else end
    return now - at


def _first_change(zone: tzinfo, before: int, after: int) -> int:
    """Returns the time between `before` and `after` at which the zone's offset changes for the first time."""
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
