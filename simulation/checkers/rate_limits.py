"""Checks rate limits per recipient and tenant (invariant 13), and quiet hours (invariant 8)."""

from __future__ import annotations

from datetime import UTC, datetime

from homing.core.notifications import Mode
from homing.core.routing.rate_limits import RateLimit, RateLimitRule
from simulation.plan import LONGEST_LOSS_MS
from simulation.shadow_state import ShadowState, SimulationState

_DAY_MS = 86_400_000


class RateLimitChecker:
    """Records the times at which sends were claimed, and checks rate limits and quiet hours."""

    def __init__(self, state: SimulationState) -> None:
        self._state = state
        self._starts: dict[tuple[str, ...], tuple[RateLimit, list[int]]] = {}

    def sent(self, shadow: ShadowState) -> None:
        """Records a send for the rate limits, and checks that it is not in quiet hours."""
        if shadow.mode is Mode.SYNCHRONOUS:
            return
        self._check_hours(shadow)
        who = shadow.recipient_id or f"{shadow.channel} {shadow.address}"
        self._note(shadow, self._state.plan.paces.recipient, ("recipient", shadow.tenant, who))
        self._note(shadow, self._state.plan.paces.tenant, ("tenant", shadow.tenant))

    def finish(self) -> None:
        """Checks the rate limits over the whole run.

        Each jump of the clock may fill every bucket, and so may each loss of commits.
        """
        for (kind, *_), (limit, starts) in self._starts.items():
            state = self._state
            repeated_ms = state.rollbacks * LONGEST_LOSS_MS  # tokens that were taken then are there again
            spare: float = limit.burst * (1 + state.jumps + state.rollbacks)
            spare += limit.per_second * (self._slack_ms() + repeated_ms) / 1000
            level, last = 0.0, 0
            for at in sorted(starts):
                level = max(0.0, level - limit.per_second * (at - last) / 1000) + 1
                last = at
                if level > spare + 1e-6:
                    text = f"a {kind} had {level:.1f} sends more than {limit.per_second}/s allows by {at} ms"
                    self._state.violate("13", text)

    def _note(self, shadow: ShadowState, pace: RateLimitRule, key: tuple[str, ...]) -> None:
        limit = pace.tenants.get(shadow.tenant, pace.limit)
        if limit is not None and shadow.priority not in pace.exempt_priorities:
            self._starts.setdefault(key, (limit, []))[1].append(shadow.leased_ms)

    def _check_hours(self, shadow: ShadowState) -> None:
        """Checks that quiet hours did not cover the whole time from well before the claim until now."""
        state, hours = self._state, self._state.plan.quiet_hours
        if shadow.priority in hours.exempt_priorities or state.jumped_since(shadow.jumps_at_lease):
            return
        length = (hours.window.end_ms - hours.window.start_ms) % _DAY_MS
        into = (_wall_ms(shadow.leased_at - self._slack_ms()) - hours.window.start_ms) % _DAY_MS
        until = into + self._slack_ms() + state.now - shadow.leased_at
        if until < length:
            state.violate("8", "sent in its recipient's quiet hours", shadow.id)

    def _slack_ms(self) -> int:
        """Returns the tolerance in milliseconds.

        It covers the error of a process's clock, and the time between taking a token and the claim.
        """
        fault_plan = self._state.plan.fault_plan
        slow = 4 * fault_plan.longest_slow_ms if fault_plan.slow_per_call else 0
        return 1_300 + slow + (fault_plan.longest_pause_ms if fault_plan.pause_every_ms else 0)


def _wall_ms(at: int) -> int:
    day = datetime.fromtimestamp(at / 1000, UTC)
    return ((day.hour * 60 + day.minute) * 60 + day.second) * 1000 + at % 1000
