"""Takes claimed notifications through the steps of an attempt: guard, route, send and decide."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from homing.core.clock_steps import MAX_BELIEVED_STEP_MS
from homing.core.errors import StoreError
from homing.core.lifecycle.claims import LEASE_MARGIN_MS, Claim, Lease, provider_key
from homing.core.lifecycle.outcomes import Outcome, Settlement
from homing.core.notifications import Channel, Mode, OutcomeKind, Reason
from homing.core.ports.observers import SettledClaim
from homing.core.ports.plug_ins import Directory
from homing.core.ports.providers import Delivery
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.ports.stores import Backend
from homing.core.retry.decide import (
    NO_OBJECTION,
    attribute_outcome,
    check_before_attempt,
    decide,
    postpone,
    settle_timed_out,
    wait_for_next_round,
)
from homing.core.retry.policy import RetryPolicy
from homing.core.routing.breaker import BreakerGate
from homing.core.routing.failover import ProviderChoice, Route, choose_provider, pinned_outlet, put_first
from homing.engine.delivery.abandoned_calls import AbandonedCalls
from homing.engine.delivery.attempts import (
    TIMEOUT_CODE,
    DeadlineTimer,
    call_provider,
    exception_outcome,
    grace_ms,
    sanitize_outcome,
    timeout_outcome,
    was_suspended,
)
from homing.engine.delivery.breakers import Breakers, max_trial_ms
from homing.engine.delivery.concurrency_limit import ConcurrencyLimit, SlotWaits
from homing.engine.delivery.guard import SendThrottle, fetch_facts, skip_retries
from homing.engine.delivery.outlets import Outlets
from homing.engine.intake.recipient_lookup import SYNCHRONOUS_TIMEOUT_MS
from homing.engine.operations.policies import Policies
from homing.engine.provider_roster import ProviderRoster
from homing.engine.store_clock import STORE_PAUSE_MS, StoreClock
from homing.engine.upkeep.alerts import Alerts

log = logging.getLogger("homing.deliverer")


# Module constants: looking up an enum member for every attempt is slow.
_ACCEPTED, _SYNCHRONOUS = OutcomeKind.ACCEPTED, Mode.SYNCHRONOUS


class ReadyClaim(Struct, frozen=True, gc=False):
    """A claim that passed the guard, with the retry policy to apply to it."""

    claim: Claim
    policy: RetryPolicy
    trial: int = 0
    """Version of the breaker when this attempt became the breaker's trial. 0 if the attempt is no trial."""


OnAttemptsEnded = Callable[[list[tuple[ReadyClaim, Settlement | None]]], None]
"""Function that is called with the attempts that ended together, each with its settlement.

A settlement of None means that nothing is written for the attempt, and that its lease expires.
"""


OnAttemptExpired = Callable[[ReadyClaim, Settlement, "asyncio.Task[Any]"], None]
"""Function that is called when an attempt's deadline has passed, with its settlement and its task.

The task ends when the provider has returned.
"""


