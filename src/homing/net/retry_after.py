"""Reads the header `Retry-After`."""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"[0-9]{1,10}")


def parse_retry_after_ms(value: str | None, now_ms: int) -> int | None:
    """Returns how many milliseconds a Retry-After header asks to wait, or None if it is missing or unusable.

    With None, the policy's own backoff applies. A time in the past means no wait.
    """
    text = (value or "").strip(" \t")
    if _SECONDS.fullmatch(text):
        return int(text) * 1000
    if not text:
        return None
    try:
        at = parsedate_to_datetime(text)
        at_ms = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return max(0, at_ms - now_ms)
