"""Parses and formats times, durations, rates and counts for people."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from homing.cli.common.exit_codes import CliError
from homing.core.durations import TOO_LONG, format_duration, read_duration
from homing.core.times import DAY_MS, LONGEST_MS

_NUMBER = re.compile(r"\d+(\.\d+)?")

_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/(s|m|h))?")

_RATE_SECONDS = {"s": 1, "m": 60, "h": 3600, None: 1}


_DURATION_ALLOWED = "give a duration like 500ms, 30s, 5m, 1h30m, 7d (a bare number is seconds)"


def parse_duration_ms(text: str, flag: str, *, allowed: str = _DURATION_ALLOWED) -> int:
    """Parses `10m`, `1h30m`, `500ms` or a bare number of seconds. At most 100 years are allowed.

    `allowed` is what the error for any other text tells the user to give.
    """
    stripped = text.strip()
    if stripped.startswith("-"):
        raise CliError(f"{flag}: is {text}; it cannot be negative")
    found = read_duration(float(stripped) * 1000 if _NUMBER.fullmatch(stripped) else stripped)
    if found is None:
        raise CliError(f"{flag}: is {text!r}; {allowed}")
    if found > LONGEST_MS:
        raise CliError(f"{flag}: is {text}; {TOO_LONG}")
    return found


def days_to_ms(days: float, flag: str) -> int:
    """Converts a number of days, at most 100 years, to milliseconds."""
    if math.isnan(days):
        raise CliError(f"{flag}: is nan; it must be a number of days")
    if days < 0:
        raise CliError(f"{flag}: is {days:g}; it cannot be negative")
    if days * DAY_MS > LONGEST_MS:
        raise CliError(f"{flag}: is {days:g}; {TOO_LONG}")
    return int(days * DAY_MS)


def parse_delay(text: str | None, flag: str) -> timedelta | None:
    """Parses a duration as a `timedelta`. None stays None."""
    if text is None:
        return None
    return timedelta(milliseconds=parse_duration_ms(text, flag))


def parse_time(text: str, flag: str) -> datetime:
    """Parses an ISO 8601 time, which must have a time zone."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise CliError(f"{flag}: is {text!r}; give a time like 2026-01-31T09:00:00Z") from None
    if at.tzinfo is None:
        raise CliError(f"{flag}: has no time zone; give one, e.g. 2026-01-31T09:00:00Z")
    return at


def parse_rate(text: str, flag: str) -> float:
    """Parses a rate such as `20`, `20/s`, `300/m` or `1000/h` and returns it per second."""
    found = _RATE.fullmatch(text.strip().lower())
    if found is None:
        raise CliError(f"{flag}: is {text!r}; give a rate like 20/s, 300/m or 1000/h")
    rate = float(found[1]) / _RATE_SECONDS[found[2]]
    if rate <= 0:
        raise CliError(f"{flag}: is {text}; a rate must be above 0")
    return rate


def format_local_time(at: datetime | None, *, millis: bool = False) -> str:
    """Formats a time in the local time zone. None gives an empty string."""
    if at is None:
        return ""
    text = at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{at.microsecond // 1000:03d}" if millis else text


def format_relative_time(at: datetime | None, now: datetime | None = None) -> str:
    """Formats a time relative to now: `in 4m 10s`, `2h ago`. None gives an empty string."""
    if at is None:
        return ""
    ms = (at - (now or datetime.now(UTC))).total_seconds() * 1000
    if abs(ms) < 1000:
        return "now"
    whole = round(abs(ms) / 1000) * 1000
    return f"in {format_duration(whole)}" if ms > 0 else f"{format_duration(whole)} ago"


def format_count(count: int, one: str, many: str | None = None) -> str:
    """Formats a count with its noun: `1 notification`, `2 notifications`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
