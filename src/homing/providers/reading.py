"""Reads untrusted responses and callbacks of providers. Nothing here raises, whatever the bytes are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from homing.core.redact import redact

_MAX_ERROR_CHARS = 300
_FIRST_MILLISECONDS_VALUE = 100_000_000_000
"""Numbers from here on are milliseconds: as seconds they would be after the year 5138."""
_EARLIEST_MS = 946_684_800_000
"""The year 2000. Earlier dates are treated as missing."""


def json_of(body: bytes | str) -> Any:
    """Returns the decoded JSON value, or None if the body is not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def json_object(body: bytes | str) -> dict[str, Any]:
    """Returns the decoded JSON object, or an empty one if the body is not a JSON object."""
    return as_object(json_of(body))


def as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def text_of(value: Any, longest: int = 255) -> str | None:
    """Returns the value if it is a non-empty text of at most `longest` characters, otherwise None."""
    return value if isinstance(value, str) and 0 < len(value) <= longest else None


def error_text(value: Any) -> str | None:
    """Returns the provider's error text, shortened and without addresses of recipients."""
    return redact(value[:_MAX_ERROR_CHARS]) if isinstance(value, str) and value else None


def moment_ms(value: Any, now_ms: int) -> int:
    """Returns when something happened, in epoch milliseconds.

    The value may be an ISO 8601 text (UTC unless it has an offset), epoch seconds or epoch milliseconds.
    Returns `now_ms` if the value is anything else, or lies in the future.
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
