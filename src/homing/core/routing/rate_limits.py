"""Rate limits: the token bucket as pure functions, and the rules that select the limit of a claim."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from msgspec import Struct, field

from homing.core.clock_steps import was_set_back
from homing.core.errors import ConfigError
from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.effects import key_part
from homing.core.notifications import Mode, Priority

_EPSILON = 1e-9
"""Rounding tolerance: a token counts as whole if at most this much is missing."""


class RateLimit(Struct, frozen=True):
    """A rate limit: `per_second` tokens are added to a bucket that holds at most `burst` tokens."""

    per_second: float
    burst: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.per_second < float("inf"):
            raise ConfigError("per_second", f"is {self.per_second}; it must be above 0 and finite")
        if self.burst < 1:
            raise ConfigError("burst", f"is {self.burst}; it must be at least 1")


class TokenBucket(Struct, frozen=True):
    """Number of tokens in a bucket at the time `at`."""

    tokens: float
    at: int


def full_bucket(limit: RateLimit, now: int) -> TokenBucket:
    """Returns a full bucket."""
    return TokenBucket(float(limit.burst), now)


def refill(bucket: TokenBucket, limit: RateLimit, now: int) -> TokenBucket:
    """Returns the bucket as of `now`. A clock that jumped back removes no tokens.

    After a large jump, the bucket refills from `now` on. It would otherwise stay empty until the clock has
    reached its time again.
    """
    if was_set_back(bucket.at, now):
        return TokenBucket(bucket.tokens, now)
    passed_ms = max(0, now - bucket.at)
    return TokenBucket(
        min(float(limit.burst), bucket.tokens + passed_ms * limit.per_second / 1000), max(now, bucket.at)
    )


def take_from_bucket(
    bucket: TokenBucket, limit: RateLimit, now: int, want: int, reserve: int = 0
) -> tuple[TokenBucket, int, int]:
    """Takes up to `want` tokens, but leaves `reserve` of them in the bucket.

    Returns the bucket afterwards, the number of tokens taken, and the milliseconds until one more is
    available.

    A negative `want` returns unused tokens to the bucket.
    """
    filled = refill(bucket, limit, now)
    granted = max(0, min(want, int(filled.tokens - reserve + 2 * _EPSILON)))
    left = TokenBucket(min(float(limit.burst), filled.tokens - min(granted, want)), filled.at)
    missing = reserve + 1 - left.tokens - _EPSILON
    if missing <= 0:
        return left, granted, 0
    # If the clock went back, it first has to reach the bucket's time again.
    return left, granted, filled.at - now + max(1, ceil(missing * 1000 / limit.per_second))


LONGEST_REFILL_MS = 7 * 86_400_000
"""Maximum time that an empty bucket may take to refill: seven days. A bucket unused for this long is full,
so stores delete it."""

RECIPIENT_BUCKETS = ("recipient:", "recipient;")
"""Key range of the recipients' buckets, end exclusive. There may be one bucket per recipient."""


class RateLimitRule(Struct, frozen=True, kw_only=True):
    """A rate limit with its exceptions."""

    limit: RateLimit | None = None
    """Limit of tenants that are not in `tenants`. None if they have no limit."""
    tenants: Mapping[str, RateLimit | None] = field(default_factory=dict)
    """Tenant → its own limit. None means that the tenant has no limit."""
    exempt_priorities: frozenset[Priority] = frozenset()

    @property
    def limits(self) -> bool:
        """True if there is any limit at all."""
        return self.limit is not None or any(limit is not None for limit in self.tenants.values())

    def of(self, claim: Claim) -> RateLimit | None:
        """Returns the limit that applies to this claim, or None if it is not limited.

        A synchronous notification cannot wait, so it is neither limited nor counted.
        """
        if claim.mode is Mode.SYNCHRONOUS or claim.priority in self.exempt_priorities:
            return None
        return self.tenants.get(claim.tenant, self.limit)


class RateLimitRules(Struct, frozen=True, kw_only=True):
    """The rules for recipients and for tenants, as the settings define them."""

    recipient: RateLimitRule = RateLimitRule()
    tenant: RateLimitRule = RateLimitRule()


def recipient_bucket(claim: Claim) -> str:
    """Returns a recipient's bucket key. It is per id for all channels or, without an id, per address."""
    id = claim.message.recipient.id
    who = f"id:{id}" if id else f"{claim.channel.value}:{claim.address}"
    return f"recipient:{key_part(claim.tenant)}:{who}"


def provider_bucket(provider: str) -> str:
    """Returns the bucket key of a provider."""
    return f"provider:{provider}"


def tenant_bucket(claim: Claim) -> str:
    """Returns the bucket key of the claim's tenant."""
    return f"tenant:{claim.tenant}"
