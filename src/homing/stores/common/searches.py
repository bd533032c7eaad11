"""What the searches of both stores share: the recipient's id within the message, ranges of ids, and scans.

The recipient's id has no column. It is the first text in the message, because `Message` and `Recipient` are
encoded in the order of their fields, so an index on an expression finds it without decoding JSON.
"""

from __future__ import annotations

from homing.core.notifications import Page
from homing.stores.common.codec import encode

_START = '{"recipient":{"id":"'

_KEY_LENGTH = 300

HAS_RECIPIENT_ID = f"substr(m.message, 1, {len(_START)}) = '{_START}'"
"""Condition of the index of messages by the recipient's id. Queries repeat it literally."""

_FIRST_CHARACTERS = f"substr(m.message, {len(_START) + 1}, {_KEY_LENGTH})"

SQLITE_RECIPIENT_KEY = f"""substr({_FIRST_CHARACTERS}, 1, instr({_FIRST_CHARACTERS} || '"', '"') - 1)"""
"""The indexed expression in SQLite: the recipient's id as it is encoded, up to the first quote."""

POSTGRES_RECIPIENT_KEY = f"""split_part({_FIRST_CHARACTERS}, '"', 1)"""
"""The indexed expression in PostgreSQL."""


def recipient_parts(recipient_id: str) -> tuple[str, str]:
    """Returns the beginning of the messages of a recipient, and the indexed part of it."""
    encoded = encode(recipient_id)[1:]  # with the quote at the end
    return _START + encoded, encoded[:_KEY_LENGTH].partition('"')[0]


def id_range(prefix: str) -> tuple[str, str]:
    """Returns the first and the last UUID that begins so. A prefix that no UUID has gets an empty range."""
    digits = prefix.replace("-", "").lower()
    if len(digits) > 32 or not set(digits) <= set("0123456789abcdef"):
        return _uuid("f" * 32), _uuid("0" * 32)
    return _uuid(digits.ljust(32, "0")), _uuid(digits.ljust(32, "f"))


def end_scan(page: Page, last: str | None) -> Page:
    """Marks a page as not complete if it ends where a scan had to stop. `last` is where; None if nowhere."""
    if last is None or page.cursor is not None:
        return page
    return Page(items=page.items, cursor=last, complete=False)


def _uuid(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
