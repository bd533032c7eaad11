"""Checks that every start keeps to the shares of its provider (invariant 16), and to an outlet's breaker (9).

Only runs without faults and failover are checked, because there every claim starts at once at the provider
that it was made for.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from homing.core.lifecycle.claims import ClaimBatch
from homing.core.notifications import Mode, OutcomeKind, Status, mode_of
from simulation.checkers.claims import DueQueueLeft
from simulation.plan import SimulatedProviderPlan
from simulation.shadow_state import ProviderCall, ShadowState, SimulationState

_KNOWN_AFTER_MS = 50
"""Time after which an answer must have reached the next claim request."""

_FAILURES = (OutcomeKind.TRANSIENT, OutcomeKind.PROVIDER_FAULT, OutcomeKind.AMBIGUOUS)


class _Outlet(Struct):
    """What one process has learned about an outlet."""

    hanging_since_ms: int | None = None
    """Time of the last answer if it was a timeout, or None."""
    failures: int = 0
    opened_ms: int | None = None
    """Time of the failure that opened the breaker, or None if it is closed."""


class ShareChecker:
    """Counts the calls in flight by process, provider, mode and tenant."""

    def __init__(self, state: SimulationState) -> None:
        self._state = state
        self._plans = {provider.id: provider for provider in state.plan.providers}
        self._calls: dict[tuple[str, str], list[ProviderCall]] = {}
        """(process, provider) → calls in flight."""
        self._outlets: dict[tuple[str, str], _Outlet] = {}
        """(process, outlet) → what the process has learned about it."""

    def claimed(self, process: str, batch: ClaimBatch, left: Sequence[DueQueueLeft]) -> None:
        """Checks a claim against what the process has learned about the outlets.

        `left` has the queues that still have due rows.
        """
        if not self._state.plan.checks_shares:
            return
        self._check_new_outlets(process, left)
        hanging: dict[str, int] = {}
        for claim in batch.claims:
            plan = self._plans[claim.provider]
            if plan.host_slots is None:
                continue
            self._check_breaker(process, claim.outlet, plan)
            if self._is_hanging(process, claim.outlet):
                hanging[claim.outlet] = hanging.get(claim.outlet, 0) + 1
        for outlet, number in hanging.items():
            self._check_hanging(process, outlet, number, hanging)

    def begins(self, call: ProviderCall) -> None:
        """Checks the start of a call, and counts the call."""
        calls = self._calls.setdefault((call.process, call.provider), [])
        calls.append(call)
        if not self._state.plan.checks_shares:
            return
        shadow = self._state.shadows[call.id]
        if shadow.mode is Mode.SYNCHRONOUS:
            self._check_synchronous(call, shadow, calls)
        else:
            self._check_shares(call, shadow, calls)

    def ends(self, call: ProviderCall) -> None:
        """Records the end of a call."""
        self._calls[call.process, call.provider].remove(call)
        outlet = self._outlet(call)
        if outlet is None or call.was_cut_short:
            return
        known = self._outlets.setdefault((call.process, outlet), _Outlet())
        known.hanging_since_ms = self._state.ms if call.outcome is None else None
        breaker = self._plans[call.provider].breaker
        if known.opened_ms is not None and self._state.ms < known.opened_ms + breaker.open_ms:
            return  # the call began before the breaker opened
        if call.kind in _FAILURES:
            known.failures += 1
            if known.failures >= breaker.failures:
                known.opened_ms = self._state.ms
        elif call.kind is not OutcomeKind.THROTTLED:
            known.failures, known.opened_ms = 0, None

    def _check_shares(self, call: ProviderCall, shadow: ShadowState, calls: list[ProviderCall]) -> None:
        state, slots = self._state, self._plans[call.provider].max_in_flight
        others = [state.shadows[one.id] for one in calls if one.id in state.shadows]
        others = [one for one in others if one.mode is not Mode.SYNCHRONOUS]
        reserve = max(1, slots // 8) if slots > 1 else 0
        less_urgent = sum(one.mode is not Mode.PRIORITY for one in others)
        if shadow.mode is not Mode.PRIORITY and less_urgent > slots - reserve:
            text = f"{less_urgent} of {slots} slots of {call.provider} are taken: priority has no reserve"
            state.violate("16", text, shadow.id)
        # The rows of one claim may start in another order than they were chosen in.
        same = (shadow.tenant, shadow.mode)
        before = [
            one for one in others if one.leased_ms != shadow.leased_ms or (one.tenant, one.mode) == same
        ]
        held = sum(one.tenant == shadow.tenant for one in before)
        first = sum((one.tenant, one.mode) == (shadow.tenant, shadow.mode) for one in before) == 1
        reserved = 0 if shadow.mode is Mode.PRIORITY else reserve - self._urgent(before, reserve)
        free = slots - len(before) - reserved
        if not first and held > 7 * free:
            text = f"{shadow.tenant} holds {held} slots of {call.provider}, and {free} are free"
            state.violate("16", text, shadow.id)

    def _check_synchronous(self, call: ProviderCall, shadow: ShadowState, calls: list[ProviderCall]) -> None:
        """Checks that the synchronous sends of one tenant never hold all slots of a provider."""
        slots, shadows = self._plans[call.provider].max_in_flight, self._state.shadows
        found = [shadows[one.id] for one in calls if one.id in shadows]
        held = sum((one.tenant, one.mode) == (shadow.tenant, Mode.SYNCHRONOUS) for one in found)
        if held >= slots > 1:
            text = f"synchronous sends of {shadow.tenant} hold all {slots} slots of {call.provider}"
            self._state.violate("16", text, shadow.id)

    def _urgent(self, others: list[ShadowState], reserve: int) -> int:
        """Returns how much of the reserve of priority is in use."""
        return min(reserve, sum(one.mode is Mode.PRIORITY for one in others))

    def _check_new_outlets(self, process: str, left: Sequence[DueQueueLeft]) -> None:
        """Checks that a tenant's first priority row to an unknown outlet does not wait for other outlets."""
        for lane, tenant, outlet, _ in left:
            provider, at, _ = outlet.partition("@")
            if not at or mode_of(lane) is not Mode.PRIORITY or (process, outlet) in self._outlets:
                continue
            held = [
                shadow
                for shadow in self._state.shadows.values()
                if shadow.status is Status.SENDING and (shadow.holder, shadow.provider) == (process, provider)
            ]
            free = self._plans[provider].max_in_flight - len(held)
            if free > 0 and not any(shadow.tenant == tenant for shadow in held):
                text = f"the first row of {tenant} to {outlet} waits, although {free} slots are free"
                self._state.violate("16", text)

    def _check_hanging(self, process: str, outlet: str, number: int, claimed: dict[str, int]) -> None:
        provider = outlet.partition("@")[0]
        here = number + self._in_flight(process, outlet)
        if here > 1:
            self._state.violate("16", f"{here} attempts at {outlet}, which did not answer the last one")
        hanging = {name for at, name in self._outlets if at == process and self._is_hanging(process, name)}
        together = sum(claimed.values()) + sum(self._in_flight(process, name) for name in hanging)
        share = max(1, self._plans[provider].max_in_flight // 4)
        if together > share:
            self._state.violate(
                "16", f"{together} attempts at hosts of {provider} that did not answer before"
            )

    def _check_breaker(self, process: str, outlet: str, plan: SimulatedProviderPlan) -> None:
        known = self._outlets.get((process, outlet))
        if known is None or known.opened_ms is None:
            return
        since_ms = self._state.ms - known.opened_ms
        if _KNOWN_AFTER_MS < since_ms < plan.breaker.open_ms - _KNOWN_AFTER_MS:
            self._state.violate("9", f"claimed for {outlet} after {known.failures} consecutive failures")

    def _is_hanging(self, process: str, outlet: str) -> bool:
        known = self._outlets.get((process, outlet))
        since_ms = None if known is None else known.hanging_since_ms
        return since_ms is not None and self._state.ms - since_ms > _KNOWN_AFTER_MS

    def _in_flight(self, process: str, outlet: str) -> int:
        calls = self._calls.get((process, outlet.partition("@")[0]), [])
        return sum(self._outlet(call) == outlet for call in calls if not self._is_synchronous(call))

    def _is_synchronous(self, call: ProviderCall) -> bool:
        shadow = self._state.shadows.get(call.id)
        return shadow is not None and shadow.mode is Mode.SYNCHRONOUS

    def _outlet(self, call: ProviderCall) -> str | None:
        """Returns the outlet of a call, or None if the provider has no slots per host."""
        shadow = self._state.shadows.get(call.id)
        if shadow is None or self._plans[call.provider].host_slots is None:
            return None
        origin = "/".join(shadow.address.split("/")[:3])
        return f"{call.provider}@{shadow.tenant}/{origin}"
