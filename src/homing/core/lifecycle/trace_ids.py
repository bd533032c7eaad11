"""The trace of a notification, which its id determines.

The 128 bits of the UUID are the trace id, and its last 64 bits are the id of the first span. So every process
adds to the same trace, without storing or passing on anything.
"""

from __future__ import annotations

import re

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def trace_id(id: str) -> int:
    """Returns the trace id of a notification."""
    return int(id.replace("-", ""), 16)


def first_span_id(id: str) -> int:
    """Returns the id of the first span of a notification, below which all other spans are."""
    return trace_id(id) & (2**64 - 1)


def is_traced(id: str, share: float) -> bool:
    """Returns True if this notification is among the `share` of notifications that are traced.

    Ids that are not UUIDs, which can come from callbacks, are not traced.
    """
    return _UUID.fullmatch(id) is not None and int(id[28:], 16) < int(share * 2**32)


def traceparent_of(id: str | None, share: float) -> str | None:
    """Returns the W3C trace context of a notification, for programs that continue its trace.

    Returns None if nothing is traced, or if the id is not that of a notification.
    """
    if id is None or share <= 0 or not _UUID.fullmatch(id):
        return None
    return f"00-{trace_id(id):032x}-{first_span_id(id):016x}-{is_traced(id, share):02x}"