class _TaskAttempt:
    """An attempt that runs in the current task. It may outlive its deadline."""

    __slots__ = ("_deliverer", "began_ms", "due_ms", "on_expired", "one", "task", "trial")

    def __init__(
        self,
        deliverer: Deliverer,
        one: ReadyClaim,
        began_ms: int,
        due_ms: int,
        on_expired: OnAttemptExpired,
        trial: bool,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None, "attempts run in tasks"
        self._deliverer = deliverer
        self.one = one
        self.began_ms = began_ms
        self.due_ms = due_ms
        self.on_expired = on_expired
        self.trial = trial
        self.task = task

    def expire(self, now_ms: int) -> None:
        """Ends the attempt, because its timeout has elapsed."""
        self._deliverer.abandon(self, now_ms)


class _BatchAttempt:
    """An attempt that was started as part of a batch and reports its result through a callback."""

    __slots__ = ("_deliverer", "began_ms", "due_ms", "ended", "one")

    def __init__(
        self, deliverer: Deliverer, one: ReadyClaim, began_ms: int, due_ms: int, ended: OnAttemptsEnded
    ) -> None:
        self._deliverer = deliverer
        self.one = one
        self.began_ms = began_ms
        self.due_ms = due_ms
        self.ended = ended

    def expire(self, now_ms: int) -> None:
        """Ends the attempt, because its timeout has elapsed."""
        self._deliverer.time_out(self)


class Deliverer:
    """Attempts claimed notifications.

    Functions of `core` decide what follows from an outcome. The caller writes the resulting settlements.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        roster: ProviderRoster,
        policies: Policies,
        breakers: Breakers,
        outlets: Outlets,
        alerts: Alerts,
        directory: Directory,
        pacing: SendThrottle,
        clock: Clock,
        store_clock: StoreClock,
        random_source: RandomSource,
    ) -> None:
        self._backend = backend
        self._roster = roster
        self._policies = policies
        self._breakers = breakers
        self._outlets = outlets
        self._alerts = alerts
        self._directory = directory
        self._pacing = pacing
        self._clock = clock
        self._store_clock = store_clock
        self._random_source = random_source
        self._deadlines = DeadlineTimer(clock)
        self._concurrency_limits = {listed.id: ConcurrencyLimit(listed.max_in_flight) for listed in roster}
        self.abandoned = AbandonedCalls()
        """Calls whose attempt has ended at its deadline, but whose provider has not returned yet."""

    async def guard(self, claims: Sequence[Claim], settle: Callable[[Settlement], None]) -> list[ReadyClaim]:
        """Calls `settle` for claims that must not be attempted now, and returns the other claims."""
        facts = await fetch_facts(self._directory, claims)
        now = self._store_clock.now()
        ready = []
        for claim in claims:
            policy = self.policy(claim)
            known = self._pacing.quiet(claim, facts.get(claim.id, NO_OBJECTION), now)
            # The estimate of the store's time may be behind, but it cannot be earlier than the claim. For an
            # overdue row, `started_at` is not the time of the claim but its due time, which may be later.
            at = now if claim.overdue else max(now, claim.started_at)
            ended = check_before_attempt(claim, policy, known, now=at)
            if ended is None:
                ready.append(ReadyClaim(claim, policy))
            else:
                settle(ended)
        return await self._within_rate_limits(ready, settle)

    async def recheck(self, batch: Sequence[SettledClaim]) -> Sequence[SettledClaim]:
        """Returns settlements, of which those that would retry a push to an inactive device skip it."""
        return await skip_retries(self._directory, batch)

    async def route(
        self, ready: Sequence[ReadyClaim], settle: Callable[[Settlement], None]
    ) -> list[ReadyClaim]:
        """Chooses the provider of each claim, and returns the claims that can be sent.

        Postpones claims without an available provider. A change of provider is stored before the send.
        """
        ready = self._return_to_hosts(ready, settle)
        await self._win_trials(ready)
        placed: list[ReadyClaim] = []
        moved: list[ReadyClaim] = []
        unchanged_routes = self._unchanged_routes(ready)
        for one in ready:
            if (one.claim.provider, one.claim.channel) in unchanged_routes and not (
                one.claim.holds or one.claim.spent
            ):
                placed.append(one)
                continue
            choice = self._choose(one.claim)
            if choice.step is None:
                settle(self._settle_without_provider(one, choice))
                continue
            trial = self._breakers.spend_trial(choice.step.provider)
            if choice.step.provider == one.claim.provider:
                placed.append(replace(one, trial=trial))
            else:
                outlet = choice.step.outlet(one.claim.tenant, one.claim.address)
                claim = replace(
                    one.claim,
                    provider=choice.step.provider,
                    outlet=outlet,
                    failures_here=0,
                    moved_from=one.claim.provider,
                )
                moved.append(ReadyClaim(claim, one.policy, trial))
        return placed + await self._record_moves(moved, settle)

    def _return_to_hosts(
        self, ready: Sequence[ReadyClaim], settle: Callable[[Settlement], None]
    ) -> Sequence[ReadyClaim]:
        """Returns pinned claims that waited for a stopped provider to the outlets of their hosts.

        The next claim takes them within the slots of those outlets. Returns the other claims.
        """
        if not any(one.claim.pinned for one in ready):
            return ready
        kept = []
        for one in ready:
            claim = one.claim
            waited = claim.pinned and claim.outlet == pinned_outlet(claim.provider)
            outlet = self._host_outlet(claim) if waited else claim.outlet
            if outlet == claim.outlet or not self._is_available(claim.provider):
                kept.append(one)
            else:
                settle(replace(postpone(claim, one.policy, 0, None), outlet=outlet))
        return kept

    def _host_outlet(self, claim: Claim) -> str:
        """Returns the outlet of the claim's host. Without slots per host, all outlets are the same."""
        for step in self._roster.route(claim.channel):
            if step.provider == claim.provider and step.per_host:
                return step.outlet(claim.tenant, claim.address)
        return claim.outlet

    def _is_available(self, provider: str) -> bool:
        """Returns True unless the breaker stops the provider. One that allows a trial does not."""
        return self._breakers.may_take_new(provider) or self._breakers.usable(provider)

    async def attempt(
        self,
        one: ReadyClaim,
        on_expired: OnAttemptExpired,
        waits: SlotWaits,
        until_ms: int | None = None,
        on_started: Callable[[], None] | None = None,
    ) -> Settlement | None:
        """Sends one notification in the current task, and returns its settlement.

        If the deadline of the attempt passes first, calls `on_expired` with the settlement at once and
        cancels the task. The provider's slot stays taken until the provider has returned, and its result is
        ignored.

        If nothing can be sent now, because the provider is no longer available, no slot becomes free while
        the lease is long enough, `waits` has ended, or the lease cannot be extended, the settlement postpones
        the notification, and the attempt does not count. Returns None and sends nothing if the lease is gone,
        or if no slot became free before `until_ms`, the monotonic time by which a synchronous send must have
        ended. `on_started` is called just before the provider is.
        """
        claim, clock, breakers, timeout_ms = one.claim, self._clock, self._breakers, self.timeout_ms(one)
        slots, share = self._concurrency_limits[claim.provider], until_ms is not None
        if not (slots.try_acquire_share(claim.tenant) if share else slots.try_acquire()):
            now_ms = clock.monotonic_ms()
            within_ms = (
                self._lease_reserve_ms(claim, timeout_ms, now_ms) if until_ms is None else until_ms - now_ms
            )
            if not await waits.acquire(slots, within_ms, claim.tenant, share=share):
                return self.give_back(claim) if until_ms is None else None
        try:
            began_ms = clock.monotonic_ms()
            if breakers.is_stale(began_ms):
                await breakers.try_refresh()
                began_ms = clock.monotonic_ms()
            trial = one.trial > 0 and breakers.is_trial(claim.provider, one.trial)
            if not trial and not breakers.usable(claim.provider):
                return self._reroute(one)
            if until_ms is not None:
                if until_ms <= began_ms:
                    return None
            elif not self._is_lease_long_enough(claim, timeout_ms, began_ms):
                held = await self._extend_lease(claim, timeout_ms)
                if held is None:
                    return postpone(claim, one.policy, STORE_PAUSE_MS, None)
                if not held:
                    return None
                began_ms = clock.monotonic_ms()
            deadlines = self._deadlines
            due_ms = self._due_ms(claim, began_ms, timeout_ms) if until_ms is None else until_ms
            attempt = _TaskAttempt(self, one, began_ms, due_ms, on_expired, trial)
            deadlines.add((attempt,))
            if on_started is not None:
                on_started()
            try:
                outcome = await call_provider(self._roster[claim.provider], build_delivery(claim, timeout_ms))
            finally:
                expired = deadlines.open.pop(attempt, False) is False
            if expired:  # settled at its deadline, so this result is too late
                return None
            return self._conclude(attempt, outcome, clock.monotonic_ms())
        finally:
            slots.release_share(claim.tenant) if share else slots.release()
            self.abandoned.remove(claim)

    def abandon(self, attempt: _TaskAttempt, now_ms: int) -> None:
        """Ends an attempt whose timeout has elapsed as ambiguous, whether or not its provider returns."""
        del self._deadlines.open[attempt]
        self.abandoned.add(attempt.one.claim)
        outcome = timeout_outcome(self.timeout_ms(attempt.one))
        try:
            attempt.on_expired(attempt.one, self._conclude(attempt, outcome, now_ms), attempt.task)
        finally:
            attempt.task.cancel()

    def _conclude(self, attempt: _TaskAttempt, outcome: Outcome, ended_ms: int) -> Settlement:
        """Counts the outcome at the breaker and returns the settlement."""
        one, now = attempt.one, self._store_clock.at(ended_ms)
        outcome = self._attribute(one.claim, outcome)
        if not (was_suspended(attempt.due_ms, ended_ms) or self._was_cut_short(attempt, outcome)):
            self._record(one.claim, outcome, ended_ms - attempt.began_ms, trial=attempt.trial)
        return self._decide(one, outcome, attempt.began_ms, ended_ms, now)

    def _was_cut_short(self, attempt: _TaskAttempt, outcome: Outcome) -> bool:
        """Returns True if a synchronous attempt timed out after less than half of its timeout.

        It had started late, because it waited for the store or for a slot. That is not the provider's fault.
        """
        given_ms = attempt.due_ms - attempt.began_ms
        return outcome.error_code == TIMEOUT_CODE and 2 * given_ms < self.timeout_ms(attempt.one)

    def begin(self, batch: Sequence[ReadyClaim], ended: OnAttemptsEnded) -> list[ReadyClaim]:
        """Starts attempts at providers that send in batches. Returns those that need `attempt` instead.

        `ended` may be called for some attempts before this method returns.
        """
        breakers, began_ms = self._breakers, self._clock.monotonic_ms()
        if breakers.is_stale(began_ms):
            return list(batch)
        batches: dict[str, list[tuple[Delivery, _BatchAttempt]]] = {
            provider: []
            for provider in dict.fromkeys([one.claim.provider for one in batch])
            if provider in self._roster.batch_providers and breakers.usable(provider)
        }
        left = []
        for one in batch:
            claim, timeout_ms = one.claim, self.timeout_ms(one)
            deliveries = batches.get(claim.provider)
            fits = self._is_lease_long_enough(claim, timeout_ms, began_ms)
            if deliveries is None or one.trial or not fits:
                left.append(one)
            elif self._concurrency_limits[claim.provider].try_acquire():
                begun = _BatchAttempt(self, one, began_ms, self._due_ms(claim, began_ms, timeout_ms), ended)
                deliveries.append((build_delivery(claim, timeout_ms), begun))
            else:
                left.append(one)
        for provider, deliveries in batches.items():
            if deliveries:
                self._deadlines.add([begun for _, begun in deliveries])
                try:
                    self._roster.batch_providers[provider].begin(deliveries, self._on_outcomes)
                except BaseException as error:  # it must not raise; some attempts may have been sent
                    self._give_up(provider, {begun for _, begun in deliveries})
                    self._on_outcomes([(begun, error) for _, begun in deliveries])
        return left

    def time_out(self, begun: _BatchAttempt) -> None:
        """Aborts a batch attempt whose timeout has elapsed, and reports its outcome as ambiguous."""
        self._give_up(begun.one.claim.provider, (begun,))
        self._on_outcomes([(begun, timeout_outcome(self.timeout_ms(begun.one)))])

    def abort_all(self, ended: OnAttemptsEnded) -> list[ReadyClaim]:
        """Aborts all batch attempts that report to `ended`, without reporting them, and returns them."""
        open_ = self._deadlines.open
        gone = [begun for begun in open_ if isinstance(begun, _BatchAttempt) and begun.ended == ended]
        by_provider: dict[str, list[_BatchAttempt]] = {}
        for begun in gone:
            del open_[begun]
            by_provider.setdefault(begun.one.claim.provider, []).append(begun)
        for provider, those in by_provider.items():
            self._give_up(provider, set(those))
            for _ in those:
                self._concurrency_limits[provider].release()
        return [begun.one for begun in gone]

    def _give_up(self, provider: str, attempts: Collection[_BatchAttempt]) -> None:
        for one in self._roster.senders_of(provider):
            try:
                one.give_up(attempts)
            except BaseException as error:  # it must not raise; the attempts end all the same
                log.error("provider %s raised %s while aborting attempts", provider, type(error).__name__)

    def _on_outcomes(self, results: list[tuple[_BatchAttempt, Outcome | BaseException]]) -> None:
        ended_ms, open_, slots = self._clock.monotonic_ms(), self._deadlines.open, self._concurrency_limits
        now = self._store_clock.at(ended_ms)
        reports: dict[OnAttemptsEnded, list[tuple[ReadyClaim, Settlement | None]]] = {}
        for begun, result in results:
            if open_.pop(begun, False) is False:  # aborted earlier, so this result is too late
                continue
            one, settlement = begun.one, None
            provider = one.claim.provider
            slots[provider].release()
            try:
                outcome = (
                    exception_outcome(provider, result)
                    if isinstance(result, BaseException)
                    else sanitize_outcome(result)
                )
                outcome = self._attribute(one.claim, outcome)
                if not was_suspended(begun.due_ms, ended_ms):
                    self._record(one.claim, outcome, ended_ms - begun.began_ms)
                settlement = self._decide(one, outcome, begun.began_ms, ended_ms, now)
            except Exception:
                log.exception("an attempt failed unexpectedly; it counts as lost when its lease expires")
            reports.setdefault(begun.ended, []).append((one, settlement))
        for ended, those in reports.items():
            ended(those)

    def _record(self, claim: Claim, outcome: Outcome, latency_ms: int, *, trial: bool = False) -> None:
        """Records an outcome at the provider, or at the outlet if the host is the recipient's."""
        listed = self._roster[claim.provider]
        if outcome.kind is OutcomeKind.PROVIDER_FAULT:
            self._alerts.add_provider_fault(claim.provider)
        if listed.host_slots is None or claim.outlet == claim.provider:
            self._breakers.record(claim.provider, outcome.kind, trial=trial)
            return
        timed_out = outcome.error_code == TIMEOUT_CODE
        self._outlets.answered(listed, claim.outlet, outcome.kind, latency_ms, timed_out)
        if trial:  # an operator or receipts paused the provider, and this attempt is its trial
            self._breakers.record(claim.provider, outcome.kind, trial=True)

    def _attribute(self, claim: Claim, outcome: Outcome) -> Outcome:
        """Returns the outcome that the breaker and the decision use.

        An unlisted error is attributed to a cause first.
        """
        if not outcome.unlisted:
            return outcome
        return attribute_outcome(claim, outcome, self._roster.route(claim.channel))

    def _decide(
        self, one: ReadyClaim, outcome: Outcome, began_ms: int, ended_ms: int, now: int
    ) -> Settlement:
        claim, taken = one.claim, outcome.kind is _ACCEPTED
        route = () if taken else self._roster.route_of(claim.channel, claim.id)
        return decide(
            claim,
            outcome,
            one.policy,
            route,
            elapsed_ms=max(0, now - claim.started_at),
            latency_ms=ended_ms - began_ms,
            u=0.0 if taken else self._random_source.random(),
            stopped=self._stopped(route),
        )

    def _stopped(self, route: Route) -> frozenset[str]:
        """Returns the providers of the route whose breakers are open. One that allows a trial is not."""
        return frozenset([step.provider for step in route if not self._is_available(step.provider)])

    def _reroute(self, one: ReadyClaim) -> Settlement:
        """Returns a settlement that postpones a claim whose provider can no longer be used.

        If another provider is available, the notification is due again at once.
        """
        choice = self._choose(one.claim)
        if choice.step is None:
            return self._settle_without_provider(one, choice)
        return postpone(one.claim, one.policy, 0, Reason.NO_PROVIDER)

    def _settle_without_provider(self, one: ReadyClaim, choice: ProviderChoice) -> Settlement:
        """Returns a settlement that postpones a claim which no provider can take now."""
        claim = one.claim
        if not choice.round_ended:
            settlement = postpone(claim, one.policy, self._wait_ms(claim, choice), Reason.NO_PROVIDER)
            waits_here = claim.pinned and not self._breakers.usable(claim.provider)
            return replace(settlement, outlet=pinned_outlet(claim.provider)) if waits_here else settlement
        route = self._roster.route_of(claim.channel, claim.id)
        now, u = self._store_clock.now(), self._random_source.random()
        return wait_for_next_round(claim, one.policy, route, now=now, u=u)

    def settle_lost(self, claim: Claim) -> Settlement:
        """Returns the settlement of an expired lease, whose worker died or was suspended for too long."""
        elapsed_ms = max(0, self._store_clock.now() - claim.started_at)
        route = self._roster.route_of(claim.channel, claim.id)
        outcome = Outcome(OutcomeKind.LOST, error_code="lost", error=f"worker {claim.worker} was lost")
        return decide(
            claim,
            outcome,
            self.policy(claim),
            route,
            elapsed_ms=elapsed_ms,
            latency_ms=elapsed_ms,
            u=self._random_source.random(),
            stopped=self._stopped(route),
        )

    def give_back(self, claim: Claim) -> Settlement:
        """Returns the settlement of a claim whose attempt could not start. The attempt does not count."""
        return postpone(claim, self.policy(claim), STORE_PAUSE_MS, None)

    def give_up(self, claim: Claim) -> Settlement:
        """Returns the settlement of a synchronous send whose time ran out before its attempt started."""
        return settle_timed_out(claim, self.policy(claim))

    def policy(self, claim: Claim) -> RetryPolicy:
        """Returns the retry policy in force for this claim."""
        return self._policies.book.policy_for(
            claim.tenant, claim.type, claim.origin, claim.channel, claim.priority, claim.mode
        )

    def timeout_ms(self, one: ReadyClaim) -> int:
        """Returns the timeout of an attempt, in milliseconds."""
        return SYNCHRONOUS_TIMEOUT_MS if one.claim.mode is _SYNCHRONOUS else one.policy.timeout_ms

    def _due_ms(self, claim: Claim, began_ms: int, timeout_ms: int) -> int:
        """Returns the monotonic time at which an attempt is aborted."""
        return began_ms + timeout_ms + grace_ms(self._roster[claim.provider].provider, timeout_ms)

    async def _within_rate_limits(
        self, ready: list[ReadyClaim], settle: Callable[[Settlement], None]
    ) -> list[ReadyClaim]:
        """Returns the claims within the rate limits of tenant and recipient. Postpones the other claims."""
        waits = await self._pacing.waits([one.claim for one in ready])
        if not waits:
            return ready
        for one in ready:
            if one.claim.id in waits:
                settle(postpone(one.claim, one.policy, waits[one.claim.id], Reason.RATE_LIMIT))
        return [one for one in ready if one.claim.id not in waits]

    async def _win_trials(self, ready: Sequence[ReadyClaim]) -> None:
        """Tries to win the trial of a breaker that allows one, for a claim that would go to its provider.

        A provider that is spent or on hold for the claim, or that has no free slot, is skipped, because the
        claim cannot go there.
        """
        if not any(self._breakers.gate(listed.id) is BreakerGate.TRIAL for listed in self._roster):
            return
        now = self._store_clock.now()
        starts = dict.fromkeys(
            (
                one.claim.provider,
                self._roster.route_of(one.claim.channel, one.claim.id),
                one.claim.pinned,
                _excluded_providers(one.claim, now),
            )
            for one in ready
        )
        for start, route, pinned, excluded in starts:
            for step in put_first(route, start):
                if pinned and step.provider != start:
                    break
                if step.provider in excluded:
                    continue
                if self._breakers.usable(step.provider):
                    break
                if (
                    self._breakers.gate(step.provider) is BreakerGate.TRIAL
                    and self._concurrency_limits[step.provider].has_free_slot
                    and await self._try_trial(step.provider)
                ):
                    break

    async def _try_trial(self, provider: str) -> bool:
        try:
            return await self._breakers.try_trial(provider, max_trial_ms(self._policies.book))
        except StoreError as error:
            log.warning("could not start a breaker trial of %s: %s", provider, error)
            return False

    def _unchanged_routes(self, ready: Sequence[ReadyClaim]) -> set[tuple[str, Channel]]:
        """Returns the (provider, channel) pairs whose claims keep their provider.

        The provider is on the channel's route and its breaker is closed, so no choice is needed.
        """
        pairs = {(one.claim.provider, one.claim.channel) for one in ready}
        return {
            (provider, channel)
            for provider, channel in pairs
            if self._breakers.is_closed(provider)
            and any(step.provider == provider for step in self._roster.route(channel))
        }

    def _choose(self, claim: Claim) -> ProviderChoice:
        return choose_provider(
            self._roster.route_of(claim.channel, claim.id),
            claim.provider,
            pinned=claim.pinned,
            usable=self._breakers.usable,
            holds=claim.holds,
            spent=claim.spent,
            now=self._store_clock.now(),
        )

    def _wait_ms(self, claim: Claim, choice: ProviderChoice) -> int:
        """Returns the milliseconds until the first provider is neither on hold nor stopped by its breaker."""
        route = self._roster.route_of(claim.channel, claim.id)
        now, usable = self._store_clock.now(), self._breakers.usable
        names = [
            step.provider
            for step in route
            if step.provider not in claim.spent and (not claim.pinned or step.provider == claim.provider)
        ]
        unusable = [name for name in names if claim.holds.get(name, 0) <= now or not usable(name)]
        waits = [max(self._breakers.wait_ms(name), claim.holds.get(name, 0) - now) for name in unusable]
        if choice.wait_ms is not None:
            waits.append(choice.wait_ms)
        return min(waits, default=30_000)

    async def extend_short_leases(
        self, ready: Sequence[ReadyClaim], settle: Callable[[Settlement], None]
    ) -> list[ReadyClaim]:
        """Extends the leases that are too short for their attempts, and returns the claims still held.

        A claim's lease is as long as most attempts need. Few policies have a longer timeout.
        """
        mono = self._clock.monotonic_ms()
        short = [
            one for one in ready if not self._is_lease_long_enough(one.claim, self.timeout_ms(one), mono)
        ]
        if not short:
            return list(ready)
        extended = {one.claim.id: one for one in await self._extend(short, settle)}
        lost = {one.claim.id for one in short} - extended.keys()
        return [extended.get(one.claim.id, one) for one in ready if one.claim.id not in lost]

    async def _record_moves(
        self, moved: list[ReadyClaim], settle: Callable[[Settlement], None]
    ) -> list[ReadyClaim]:
        """Stores the new providers of moved claims, and returns the claims whose lease is still held."""
        return await self._extend(moved, settle, record_provider=True)

    async def _extend(
        self,
        ready: Sequence[ReadyClaim],
        settle: Callable[[Settlement], None],
        *,
        record_provider: bool = False,
    ) -> list[ReadyClaim]:
        """Extends each lease to the timeout of its attempt plus the margin. Returns the claims still held.

        Makes one call per timeout. Postpones claims whose lease the store could not extend.
        """
        by_timeout: dict[int, list[ReadyClaim]] = {}
        for one in ready:
            by_timeout.setdefault(self.timeout_ms(one), []).append(one)
        kept: list[ReadyClaim] = []
        for timeout_ms, group in by_timeout.items():
            asked_at, lease_ms = self._store_clock.now(), timeout_ms + LEASE_MARGIN_MS
            try:
                held = await self._backend.extend([_lease(one, record_provider) for one in group], lease_ms)
            except StoreError as error:
                log.warning("could not extend %d leases, their claims are postponed: %s", len(group), error)
                for one in group:
                    settle(postpone(one.claim, one.policy, STORE_PAUSE_MS, None))
                continue
            # Count the lease from before the call, so that it is never assumed to last longer than it does.
            until = asked_at + lease_ms
            kept += [
                replace(one, claim=replace(one.claim, lease_until=until))
                for one in group
                if one.claim.id in held
            ]
        return kept

    def _is_lease_long_enough(self, claim: Claim, timeout_ms: int, mono_ms: int) -> bool:
        """Returns True if an attempt that starts at `mono_ms` can end before its lease expires.

        This process does not notice at once that the store's clock was set forward. A step that all processes
        believe must not have ended the lease either, unless the lease is too short for that.
        """
        return self._lease_reserve_ms(claim, timeout_ms, mono_ms) > 0

    def _lease_reserve_ms(self, claim: Claim, timeout_ms: int, mono_ms: int) -> int:
        """Returns for how many milliseconds after `mono_ms` the lease is long enough for an attempt."""
        left_ms = claim.lease_until - self._store_clock.latest_at(mono_ms)
        reserve_ms = min(MAX_BELIEVED_STEP_MS, (claim.lease_until - claim.started_at) // 2)
        return left_ms - max(self._due_ms(claim, 0, timeout_ms), reserve_ms)

    async def _extend_lease(self, claim: Claim, timeout_ms: int) -> bool | None:
        """Extends a lease that is too short for the attempt. Returns True if the attempt may start.

        Returns False if another worker has taken the lease over, and None if it is not known how much of the
        lease is left, because the store failed or was slow.
        """
        asked_ms = self._clock.monotonic_ms()
        try:
            held = await self._backend.extend(
                [Lease(claim.id, claim.token, worker=claim.worker)], timeout_ms + LEASE_MARGIN_MS
            )
        except StoreError as error:
            log.warning("could not extend the lease of %s, it is postponed: %s", claim.id, error)
            return None
        if claim.id not in held:
            return False
        waited_ms = self._clock.monotonic_ms() - asked_ms
        return True if waited_ms < LEASE_MARGIN_MS - MAX_BELIEVED_STEP_MS else None


def _lease(one: ReadyClaim, record_provider: bool) -> Lease:
    claim = one.claim
    if record_provider:
        return Lease(claim.id, claim.token, claim.provider, claim.outlet, claim.worker)
    return Lease(claim.id, claim.token, worker=claim.worker)


def _excluded_providers(claim: Claim, now: int) -> frozenset[str]:
    """Returns the providers that are spent or on hold for this claim."""
    return frozenset([*claim.spent, *(provider for provider, until in claim.holds.items() if until > now)])


def build_delivery(claim: Claim, timeout_ms: int) -> Delivery:
    """Returns the delivery that is passed to the provider for this claim."""
    message = claim.message
    return Delivery(
        notification_id=claim.id,
        tenant=claim.tenant,
        channel=claim.channel,
        type=claim.type,
        priority=claim.priority,
        recipient=message.recipient,
        address=claim.address,
        content=message.content,
        idempotency_key=provider_key(claim.id, claim.bounce_floor),
        attempt=claim.attempt,
        timeout_ms=timeout_ms,
        expires_at=claim.expires_at,
        locale=message.locale,
        metadata=message.metadata,
    )
