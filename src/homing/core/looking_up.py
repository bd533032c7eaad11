"""When a provider is asked about a notification that nothing is heard of: ever later, then no more. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct


class LookUpPolicy(Struct, frozen=True, kw_only=True):
    """After how long a silence, how often in all, and how many at a time."""

    doubt_after_ms: int = 60_000
    """Of one in doubt. The next times follow after twice, four times, eight times … as long."""
    silent_after_ms: int = 30 * 60_000
    """The same for one that was sent and of which no receipt came."""
    until_ms: int = 24 * 3_600_000
    """Whoever was silent for longer is not asked about any more."""
    per_round: int = 50
    """Look-ups in one round at most, over all providers."""
    every_ms: int = 60_000
    """From one round to the next."""


def moments_ms(after_ms: int, until_ms: int) -> Iterator[int]:
    """The lengths of silence at which somebody is asked: each twice the one before."""
    moment = after_ms
    while 0 < moment <= until_ms:
        yield moment
        moment *= 2
