"""Applies quiet hours and the rate limits of tenants and recipients before a send."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from math import ceil

from msgspec.structs import replace

from homing.core.decide import Facts
from homing.core.errors import StoreError
from homing.core.limits import RateLimit
from homing.core.model import Claim, Reason
from homing.core.pacing import Pace, Paces, recipient_bucket, tenant_bucket
from homing.core.ports import Clock, Shared, Want
from homing.core.quiet_hours import QuietHours, quiet_ms
from homing.engine.zones import zone

log = logging.getLogger("homing.pacing")

_STORE_PAUSE_MS = 1_000
_MAX_TURN_MS = 3_600_000
"""Longest wait caused by other claims of the same bucket.

Short, because the limit may be raised meanwhile.
"""
_MAX_TURNS = 100_000


class Pacing:
    """Checks claimed batches. Each batch needs one store call for all recipients and one for all tenants."""

    def __init__(
        self,
        shared: Shared,
        clock: Clock,
        *,
        quiet_hours: QuietHours,
        paces: Paces,
        time_zone: tzinfo,
    ) -> None:
        self._shared = shared
        self._clock = clock
        self._quiet_hours = quiet_hours
        self._paces = paces
        self._time_zone = time_zone
        self._has_quiet_hours = quiet_hours.window.start_ms != quiet_hours.window.end_ms
        self._has_limits = paces.recipient.limits or paces.tenant.limits
        self._turns: dict[str, int] = {}

    def quiet(self, claim: Claim, facts: Facts, now: int) -> Facts:
        """Returns the facts, postponed until the end of the recipient's quiet hours if that is later."""
        if facts.quiet_hours is None and not self._has_quiet_hours:
            return facts
        if claim.overdue or self._quiet_hours.spares(claim):
            return facts
        wait_ms = quiet_ms(facts.quiet_hours or self._quiet_hours.window, self._zone(claim, facts), now)
        if wait_ms <= facts.postpone_ms:
            return facts
        return replace(facts, postpone_ms=wait_ms, postpone_reason=Reason.QUIET_HOURS)

    async def waits(self, claims: Sequence[Claim]) -> Mapping[str, int]:
        """Takes rate limit tokens for the claims.

        Returns the wait of those that got none, by notification id. If the store is unavailable, all claims
        with a limit are postponed for a short time.
        """
        waits: dict[str, int] = {}
        if not self._has_limits:
            return waits
        try:
            taken = await self._take(claims, self._paces.recipient, recipient_bucket, waits)
            rest = [claim for claim in claims if claim.id not in waits]
            await self._take(rest, self._paces.tenant, tenant_bucket, waits)
            unused = [claim for claim in rest if claim.id in waits and claim.id in taken]
            await self._return_tokens(unused)
        except StoreError as error:
            log.warning(
                "cannot check rate limits, the store is unavailable; the notifications are postponed: %s",
                error,
            )
            limited = (c for c in claims if self._paces.recipient.of(c) or self._paces.tenant.of(c))
            return {**dict.fromkeys((claim.id for claim in limited), _STORE_PAUSE_MS), **waits}
        return waits

    async def _take(
        self, claims: Sequence[Claim], pace: Pace, bucket: Callable[[Claim], str], waits: dict[str, int]
    ) -> set[str]:
        """Takes a token per claim, and returns the ids that got one. Adds the others to `waits`."""
        asking: dict[str, list[Claim]] = defaultdict(list)
        limits: dict[str, RateLimit] = {}
        for claim in claims:
            if (limit := pace.of(claim)) is not None:
                key = bucket(claim)
                asking[key].append(claim)
                limits[key] = limit
        if not asking:
            return set()
        wants = {key: Want(limits[key], len(these)) for key, these in asking.items()}
        got: set[str] = set()
        for key, taken in (await self._shared.take_many(wants)).items():
            these = asking[key]
            got.update(claim.id for claim in these[: taken.granted])
            for claim in these[taken.granted :]:
                waits[claim.id] = self._turn_ms(key, limits[key], taken.wait_ms)
        return got

    def _turn_ms(self, key: str, limit: RateLimit, wait_ms: int) -> int:
        """Returns the wait of one claim. Claims of the same bucket get successive waits, one token apart."""
        now = self._clock.monotonic_ms()
        soonest = now + max(1, wait_ms)
        turn = soonest
        if key in self._turns:
            turn = max(soonest, self._turns[key] + ceil(1000 / limit.per_second))
            turn = min(turn, max(soonest, now + _MAX_TURN_MS))
        if len(self._turns) >= _MAX_TURNS:
            self._turns = {key: at for key, at in self._turns.items() if at > now}
        if len(self._turns) >= _MAX_TURNS:
            self._turns.clear()  # they are only an optimization
        self._turns[key] = turn
        return turn - now

    async def _return_tokens(self, unused: Sequence[Claim]) -> None:
        """Returns the recipient tokens of claims whose tenant is at its limit."""
        wants: dict[str, Want] = {}
        for claim in unused:
            limit, key = self._paces.recipient.of(claim), recipient_bucket(claim)
            if limit is not None:
                wants[key] = Want(limit, wants[key].tokens - 1 if key in wants else -1)
        if wants:
            await self._shared.take_many(wants)

    def _zone(self, claim: Claim, facts: Facts) -> tzinfo:
        name = facts.time_zone or claim.message.recipient.time_zone
        return (zone(name) if name else None) or self._time_zone
