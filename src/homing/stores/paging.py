"""How much one page may hold: one of messages with attachments must not fill its reader's memory."""

from __future__ import annotations

from collections.abc import Iterable

PAGE_BYTES = 8 * 1024 * 1024
"""Of messages. A page ends where it has as much, and its cursor asks for the rest; one always fits."""


def that_fit(sizes: Iterable[int]) -> int:
    """How many messages of these sizes a page holds."""
    number = total = 0
    for size in sizes:
        if number and total + size > PAGE_BYTES:
            break
        number += 1
        total += size
    return number
