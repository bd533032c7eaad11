"""Reads untrusted responses and callbacks of providers. No function here raises, whatever the bytes are."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from homing.core.redaction import redact

_MAX_ERROR_CHARS = 300

_FIRST_MILLISECONDS_VALUE = 100_000_000_000
"""Smallest number that is read as milliseconds. As seconds, it would be in the year 5138."""

_EARLIEST_MS = 946_684_800_000
"""The start of the year 2000, in epoch milliseconds. Earlier dates are treated as missing."""


def decode_json(body: bytes | str) -> Any:
    """Returns the decoded JSON value, or None if the body is not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def decode_json_object(body: bytes | str) -> dict[str, Any]:
    """Returns the decoded JSON object, or an empty one if the body is not a JSON object."""
    return as_object(decode_json(body))


def as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def short_text_or_none(value: Any, longest: int = 255) -> str | None:
    """Returns the value if it is a non-empty text of at most `longest` characters, otherwise None."""
    return value if isinstance(value, str) and 0 < len(value) <= longest else None


def redacted_error_text(value: Any) -> str | None:
    """Returns the provider's error text, shortened and redacted, or None if the value is not a text."""
    return redact(value[:_MAX_ERROR_CHARS]) if isinstance(value, str) and value else None


def parse_past_time_ms(value: Any, now_ms: int) -> int:
    """Returns when something happened, in epoch milliseconds.

    The value may be an ISO 8601 text (UTC unless it has an offset), epoch seconds or epoch milliseconds.
    Returns `now_ms` if the value is anything else, is in the future, or is before the year 2000.
    """
    try:
        if isinstance(value, str):
            found = datetime.fromisoformat(value)
            at = int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
        else:
            at = int(value if value >= _FIRST_MILLISECONDS_VALUE else value * 1000)
    except (TypeError, ValueError, OverflowError):
        return now_ms
    return at if _EARLIEST_MS <= at <= now_ms else now_ms


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


def parse_retry_after_ms(value: str | None, now_ms: int) -> int | None:
    """Returns how many milliseconds a Retry-After header asks to wait, or None if it is missing or unusable.

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
