"""What the service takes and answers with: suppressions.

Written by tools/make_client.py.
"""

from __future__ import annotations

from msgspec import Struct

from homing.core.model import Channel
from homing.core.recipients import Suppression


class SuppressionQuery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All, those of a channel, or those of one address on a channel."""

    channel: Channel | None = None
    address: str | None = None
    """Needs `channel`."""
    limit: int = 50
    cursor: str | None = None


class SuppressionPage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """By channel and address; `cursor` asks for what follows, and is left out at the end."""

    items: tuple[Suppression, ...]
    cursor: str | None = None


class SuppressionWritten(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which address, and what of."""

    channel: Channel
    address: str
    category: str = "*"
    """`*`: nothing at all goes there any more."""
    why: str = ""


class SuppressionPlace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which one. One for `*` and one for a category are two."""

    channel: Channel
    address: str
    category: str = "*"
