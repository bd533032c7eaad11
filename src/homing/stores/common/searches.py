"""What the searches of both stores share: recipients and metadata within the message, ranges of ids, scans.

The recipient's id has no column. It is the first text in the message, because `Message` and `Recipient` are
encoded in the order of their fields, so an index on an expression finds it without decoding JSON.
"""

from __future__ import annotations

import hashlib
import re

from homing.core.notifications import Page
from homing.core.search import METADATA_KEY
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


MOST_INDEXED = 10_000
"""If more notifications than this have a value in their metadata, a search scans instead of sorting them."""

METADATA_LENGTH = 300
"""Number of characters of a value that an index of metadata contains."""


def metadata_index(key: str) -> str:
    """Returns the end of the name of the index of a metadata key. A key may be longer than a name."""
    return f"metadata_{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def may_be_indexed(key: str) -> bool:
    """Returns True if the metadata key can have an index."""
    return re.fullmatch(METADATA_KEY, key) is not None


def contained_value(value: str) -> str:
    """Returns a text that every message with this value in its metadata contains.

    It rules out most messages at once, without decoding their JSON.
    """
    return encode(value)[1:-1]


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
