"""Reads untrusted responses and callbacks of providers. No function here raises, whatever the bytes are."""

from __future__ import annotations

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
