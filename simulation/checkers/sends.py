"""Checks that each send has a lease, is allowed, happens once and is settled.

These are invariants 2, 5–10, 12, 13, 23, 24 and 32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import sha256

from msgspec import msgpack

from homing.core.lifecycle.claims import ClaimBatch
from homing.core.lifecycle.outcomes import Outcome, Settlement
from homing.core.notifications import Mode, OutcomeKind, Status
from homing.core.ports.providers import Delivery
from simulation.checkers.decisions import PolicyChecker, allowed_attempts
from simulation.plan import LONGEST_LOSS_MS
from simulation.shadow_state import ProviderCall, ShadowState, SimulationState, short_id

_SETTLE_WITHIN_MS = 120_000
"""Time within which a live process must have settled an outcome that it received, in milliseconds."""

_CLAIM_PREPARED_MS = 1_000
"""Longest time from a worker's decision to claim to its call of the store, if the store is not slow."""


class SendChecker:
    """Records and checks every call of every simulated provider."""

    def __init__(self, state: SimulationState, policies: PolicyChecker) -> None:
        self._state = state
        self._policies = policies
        self._caps = {provider.id: provider.max_in_flight for provider in state.plan.providers}
        self._limits = {c.id: c.rate for c in state.plan.providers if c.rate is not None}
        self._under_way: Counter[tuple[str, str]] = Counter()
        self._starts: dict[str, list[int]] = {}
        self._unsettled: dict[tuple[str, int], tuple[str, int]] = {}
        """(notification id, attempt) → (process, loop time at which it received the outcome)."""
        self._received: set[tuple[str, int]] = set()
        """(notification id, token) of the claims that a process has received and not tried to settle yet."""
        self._unwritten_since_ms: dict[str, int] = {}
        """Process → loop time since which the store has written no result of it, although it tried."""
        self._keys: dict[str, str] = {}
        self.calls = 0
        self.outcomes: Counter[str] = Counter()

    def begins(
        self, process: str, provider: str, delivery: Delivery, passes_breaker: Callable[[ShadowState], None]
    ) -> ProviderCall:
        """Checks and records the start of a call."""
        state = self._state
        shadow = state.shadows.get(delivery.notification_id)
        id = delivery.notification_id
        if shadow is None and id not in state.lost:
            state.violate("5", "sent, but never accepted", id)
        self.calls += 1
        state.sends[id] += 1
        state.note(process, f"send {short_id(id)} #{delivery.attempt} to {provider}")
        if shadow is None or shadow.rolled_back:
            self._check_rolled_back(process, delivery, shadow)
        else:
            self._check_lease(process, provider, delivery, shadow)
            self._check_allowed(process, provider, delivery, shadow)
            self._check_same(delivery, shadow)
            passes_breaker(shadow)
        self._under_way[process, provider] += 1
        if self._under_way[process, provider] > self._caps[provider]:
            number = self._under_way[process, provider]
            state.violate(
                "13",
                f"{number} sends in flight at {provider}, the limit is {self._caps[provider]}",
                id,
            )
        if provider in self._limits:
            # A token is taken when the row is claimed. Later delays of the process do not count.
            is_known = shadow is not None and not shadow.rolled_back and shadow.mode is not Mode.SYNCHRONOUS
            taken_ms = shadow.leased_ms if shadow is not None and is_known else state.ms
            self._starts.setdefault(provider, []).append(taken_ms)
        call = ProviderCall(
            provider=provider,
            process=process,
            id=id,
            attempt=delivery.attempt,
            began_ms=state.ms,
            due_ms=state.ms + delivery.timeout_ms,
            jumps=state.jumps,
        )
        if shadow is not None:
            shadow.calls[delivery.attempt] = call
        return call

    def ends(self, call: ProviderCall, outcome: Outcome | None, *, received: bool) -> None:
        """Records the end of a call, with an outcome, a timeout or the death of its process."""
        self.returns(call)
        self._ends(call, outcome, received=received)

    def expires(self, call: ProviderCall) -> None:
        """Records that an attempt ended at its deadline, while its call goes on and keeps its slot."""
        call.expired = True
        self._ends(call, None, received=True)

    def returns(self, call: ProviderCall) -> None:
        """Records that the provider has returned, so that its slot is free again."""
        self._under_way[call.process, call.provider] -= 1

    def received(self, batch: ClaimBatch) -> None:
        """Records that a process has received these claims."""
        self._received.update((claim.id, claim.token) for claim in batch.claims)

    def tried(self, batch: Sequence[Settlement]) -> None:
        """Records that a process tries to settle these claims, whether or not the store responds."""
        self._received.difference_update((settlement.id, settlement.token) for settlement in batch)

    def could_not_settle(self, process: str, batch: Sequence[Settlement]) -> None:
        """Records that results of a worker's attempts could not be written.

        A synchronous send writes its own. The attempt of a lease that was taken over is lost, and has no
        result that must be kept.
        """
        results = [one for one in batch if one.attempt and one.attempt.outcome is not OutcomeKind.LOST]
        shadows = (self._state.shadows.get(settlement.id) for settlement in results)
        if any(shadow is not None and shadow.mode is not Mode.SYNCHRONOUS for shadow in shadows):
            self._unwritten_since_ms.setdefault(process, self._state.ms)

    def could_settle(self, process: str) -> None:
        """Records that the store has written results of this process."""
        self._unwritten_since_ms.pop(process, None)

    def asks_to_claim(self, process: str) -> None:
        """Checks that a worker whose results cannot be written claims nothing (invariant 32)."""
        state, faults = self._state, self._state.plan.fault_plan
        since_ms = self._unwritten_since_ms.get(process)
        if since_ms is None or faults.slow_per_call or faults.slow_claim_per_call:
            return
        since_ms = max(since_ms, state.paused_ms.get(process, 0))
        if state.ms - since_ms > _CLAIM_PREPARED_MS:
            text = f"{process} claims, although it could write no result for {state.ms - since_ms} ms"
            state.violate("32", text)

    def _check_unwritten(self, shadow: ShadowState) -> None:
        """Checks that the lease of a result that cannot be written is kept meanwhile (invariant 32)."""
        state, faults = self._state, self._state.plan.fault_plan
        process, received_ms = self._unsettled.get((shadow.id, shadow.attempts), ("", 0))
        excused = (
            not process
            or process in state.dead
            or shadow.rolled_back
            or state.paused_ms.get(process, -1) >= shadow.leased_ms
            or state.jumped_since(shadow.jumps_at_lease)
            # The leases can be extended no better then.
            or faults.slow_per_call
            or faults.away_every_ms
            or faults.error_per_call
            or faults.statement_error_per_call
        )
        if not excused:
            text = f"{process} lost the lease of a result that it has had for {state.ms - received_ms} ms"
            state.violate("32", text, shadow.id)

    def lease_expired(self, shadow: ShadowState) -> None:
        """Checks a lease that another process takes over (invariants 23 and 32).

        The process that held it has died, was paused or started the attempt, or tried to settle it. It has
        no result of the attempt.
        """
        self._check_unwritten(shadow)
        state, faults = self._state, self._state.plan.fault_plan
        excused = (
            (shadow.id, shadow.token) not in self._received
            or shadow.attempts in shadow.calls
            or shadow.rolled_back
            or shadow.holder in state.dead
            or state.paused_ms.get(shadow.holder, -1) >= shadow.leased_ms
            or state.jumped_since(shadow.jumps_at_lease)
            # A lease may run out while the store does not respond.
            or faults.slow_per_call
            or faults.away_every_ms
        )
        if not excused:
            text = f"{shadow.holder} neither started attempt {shadow.attempts} nor gave it back"
            state.violate("23", text, shadow.id)

    def _ends(self, call: ProviderCall, outcome: Outcome | None, *, received: bool) -> None:
        call.over, call.over_ms, call.outcome = True, self._state.ms, outcome
        if not received:
            return
        shadow = self._state.shadows.get(call.id)
        call.kind = kind = self._policies.kind_of(call, shadow)
        self.outcomes[kind.value] += 1
        self._state.note(
            call.process, f"answer {short_id(call.id)} #{call.attempt} {call.provider}: {kind.value}"
        )
        if shadow is not None:
            self._check_kept(call, shadow)
            if shadow.mode is not Mode.SYNCHRONOUS:
                self._unsettled[call.id, call.attempt] = (call.process, self._state.ms)

    def _check_kept(self, call: ProviderCall, shadow: ShadowState) -> None:
        """Checks that a send ends while its lease is valid, unless the process paused or the clock jumped."""
        state = self._state
        paused = state.paused_ms.get(call.process, -1) >= call.began_ms or shadow.rolled_back
        mine = shadow.status is Status.SENDING and shadow.attempts == call.attempt and not shadow.reclaimed
        if not mine and not paused and not state.jumped_since(call.jumps):
            state.violate("5", f"the lease expired while attempt {call.attempt} was in flight", call.id)

    def settled(self, settlement: Settlement) -> None:
        """Records that a settlement has reached the store, whatever its result."""
        if settlement.attempt is None or settlement.attempt.outcome is OutcomeKind.LOST:
            return
        self._unsettled.pop((settlement.id, settlement.attempt.number), None)
        shadow = self._state.shadows.get(settlement.id)
        call = None if shadow is None else shadow.calls.get(settlement.attempt.number)
        if shadow is None or shadow.rolled_back:
            return
        if call is not None and call.expired and settlement.attempt.outcome is not OutcomeKind.AMBIGUOUS:
            text = f"a result that came after the deadline of attempt {call.attempt} was recorded"
            self._state.violate("23", text, settlement.id)

    def sweep(self, wait_ms: int = _SETTLE_WITHIN_MS) -> None:
        """Checks that each outcome that reached a live process was settled within `wait_ms`."""
        state = self._state
        for (id, attempt), (process, at_ms) in list(self._unsettled.items()):
            if process in state.dead:
                del self._unsettled[id, attempt]
            elif state.ms - max(at_ms, state.paused_ms.get(process, 0)) > wait_ms:
                state.violate(
                    "2", f"{process} received the outcome of attempt {attempt} but never settled it", id
                )

    def finish(self) -> None:
        """Checks the rate limits of the providers over the whole run (invariant 13)."""
        for provider, starts in self._starts.items():
            limit = self._limits[provider]
            state = self._state
            repeated_ms = state.rollbacks * LONGEST_LOSS_MS  # tokens that were taken then are there again
            spare: float = limit.burst * (1 + state.jumps + state.rollbacks)
            spare += limit.per_second * (self._token_age_ms() + repeated_ms) / 1000
            level, last = 0.0, 0
            for at in sorted(starts):
                level = max(0.0, level - limit.per_second * (at - last) / 1000) + 1
                last = at
                if level > spare + 1e-6:
                    text = (
                        f"{provider} got {level:.1f} sends more than {limit.per_second}/s allows by {at} ms"
                    )
                    self._state.violate("13", text)

    def _check_lease(self, process: str, provider: str, delivery: Delivery, shadow: ShadowState) -> None:
        state = self._state
        jumped = state.jumped_since(shadow.jumps_at_lease)
        if shadow.status is not Status.SENDING or shadow.attempts != delivery.attempt:
            text = f"attempt {delivery.attempt} is sent while {shadow.status} at attempt {shadow.attempts}"
            state.violate("5", text, shadow.id)
        if shadow.reclaimed or shadow.overdue or shadow.holder != process:
            state.violate("5", f"{process} sends without a lease", shadow.id)
        left = (shadow.lease_until or 0) - state.now
        if left < delivery.timeout_ms and not jumped:
            text = f"a send of up to {delivery.timeout_ms} ms begins {left} ms before its lease ends"
            state.violate("5", text, shadow.id)
        if provider != shadow.provider:
            state.violate("12", f"sent to {provider}, but {shadow.provider} is recorded", shadow.id)
        if delivery.attempt in shadow.calls:
            state.violate("6", f"attempt {delivery.attempt} is sent a second time", shadow.id)

    def _check_allowed(self, process: str, provider: str, delivery: Delivery, shadow: ShadowState) -> None:
        state = self._state
        if shadow.taken:
            text = f"sent, although {min(shadow.taken)} was taken"
            state.violate("24", text, shadow.id)
        if shadow.skip:
            state.violate("7", f"sent, although {shadow.skip} before it was claimed", shadow.id)
        expired = shadow.expires_at is not None and shadow.leased_at >= shadow.expires_at
        if expired and not state.jumped_since(shadow.jumps_at_lease):
            state.violate("7", "sent after it had expired", shadow.id)
        policies = list(self._policies.in_force(process, shadow, shadow.leased_ms))
        if shadow.mode is Mode.SYNCHRONOUS:
            if delivery.attempt > 1:
                state.violate("7", "a synchronous notification is sent a second time", shadow.id)
            return
        allowed = max(allowed_attempts(policy, shadow) for policy in policies)
        if shadow.counted > allowed:
            text = f"attempt {delivery.attempt} with {shadow.moves} moves is more than the policy allows"
            state.violate("6", text, shadow.id)
        providers = sum(shadow.channel in one.channels for one in state.plan.providers)
        if len(shadow.calls) >= (allowed + shadow.cleared) * providers + shadow.uncounted:
            state.violate("6", f"call {len(shadow.calls) + 1} for {allowed} attempts", shadow.id)
        if provider in shadow.spent:
            state.violate("9", f"sent to {provider}, which is spent in this round", shadow.id)
        oldest = max(policy.max_age_ms for policy in policies)
        if shadow.leased_at >= shadow.aged_from + oldest:
            state.violate("7", f"sent after its maximum age of {oldest} ms", shadow.id)
        if provider in shadow.refused_by:
            state.violate(
                "9", f"sent again to {provider}, which refused it with an unlisted error", shadow.id
            )
        wait = shadow.left_alone.get(provider)
        left_ms = 0 if wait is None else wait.ends_ms(policies) - state.ms
        if left_ms > 0 and not state.jumps:
            state.violate("8", f"sent {left_ms} ms before the wait for {provider} ends", shadow.id)

    def _check_rolled_back(self, process: str, delivery: Delivery, shadow: ShadowState | None) -> None:
        """Checks a call for a notification about which the store has lost something (invariant 26).

        Each lease leads to one call at most, and the policy limits the attempts that the store knows.
        """
        state, id = self._state, delivery.notification_id
        if state.sends[id] > state.leases[id]:
            state.violate("26", f"sent {state.sends[id]} times with {state.leases[id]} leases", id)
        if shadow is None:
            return
        self._check_content(delivery, shadow)
        if shadow.status is not Status.SENDING or shadow.mode is Mode.SYNCHRONOUS:
            return
        policies = self._policies.in_force(process, shadow, shadow.leased_ms)
        if shadow.counted > max(allowed_attempts(policy, shadow) for policy in policies):
            state.violate("26", f"attempt {shadow.attempts} is more than the policy allows", id)

    def _check_content(self, delivery: Delivery, shadow: ShadowState) -> None:
        said = (delivery.recipient, delivery.content, delivery.metadata)
        if sha256(msgpack.encode(said)).digest() != shadow.digest or delivery.address != shadow.address:
            self._state.violate("10", "the sent message differs from the accepted one", shadow.id)

    def _check_same(self, delivery: Delivery, shadow: ShadowState) -> None:
        self._check_content(delivery, shadow)
        self._check_key(delivery.idempotency_key, shadow)

    def _check_key(self, key: str, shadow: ShadowState) -> None:
        """Checks that the idempotency key changes after a reported failure, and only then."""
        known = shadow.provider_keys
        if self._keys.setdefault(key, shadow.id) != shadow.id:
            self._state.violate("10", "the idempotency key is that of another notification", shadow.id)
        if known and shadow.key_must_change and key in known:
            self._state.violate("10", "sent with the idempotency key of a message that has failed", shadow.id)
        if known and key != known[-1] and (key in known or not shadow.key_may_change):
            self._state.violate("10", "the idempotency key differs from that of the last attempt", shadow.id)
        if key not in known:
            known.append(key)
        shadow.key_may_change = shadow.key_must_change = False

    def _token_age_ms(self) -> int:
        """Returns the longest time between taking a rate-limit token and its claim, in milliseconds."""
        fault_plan = self._state.plan.fault_plan
        slow = 3 * fault_plan.longest_slow_ms if fault_plan.slow_per_call else 0
        return 1_300 + slow + (fault_plan.longest_pause_ms if fault_plan.pause_every_ms else 0)
