"""Rate limits per tenant and per recipient. They delay notifications and never drop them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from homing.core.effects import key_part
from homing.core.limits import RateLimit
from homing.core.model import Claim, Mode, Priority

LONGEST_REFILL_MS = 7 * 86_400_000
"""Maximum time in which an empty bucket refills. A bucket unused for this long is full, so stores delete
it."""
RECIPIENT_BUCKETS = ("recipient:", "recipient;")
"""Key range of the recipients' buckets, end exclusive. There may be one bucket per recipient."""


class Pace(Struct, frozen=True, kw_only=True):
    """A rate limit with its exceptions."""

    limit: RateLimit | None = None
    """Default limit. None if there is none."""
    tenants: Mapping[str, RateLimit | None] = field(default_factory=dict)
    """Tenants with a different limit. None means that the tenant has no limit."""
    exempt_priorities: frozenset[Priority] = frozenset()

    @property
    def limits(self) -> bool:
        """True if there is any limit at all."""
        return self.limit is not None or any(limit is not None for limit in self.tenants.values())

    def of(self, claim: Claim) -> RateLimit | None:
        """Returns the limit that applies to this claim, or None.

        A synchronous notification cannot wait, so it is neither limited nor counted.
        """
        if claim.mode is Mode.SYNCHRONOUS or claim.priority in self.exempt_priorities:
            return None
        return self.tenants.get(claim.tenant, self.limit)


class Paces(Struct, frozen=True, kw_only=True):
    """The rate limits of the settings."""

    recipient: Pace = Pace()
    tenant: Pace = Pace()


def recipient_bucket(claim: Claim) -> str:
    """Returns the bucket key of a recipient: one per id, over all channels, or else one per address."""
    id = claim.message.recipient.id
    who = f"id:{id}" if id else f"{claim.channel.value}:{claim.address}"
    return f"recipient:{key_part(claim.tenant)}:{who}"


def tenant_bucket(claim: Claim) -> str:
    """Returns the bucket key of the claim's tenant."""
    return f"tenant:{claim.tenant}"
