"""Reads what providers say: any bytes at all, and nothing here raises."""

from __future__ import annotations

from typing import Any

import msgspec

from homing.core.redact import redact

_LONGEST_ERROR = 300


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
