"""The worker: claims notifications, attempts them, settles them in batches, and sleeps until more are due."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from homing.core.clock_steps import SETTLING_MS
from homing.core.errors import StoreError
from homing.core.lifecycle.claims import Claim, ClaimBatch, Lease, LeaseKey, lease_key
from homing.core.lifecycle.outcomes import Settlement
from homing.core.lifecycle.states import SUCCESSFUL
from homing.core.notifications import Mode, Reason, Status
from homing.core.ports.observers import NULL_OBSERVER, Observer, SettledClaim
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Backend
from homing.core.retry.decide import postpone
from homing.core.retry.policy import DEFAULT_LEASE_MS
from homing.engine.delivery.breakers import Breakers
from homing.engine.delivery.capacity import Capacity, SpentTokens
from homing.engine.delivery.concurrency_limit import SlotWaits
from homing.engine.delivery.deliverer import Deliverer, ReadyClaim
from homing.engine.delivery.settler import Settler
from homing.engine.delivery.timers import Timers
from homing.engine.delivery.wake_timer import WakeTimer
from homing.engine.operations.breaker_holds import BreakerHold
from homing.engine.operations.policies import RULES_MAX_AGE_MS, Policies
from homing.engine.plug_in_calls import leave_behind
from homing.engine.settings import WorkerSettings
from homing.engine.store_clock import STORE_PAUSE_MS, StoreClock
from homing.engine.system_runtime import LocalWaker

log = logging.getLogger("homing.worker")


_MIN_EXTEND_INTERVAL_MS = 50
"""Shortest time between two extensions of the leases in flight."""

_RETURN_WITHIN_S = 1.0
"""Time within which a provider is expected to return after its call was cancelled."""

_FINISH_CHECK_S = 0.25
"""Interval at which a draining worker checks for which tasks it still has to wait."""

_BUSY_THRESHOLD = 32
"""Number of attempts in flight from which on the worker counts as busy.

