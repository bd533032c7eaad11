"""Schedule of status look-ups: when a provider is asked about a message without a receipt."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct


class LookUpPolicy(Struct, frozen=True, kw_only=True):
    """When status look-ups are made, and how many."""

    doubt_after_ms: int = 60_000
    """Wait before the first look-up of a notification in doubt. Each further wait is twice as long."""
    silent_after_ms: int = 30 * 60_000
    """Wait before the first look-up of a sent notification without a receipt. Each further wait doubles."""
    until_ms: int = 24 * 3_600_000
    """Time after which no more look-ups are made."""
    per_round: int = 50
    """Maximum number of look-ups per round, over all providers."""
    every_ms: int = 60_000
    """Time between rounds."""


def moments_ms(after_ms: int, until_ms: int) -> Iterator[int]:
    """Yields the waits after which a look-up is made, each twice as long as the one before."""
    moment = after_ms
    while 0 < moment <= until_ms:
        yield moment
        moment *= 2
