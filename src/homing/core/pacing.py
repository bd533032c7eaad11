"""How fast a tenant may send, and how often a recipient may be told something. Delayed, never dropped."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from homing.core.effects import key_part
from homing.core.limits import RateLimit
from homing.core.model import Claim, Mode, Priority

LONGEST_REFILL_MS = 7 * 86_400_000
"""A bucket that nobody has touched for so long is full: it says nothing, and stores remove it."""
RECIPIENT_BUCKETS = ("recipient:", "recipient;")
"""Their keys are from the first to before the second; there may be as many as there are recipients."""


class Pace(Struct, frozen=True, kw_only=True):
    """A rate limit with its exceptions."""

    limit: RateLimit | None = None
    tenants: Mapping[str, RateLimit | None] = field(default_factory=dict)
    """Tenants with another limit, or (None) without one."""
    exempt_priorities: frozenset[Priority] = frozenset()

    @property
    def limits(self) -> bool:
        """Whether it limits anybody."""
        return self.limit is not None or any(limit is not None for limit in self.tenants.values())

    def of(self, claim: Claim) -> RateLimit | None:
        """What holds for this one. A synchronous one cannot wait, so it is not counted either."""
        if claim.mode is Mode.SYNCHRONOUS or claim.priority in self.exempt_priorities:
            return None
        return self.tenants.get(claim.tenant, self.limit)


class Paces(Struct, frozen=True, kw_only=True):
    """The limits that the settings name."""

    recipient: Pace = Pace()
    tenant: Pace = Pace()


def recipient_bucket(claim: Claim) -> str:
    """One for each person where they have an id, whatever the channel; else one for each address."""
    id = claim.message.recipient.id
    who = f"id:{id}" if id else f"{claim.channel.value}:{claim.address}"
    return f"recipient:{key_part(claim.tenant)}:{who}"


def tenant_bucket(claim: Claim) -> str:
    return f"tenant:{claim.tenant}"
