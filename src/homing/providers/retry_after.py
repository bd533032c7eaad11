"""`Retry-After`, in both of its forms (RFC 9110, 10.2.3). Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_SECONDS = re.compile(r"[0-9]{1,10}")
_FORMS = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")
_LONGEST = 40


def retry_after_ms(value: str | None, now_ms: int) -> int | None:
    """How long to wait from now; None where the header is missing or unusable, then our own backoff holds.

    A time that has passed means now. What is longer than any calendar is unusable.
    """
    text = (value or "").strip(" \t")
    if _SECONDS.fullmatch(text):
        return int(text) * 1000
    if len(text) > _LONGEST or not text.isascii():
        return None
    for form in _FORMS:
        try:
            at = datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
        return max(0, int(at.timestamp() * 1000) - now_ms)
    return None
