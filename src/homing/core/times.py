"""Bounds for times and durations, and the conversions that enforce them.

Stores keep times as milliseconds since 1970 in 64-bit integers, and other code adds delays, leases and
maximum ages to them. So every time and duration from outside is checked by one of these functions before it
is stored. In the other direction, `moment` accepts any number, because a row written by an older release or
by hand must not break the page that shows it.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from homing.core.errors import ConfigError, InvalidRequest

DAY_MS = 86_400_000

LONGEST_MS = 100 * 365 * DAY_MS
"""Maximum of any duration, and of how far ahead a time may be: about 100 years."""

LONGEST_TIMEOUT_MS = DAY_MS
"""Maximum timeout of one attempt: one day. The lease is longer still, and blocks the notification."""


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_MS = timedelta(milliseconds=1)

_NEVER_EARLIER = datetime(2, 1, 1, tzinfo=UTC)

_NEVER_LATER = datetime(9999, 1, 1, tzinfo=UTC)

_FIRST_MS = (_NEVER_EARLIER - EPOCH) // _MS

_LAST_MS = (_NEVER_LATER - EPOCH) // _MS


def moment(at: int) -> datetime:
    """Returns an epoch-millisecond time as an exact datetime; a float of seconds would round.

    A time outside the years 2 to 9998 becomes the nearest one inside, so that it can be shown in any time
    zone and a delay can be added.
    """
    if _FIRST_MS <= at <= _LAST_MS:
        return EPOCH + timedelta(milliseconds=at)
    return _NEVER_EARLIER if at < _FIRST_MS else _NEVER_LATER


def epoch_ms(at: datetime, where: str, now: int) -> int:
    """Returns a time as epoch milliseconds.

    Raises `InvalidRequest` for the field `where` if the time has no zone, or if it is before 1970 or more
    than 100 years after `now`.
    """
    check_zone(at, where)
    try:
        found = (at - EPOCH) // _MS
    except OverflowError:  # a time zone that cannot compute its offset at the end of the calendar
        found = -1
    if found < 0 or found > now + LONGEST_MS:
        last = moment(now + LONGEST_MS).date().isoformat()
        raise InvalidRequest(where, f"is {_shown(at)}; it must lie between 1970-01-01 and {last}")
    return found


def check_zone(at: date, where: str) -> None:
    """Raises `InvalidRequest` if the time is not a datetime or has no time zone."""
    if not isinstance(at, datetime):
        raise InvalidRequest(where, f"is {type(at).__name__}; give a time, e.g. 2026-01-31T09:00:00Z")
    try:
        offset = at.utcoffset()
    except OverflowError:
        offset = timedelta(0)
    if offset is None:
        raise InvalidRequest(where, "has no time zone; give one, e.g. 2026-01-31T09:00:00Z")


def span_ms(delay: timedelta, where: str) -> int:
    """Returns a duration in milliseconds.

    Raises `InvalidRequest` for the field `where` if the duration is negative or longer than 100 years.
    """
    if not isinstance(delay, timedelta):
        raise InvalidRequest(where, f"is {type(delay).__name__}; give a timedelta")
    found = delay // _MS
    if found < 0:
        raise InvalidRequest(where, f"is {delay}; a delay cannot be negative")
    if found > LONGEST_MS:
        raise InvalidRequest(where, f"is {delay}; at most 100 years are allowed")
    return found


def check_duration_ms(duration_ms: int, where: str, *, most_ms: int = LONGEST_MS) -> None:
    """Raises `ConfigError` for the setting `where` if the duration is negative or too long."""
    if problem := duration_problem(duration_ms, most_ms=most_ms):
        raise ConfigError(where, problem)


def duration_problem(duration_ms: int, *, least_ms: int = 0, most_ms: int = LONGEST_MS) -> str | None:
    """Returns what is wrong with a duration and what is allowed, or None if the duration is allowed."""
    if least_ms <= duration_ms <= most_ms:
        return None
    if duration_ms < 0:
        return f"is {duration_ms}; a duration cannot be negative"
    if duration_ms < least_ms:
        return f"is {duration_ms}; it must be at least {least_ms}"
    allowed = "100 years" if most_ms == LONGEST_MS else "one day" if most_ms == DAY_MS else f"{most_ms} ms"
    return f"is {duration_ms}; at most {most_ms} ({allowed}) is allowed"


def _shown(at: datetime) -> str:
    """Returns the time as text, without an offset if the time zone cannot compute it."""
    try:
        return at.isoformat()
    except OverflowError:
        return at.replace(tzinfo=None).isoformat()
