"""Reads what providers say: any bytes at all, and nothing here raises."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from homing.core.redact import redact

_LONGEST_ERROR = 300
_IN_MILLISECONDS = 100_000_000_000
"""Numbers from here on are no seconds: they would be in the year 5138."""
_EARLIEST_MS = 946_684_800_000
"""The year 2000. What is dated earlier has no date."""


def json_of(body: bytes | str) -> Any:
    """The JSON value; None where it is none."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def json_object(body: bytes | str) -> dict[str, Any]:
    """The JSON object; empty where it is none."""
    return as_object(json_of(body))


def as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def text_of(value: Any, longest: int = 255) -> str | None:
    """A text that is not empty and not longer than any id or code is."""
    return value if isinstance(value, str) and 0 < len(value) <= longest else None


def error_text(value: Any) -> str | None:
    """The provider's words, short and without recipients."""
    return redact(value[:_LONGEST_ERROR]) if isinstance(value, str) and value else None


def moment_ms(value: Any, now_ms: int) -> int:
    """When something happened: ISO 8601 (UTC where it does not say), epoch seconds or milliseconds.

    Never later than now; and now, where it is none of them.
    """
    try:
        if isinstance(value, str):
            found = datetime.fromisoformat(value)
            at = int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
        else:
            at = int(value if value >= _IN_MILLISECONDS else value * 1000)
    except (TypeError, ValueError, OverflowError):
        return now_ms
    return at if _EARLIEST_MS <= at <= now_ms else now_ms
