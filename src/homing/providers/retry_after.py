"""Parses the header `Retry-After` in both of its forms (RFC 9110, 10.2.3). Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_SECONDS = re.compile(r"[0-9]{1,10}")
_DAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)})"
_DATES = tuple(
    re.compile(form, re.ASCII)
    for form in (
        rf"{_DAY}, (?P<day>\d\d) {_MONTH} (?P<year>\d{{4}}) {_TIME} GMT",
        rf"{_DAY}, (?P<day>\d\d)-{_MONTH}-(?P<year>\d\d) {_TIME} GMT",
        rf"{_DAY} {_MONTH} (?P<day>[ \d]\d) {_TIME} (?P<year>\d{{4}})",
    )
)


def retry_after_ms(value: str | None, now_ms: int) -> int | None:
    """Returns how many milliseconds to wait from now, or None if the header is missing or unusable.

    With None, the policy's own backoff applies. A time in the past means no wait.
    """
    text = (value or "").strip(" \t")
    if _SECONDS.fullmatch(text):
        return int(text) * 1000
    if not text:
        return None
    found = next((match for date in _DATES if (match := date.fullmatch(text))), None)
    at_ms = _epoch_ms(found, now_ms) if found else None
    return None if at_ms is None else max(0, at_ms - now_ms)


def _epoch_ms(found: re.Match[str], now_ms: int) -> int | None:
    year = int(found["year"])
    if len(found["year"]) == 2:  # RFC 9110: a two-digit year is at most 50 years ahead
        this = datetime.fromtimestamp(now_ms / 1000, UTC).year
        year += this // 100 * 100
        year -= 100 if year > this + 50 else 0
    try:
        return int(
            datetime(
                year,
                _MONTHS.index(found["month"]) + 1,
                int(found["day"]),
                int(found["hour"]),
                int(found["minute"]),
                min(int(found["second"]), 59),  # a leap second
                tzinfo=UTC,
            ).timestamp()
            * 1000
        )
    except (ValueError, OverflowError):  # a date that does not exist, such as February 31
        return None
