"""The token bucket, as a pure transition."""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from homing.core.errors import ConfigError

_EPSILON = 1e-9
"""Tokens are sums of fractions: this much may be missing of a whole one."""


class RateLimit(Struct, frozen=True):
    """At most `per_second` on average and `burst` at once."""

    per_second: float
    burst: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.per_second < float("inf"):
            raise ConfigError("per_second", f"is {self.per_second}; a rate must be above 0")
        if self.burst < 1:
            raise ConfigError("burst", f"is {self.burst}; it must be at least 1")


class Bucket(Struct, frozen=True):
    """What is left, and when that was true."""

    tokens: float
    at: int


def full(limit: RateLimit, now: int) -> Bucket:
    return Bucket(float(limit.burst), now)


def refill(bucket: Bucket, limit: RateLimit, now: int) -> Bucket:
    """The bucket as it is now. A clock that jumped back takes nothing away."""
    passed_ms = max(0, now - bucket.at)
    return Bucket(
        min(float(limit.burst), bucket.tokens + passed_ms * limit.per_second / 1000), max(now, bucket.at)
    )


def take(bucket: Bucket, limit: RateLimit, now: int, want: int) -> tuple[Bucket, int, int]:
    """(bucket after, how many were granted, milliseconds until one more is there).

    Less than nothing gives tokens back that were not used.
    """
    filled = refill(bucket, limit, now)
    granted = max(0, min(want, int(filled.tokens + 2 * _EPSILON)))
    left = Bucket(min(float(limit.burst), filled.tokens - min(granted, want)), filled.at)
    missing = 1 - left.tokens - _EPSILON
    if missing <= 0:
        return left, granted, 0
    # A clock that went back has to come up to the bucket's time first.
    return left, granted, filled.at - now + max(1, ceil(missing * 1000 / limit.per_second))