A busy worker waits at least 10 ms between claims, unless half of its attempts have ended.
"""


class Worker:
    """Claims and attempts notifications.

    One worker per process is enough; any number of processes may run one.
    """

    def __init__(
        self,
        name: str,
        *,
        backend: Backend,
        policies: Policies,
        breakers: Breakers,
        deliverer: Deliverer,
        capacity: Capacity,
        clock: Clock,
        store_clock: StoreClock,
        timers: Timers,
        settings: WorkerSettings,
        on_settled: Callable[[Settlement, bool], None] = lambda settlement, applied: None,
        on_started: Callable[[Sequence[Claim]], None] | None = None,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        self.name = name
        self._backend = backend
        self._policies = policies
        self._breakers = breakers
        self._deliverer = deliverer
        self._capacity = capacity
        self._clock = clock
        self._store_clock = store_clock
        self._waker = LocalWaker()
        self._timers = timers
        self._settings = settings
        self._on_settled = on_settled
        self._on_started = on_started
        self._observer = observer
        self._settler = Settler(
            backend, clock, on_settled=self._settled, recheck=deliverer.recheck, observer=observer
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: dict[LeaseKey, Claim] = {}
        self._slot_waits = SlotWaits()
        self._idle = asyncio.Event()
        """Set while no attempt is in flight."""
        self._idle.set()
        self._in_flight_after_claim = 0
        """Number of attempts in flight after the last claim that returned notifications."""
        self._ended_since_claim = 0
        """Number of attempts that have ended since the last claim started."""
        self._may_have_left_work = True
        """True if due notifications may exist after the last claim.

        The claim may have used up some capacity, or the store does not notify this process of notifications
        that other processes accept. The worker then claims again whenever attempts have ended.
        """
        self._claiming = False
        """True while a claim is in progress. Whether it leaves due notifications is not known yet."""
        self._wake_timer = WakeTimer(self._waker, clock, self._is_busy)
        self._draining = False
        self.lateness = Lateness()
        self.processed = Processed()

    @property
    def lease_ms(self) -> int:
        """Length of the leases that this worker takes, in milliseconds.

        It suffices for the timeout of every delivery mode. A claim whose policy has a longer timeout is
        extended before its attempt, so that such a policy does not delay the recovery of all other claims.
        """
        return self._settings.lease_ms or DEFAULT_LEASE_MS

    @property
    def lanes(self) -> Mapping[str, int]:
        """Lanes that this worker serves, each with its maximum number of attempts in flight."""
        return self._capacity.lane_slots

    @property
    def foreign_providers(self) -> Collection[str]:
        """Providers of due notifications that this process does not have, and leaves to other workers."""
        return self._capacity.foreign

    @property
    def draining(self) -> bool:
        """True if the worker claims nothing more."""
        return self._draining

    @property
    def stale(self) -> int:
        """Number of settlements that the store rejected: the lease was taken over, or the row is gone."""
        return self._settler.stale

    @property
    def in_flight(self) -> int:
        """Number of claimed notifications whose attempt has not ended yet."""
        return len(self._in_flight)

    @property
    def in_flight_counts(self) -> Mapping[tuple[str, str], int]:
        """(lane, provider) → number of attempts in flight."""
        return Counter((claim.lane, claim.provider) for claim in self._in_flight.values())

    @property
    def abandoned(self) -> int:
        """Number of attempts that ended at their deadline, but whose provider has not returned yet.

        Those of earlier workers and of synchronous sends in this process are included.
        """
        return len(self._deliverer.abandoned)

    @property
    def abandoned_counts(self) -> Mapping[str, int]:
        """Provider → number of abandoned attempts, as in `abandoned`."""
        return self._deliverer.abandoned.providers

    @property
    def settle_backlog(self) -> int:
        """Number of settlements that are not written yet."""
        return self._settler.backlog

    @property
    def ms_since_last_claim(self) -> int | None:
        """Milliseconds since the last claim started, or None before the first.

        The value keeps growing if the worker hangs.
        """
        last_claim_ms = self._wake_timer.last_claim_ms
        return None if last_claim_ms is None else self._clock.monotonic_ms() - last_claim_ms

    async def run(self) -> None:
        """Runs until `drain` is called and all attempts in flight are settled.

        Cancel it to stop without waiting.
        """
        background = self._background()
        try:
            while not self._draining:
                wait_ms = await self._claim_once()
                if not self._draining:
                    await self._wake_timer.sleep(wait_ms)
            await self._finish()
        finally:
            self._wake_timer.close()
            await self._stop(background)

    def drain(self) -> None:
        """Stops claiming. `run` returns once the attempts in flight have ended and are settled."""
        self._draining = True
        self._slot_waits.end()
        self._waker.wake()

    def claim_at(self, due_at: int = 0) -> None:
        """Requests a claim at `due_at`, by the store's clock, or now if it has passed.

        Ignores a time after the next poll, because the claim before then returns the next due time.
        """
        wait_ms = due_at - self._store_clock.now()
        if wait_ms <= 0:
            self._waker.wake()
        elif wait_ms < self._settings.poll_ms:
            self._wake_timer.claim_in(wait_ms)

    async def run_once(
        self, limit: int, *, tenant: str | None = None, ids: Collection[str] | None = None
    ) -> Processed:
        """Claims and delivers at most `limit` due notifications, and returns counts of the results.

        If `tenant` or `ids` is given, only notifications of this tenant or with these ids are claimed.
        """
        background = self._background()
        before = self.processed
        self.processed = Processed()
        try:
            left = limit
            chosen = None if ids is None else frozenset(ids)
            while left > 0 and (batch := await self._claim(left, tenant, chosen)).claims:
                left -= len(batch.claims)
                await self._finish()
            await self._finish()
            return self.processed
        finally:
            self.processed = before
            await self._stop(background)

    def settle_reclaimed(self, claims: Sequence[Claim]) -> None:
        """Settles reclaimed notifications.

        An attempt whose lease expired counts as lost. The guard decides about overdue notifications.
        """
        for claim in claims:
            if claim.overdue:
                continue
            try:
                self._add(self._deliverer.settle_lost(claim), claim)
            except Exception:
                log.exception("an expired lease of %s cannot be settled; the others are", claim.id)
        overdue = [claim for claim in claims if claim.overdue]
        if overdue:
            self._spawn(self._guard_only(overdue))

    def _background(self) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._settler.run()), asyncio.create_task(self._extend_leases())]
        for task in tasks:
            task.add_done_callback(self._done)
        return tasks

    async def _claim_once(self) -> int:
        """Makes one claim if there is capacity, and returns how long to sleep afterwards, in milliseconds."""
        poll_ms = self._timers.poll_interval_ms(self._settings.poll_ms)
        self._wake_timer.claim_started()
        if self._settler.blocked:
            return STORE_PAUSE_MS
        if self._settler.backlog > self._settings.settle_backlog:
            return poll_ms
        try:
            batch = await self._claim()
        except StoreError as error:
            log.warning("cannot claim, the store is unavailable; trying again: %s", error)
            self._observer.store_failed("claim", error)
            return STORE_PAUSE_MS
        except Exception:
            log.exception("a claim failed unexpectedly; trying again")
            return STORE_PAUSE_MS
        waits = [poll_ms]
        if batch.next_due_at is not None:
            # Plus 1 ms: both clocks are rounded down, and waking early wastes a claim.
            waits.append(max(1, batch.next_due_at - self._store_clock.now() + 1))
        if self._capacity.next_check_ms is not None:
            waits.append(max(1, self._capacity.next_check_ms))
        return min(waits)

    async def _claim(
        self, limit: int | None = None, tenant: str | None = None, ids: frozenset[str] | None = None
    ) -> ClaimBatch:
        await self._refresh()
        self._ended_since_claim = 0
        request = await self._capacity.request(self.name, self.lease_ms, limit=limit, tenant=tenant, ids=ids)
        self._may_have_left_work = True
        if request is None:
            return ClaimBatch(claims=(), now=self._store_clock.now(), next_due_at=None)
        asked_ms = self._clock.monotonic_ms()
        self._claiming = True
        try:
            batch = await self._backend.claim(request)
        finally:
            self._claiming = False
        self._store_clock.sync(batch.now, asked_ms)
        self._capacity.note_foreign(batch.unlisted)
        self._capacity.note_tokens(request, batch.claims)
        self._may_have_left_work = not self._timers.is_notified or self._capacity.may_have_left_work(
            request, batch.claims
        )
        if batch.claims:
            spent = self._track(batch)
            self._spawn(self._deliver(batch.claims, spent))
        if self._ended_since_claim:
            self._request_claim()
        return batch

    def _track(self, batch: ClaimBatch) -> SpentTokens:
        """Counts claims as in flight and spends their rate limit tokens."""
        now = batch.now
        self._in_flight.update([(lease_key(claim), claim) for claim in batch.claims])
        self._idle.clear()
        self.lateness.note([max(0, now - claim.due_at) for claim in batch.claims])
        self._capacity.take(batch.claims)
        self._in_flight_after_claim = len(self._in_flight)
        self._observer.claimed(batch)
        return self._capacity.spend_tokens(batch.claims)

    def _is_busy(self) -> bool:
        """Returns True if many attempts are in flight and fewer than half have ended since the last claim."""
        return (
            not self._draining
            and len(self._in_flight) >= _BUSY_THRESHOLD
            and self._ended_since_claim * 2 < self._in_flight_after_claim
        )

    async def _refresh(self) -> None:
        await self._breakers.refresh()
        await self._policies.refresh(max_age_ms=RULES_MAX_AGE_MS)

    async def _deliver(self, claims: Sequence[Claim], spent: SpentTokens) -> None:
        """Guards and routes the whole batch, then starts its attempts.

        Providers that support it get their attempts in one call.
        """
        by_id = {claim.id: claim for claim in claims}
        unsettled = dict.fromkeys(by_id)

        def settle(settlement: Settlement) -> None:
            unsettled.pop(settlement.id, None)
            self._add(settlement, by_id[settlement.id])

        try:
            ready = await self._deliverer.guard(claims, settle)
            placed = await self._deliverer.route(ready, settle)
            allowed = await self._within_limits(by_id, placed, spent, settle)
            within = await self._deliverer.extend_short_leases(allowed, settle)
            for one in within:
                claim = by_id[one.claim.id]
                if one.claim.provider != claim.provider:
                    self._move(claim, one.claim)
            if self._on_started is not None:
                self._note_started(self._on_started, within)
            left = self._deliverer.begin(within, self._on_attempts_ended)
            for one in within:
                del by_id[one.claim.id]
        except Exception:  # nothing was sent
            log.exception("%d claims could not be started; they are given back", len(unsettled))
            for id in list(unsettled):
                settle(self._deliverer.give_back(by_id[id]))
            return
        finally:
            self._release(list(by_id.values()))
        for one in left:
            self._spawn(self._attempt(one))

    def _note_started(self, call: Callable[[Sequence[Claim]], None], started: Sequence[ReadyClaim]) -> None:
        try:
            call([one.claim for one in started])
        except BaseException:  # a user's function may raise anything
            log.exception("an on_started callback raised; the worker continues")

    def _move(self, claim: Claim, to: Claim) -> None:
        """Counts an attempt at its new provider instead of the provider that it was claimed for."""
        self._capacity.release([claim])
        self._capacity.take([to])
        self._in_flight[lease_key(claim)] = to

    async def _within_limits(
        self,
        claims: Mapping[str, Claim],
        placed: Sequence[ReadyClaim],
        spent: SpentTokens,
        settle: Callable[[Settlement], None],
    ) -> list[ReadyClaim]:
        """Returns the claims to attempt now.

        Postpones claims that need a rate limit token if their provider has none left.
        """
        moves = {(claims[one.claim.id].provider, one.claim.provider) for one in placed}
        counted, unpaid = {move for move in moves if spent.are_at(*move)}, spent.unpaid
        if len(counted) == len(moves) and not unpaid:
            return list(placed)
        kept: set[str] = set()
        needing: dict[tuple[str, bool], list[ReadyClaim]] = {}
        for one in sorted(placed, key=lambda one: one.claim.mode is not Mode.PRIORITY):
            claim = one.claim
            if claim.id not in unpaid and (claims[claim.id].provider, claim.provider) in counted:
                kept.add(claim.id)
            else:
                reserved = unpaid.get(claim.id, False) or claim.mode is Mode.PRIORITY
                needing.setdefault((claim.provider, reserved), []).append(one)
        for (provider, reserved), those in needing.items():
            try:
                granted, wait_ms = await self._capacity.take_tokens(provider, len(those), reserved=reserved)
            except StoreError as error:
                log.warning(
                    "cannot read a rate limit, the store is unavailable; the notifications are postponed: %s",
                    error,
                )
                granted, wait_ms = 0, STORE_PAUSE_MS
            kept.update(one.claim.id for one in those[:granted])
            moved = [
                one for one in those[:granted] if (claims[one.claim.id].provider, provider) not in counted
            ]
            if moved:
                self._capacity.spend_ramp(provider, len(moved))
            for one in those[granted:]:
                settle(postpone(one.claim, one.policy, wait_ms, Reason.RATE_LIMIT))
        return [one for one in placed if one.claim.id in kept]

    async def _attempt(self, one: ReadyClaim) -> None:
        settlement = None
        try:
            settlement = await self._deliverer.attempt(one, self._on_attempt_expired, self._slot_waits)
        except Exception:
            log.exception("an attempt failed unexpectedly; it counts as lost when its lease expires")
        finally:
            self._on_attempts_ended([(one, settlement)])

    def _on_attempt_expired(self, one: ReadyClaim, settlement: Settlement, task: asyncio.Task[None]) -> None:
        """Settles an attempt whose deadline has passed, without waiting for its provider to return."""
        self._settler.add(settlement, one.claim)
        self._tasks.discard(task)
        leave_behind(task)
        asyncio.get_running_loop().call_later(_RETURN_WITHIN_S, self._warn_if_stuck, one.claim)
        self._release([one.claim])

    def _warn_if_stuck(self, claim: Claim) -> None:
        abandoned = self._deliverer.abandoned
        if claim in abandoned:
            log.warning(
                "provider %s has not returned after the timeout of an attempt; %d of its calls run on "
                "and keep their slots",
                claim.provider,
                abandoned.providers[claim.provider],
            )

    def _on_attempts_ended(self, ended: Sequence[tuple[ReadyClaim, Settlement | None]]) -> None:
        self._settler.add_all(
            [(settlement, one.claim) for one, settlement in ended if settlement is not None]
        )
        self._release([one.claim for one, _ in ended])

    async def _guard_only(self, claims: Sequence[Claim]) -> None:
        await self._deliverer.guard(claims, self._settle_into({claim.id: claim for claim in claims}))

    def _settle_into(self, claims: Mapping[str, Claim]) -> Callable[[Settlement], None]:
        return lambda settlement: self._add(settlement, claims[settlement.id])

    def _add(self, settlement: Settlement, claim: Claim) -> None:
        self._settler.add(settlement, claim)

    def _settled(self, batch: Sequence[SettledClaim], refused: Collection[str]) -> None:
        self._timers.settled(batch, refused)
        count, on_settled = self.processed.count, self._on_settled
        for settlement, _ in batch:
            applied = settlement.id not in refused
            if applied:
                count(settlement)
            try:
                on_settled(settlement, applied)
            except BaseException:  # a user's function may raise anything
                log.exception("an on_settled callback raised; the worker continues")

    def _release(self, claims: Sequence[Claim]) -> None:
        """Counts claims as no longer in flight, and requests a new claim if it may find notifications."""
        in_flight = self._in_flight
        gone = [one for claim in claims if (one := in_flight.pop(lease_key(claim), None)) is not None]
        self._capacity.release(gone)
        self._ended_since_claim += len(gone)
        if not in_flight:
            self._idle.set()
        if claims and not self._claiming:
            self._request_claim()

    def _request_claim(self) -> None:
        """Requests a claim, now or soon, if due notifications may exist."""
        if not self._may_have_left_work:
            return
        if not self._in_flight or self._ended_since_claim * 2 >= self._in_flight_after_claim:
            self._waker.wake()
        else:
            self._wake_timer.claim_soon()

    async def _extend_leases(self) -> None:
        """Extends leases whenever a third of a lease has elapsed, or of the time in which a step settles.

        They are those of the attempts in flight and of results that could not be written yet.
        """
        while True:
            await self._clock.sleep_ms(max(_MIN_EXTEND_INTERVAL_MS, min(self.lease_ms, SETTLING_MS) // 3))
            held_claims = (*self._in_flight.values(), *self._settler.unwritten())
            leases = [Lease(claim.id, claim.token, worker=claim.worker) for claim in held_claims]
            if not leases:
                continue
            try:
                held = await self._backend.extend(leases, self.lease_ms)
            except StoreError as error:
                log.warning("could not extend %d leases: %s", len(leases), error)
                self._observer.store_failed("extend", error)
                continue
            except Exception:
                log.exception("extending %d leases failed unexpectedly; trying again", len(leases))
                continue
            gone = [one for one in held_claims if one.id not in held and lease_key(one) in self._in_flight]
            if gone:
                log.warning("%d leases were taken over while their attempt is in flight", len(gone))

    async def _finish(self) -> None:
        """Waits until all attempts in flight have ended and are settled."""
        while self._tasks or self._in_flight:
            if self._tasks:
                # Not for long at a time, because the task of an attempt past its deadline is left out then.
                await asyncio.wait(self._tasks, timeout=_FINISH_CHECK_S)
            else:
                await self._idle.wait()
        await self._settler.drained()

    async def _stop(self, background: Sequence[asyncio.Task[None]]) -> None:
        """Aborts all tasks and attempts that still run. The leases of these attempts expire later."""
        for task in await _cancel_all([*self._tasks, *background]):
            self._tasks.discard(task)
            leave_behind(task)
        self._release([one.claim for one in self._deliverer.abort_all(self._on_attempts_ended)])
        self._release(list(self._in_flight.values()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a worker task failed unexpectedly; its leases will expire", exc_info=error)


async def _cancel_all(tasks: Sequence[asyncio.Task[None]]) -> Collection[asyncio.Task[None]]:
    """Cancels tasks and returns those that have not ended within a second."""
    for task in tasks:
        task.cancel()
    return (await asyncio.wait(tasks, timeout=_RETURN_WITHIN_S))[1] if tasks else ()


LATENESS_BUCKETS_MS = (5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000, 300_000)


class Processed(Struct, kw_only=True, repr_omit_defaults=True):
    """Counts of settled notifications by result."""

    processed: int = 0
    succeeded: int = 0
    retried: int = 0
    failed: int = 0
    other: int = 0
    """Number of notifications that expired or were skipped, cancelled, postponed or left in doubt."""
    held: tuple[BreakerHold, ...] = ()
    """Breakers that hold due notifications back. Set by a single run. A running worker leaves it empty."""
    left_out: dict[str, Status] = field(default_factory=dict)
    """Id → status of the chosen notifications that did not wait for an attempt."""

    def count(self, settlement: Settlement) -> None:
        """Counts one settlement."""
        self.processed += 1
        status = settlement.status
        if status in SUCCESSFUL:
            self.succeeded += 1
        elif status is Status.RETRYING and settlement.attempt is not None:
            self.retried += 1
        elif status is Status.FAILED:
            self.failed += 1
        else:
            self.other += 1


class Lateness(Struct):
    """Histogram of how long after their due time notifications were claimed."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_BUCKETS_MS) + 1))
    total_ms: int = 0
    longest_ms: int = 0
    seen: int = 0

    def note(self, late_ms: Sequence[int]) -> None:
        """Adds how late each claim of a batch was, in milliseconds. The batch must not be empty."""
        self.seen += len(late_ms)
        self.total_ms += sum(late_ms)
        self.longest_ms = max(self.longest_ms, *late_ms)
        counts = self.counts
        for late in late_ms:
            counts[bisect_left(LATENESS_BUCKETS_MS, late)] += 1
