"""The token bucket, as pure functions."""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from homing.core.errors import ConfigError

_EPSILON = 1e-9
"""Rounding tolerance: a token counts as whole if at most this much is missing."""


class RateLimit(Struct, frozen=True):
    """A rate limit: on average at most `per_second`, and at most `burst` at once."""

    per_second: float
    burst: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.per_second < float("inf"):
            raise ConfigError("per_second", f"is {self.per_second}; it must be above 0")
        if self.burst < 1:
            raise ConfigError("burst", f"is {self.burst}; it must be at least 1")


class Bucket(Struct, frozen=True):
    """Number of tokens at a point in time."""

    tokens: float
    at: int


def full(limit: RateLimit, now: int) -> Bucket:
    """Returns a full bucket."""
    return Bucket(float(limit.burst), now)


def refill(bucket: Bucket, limit: RateLimit, now: int) -> Bucket:
    """Returns the bucket as of `now`. A clock that jumped back removes no tokens."""
    passed_ms = max(0, now - bucket.at)
    return Bucket(
        min(float(limit.burst), bucket.tokens + passed_ms * limit.per_second / 1000), max(now, bucket.at)
    )


def take(bucket: Bucket, limit: RateLimit, now: int, want: int) -> tuple[Bucket, int, int]:
    """Returns the bucket afterwards, the number of tokens granted, and the milliseconds until one more is
    available.

    A negative `want` returns unused tokens to the bucket.
    """
    filled = refill(bucket, limit, now)
    granted = max(0, min(want, int(filled.tokens + 2 * _EPSILON)))
    left = Bucket(min(float(limit.burst), filled.tokens - min(granted, want)), filled.at)
    missing = 1 - left.tokens - _EPSILON
    if missing <= 0:
        return left, granted, 0
    # If the clock went back, it first has to reach the bucket's time again.
    return left, granted, filled.at - now + max(1, ceil(missing * 1000 / limit.per_second))
