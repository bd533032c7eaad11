"""Limits the size of a page, so that messages with attachments do not fill the reader's memory."""

from __future__ import annotations

from collections.abc import Iterable

PAGE_BYTES = 8 * 1024 * 1024
"""Limit of the messages' total size in one page.

The page's cursor leads to the rest. A page holds at least one message, however large.
"""


def that_fit(sizes: Iterable[int]) -> int:
    """Returns how many messages of these sizes, in bytes, fit into one page."""
    number = total = 0
    for size in sizes:
        if number and total + size > PAGE_BYTES:
            break
        number += 1
        total += size
    return number
