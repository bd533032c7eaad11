"""The worker: claims what it can start, delivers it, settles in batches, sleeps until there is work."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from msgspec import Struct

from homing.core.decide import postpone
from homing.core.errors import StoreError
from homing.core.model import Claim, ClaimBatch, Lease, Reason, Settlement
from homing.core.observing import NOBODY, Observer, Settled
from homing.core.ports import Backend, Clock, Listens, Waker
from homing.core.states import WAITING
from homing.engine.breakers import Breakers
from homing.engine.deliverer import Deliverer, Ready
from homing.engine.intake import LEASE_MARGIN_MS
from homing.engine.policies import Policies
from homing.engine.rhythm import Rhythm
from homing.engine.room import Room
from homing.engine.settler import Settler
from homing.engine.stats import Lateness, Processed

log = logging.getLogger("homing.worker")

_POLICY_REFRESH_MS = 5_000
_STORE_PAUSE_MS = 1_000
_MUCH = 32
"""So many under way are enough to do for a moment: more is claimed when half of them have ended, or later."""


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """How a worker behaves."""

    poll_ms: int = 1_000
    """How long it sleeps at most when nobody wakes it."""
    lease_ms: int | None = None
    """None: the longest timeout of all policies and ten seconds more."""
    settle_backlog: int = 2_000
    """Settlements that may wait for the store before no more is claimed."""


class Worker:
    """One per process is enough; as many processes as one likes."""

    def __init__(
        self,
        name: str,
        *,
        backend: Backend,
        policies: Policies,
        breakers: Breakers,
        deliverer: Deliverer,
        room: Room,
        clock: Clock,
        waker: Waker,
        settings: WorkerSettings,
        on_settled: Callable[[Settlement, bool], None] = lambda settlement, applied: None,
        observer: Observer = NOBODY,
    ) -> None:
        self.name = name
        self._backend = backend
        self._policies = policies
        self._breakers = breakers
        self._deliverer = deliverer
        self._room = room
        self._clock = clock
        self._waker = waker
        self._settings = settings
        self._on_settled = on_settled
        self._observer = observer
        self._settler = Settler(backend, clock, on_settled=self._settled, observer=observer)
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: dict[tuple[str, int], Claim] = {}
        self._rested = asyncio.Event()
        """Nothing is under way."""
        self._rested.set()
        self._full = 0
        """How many were under way after the last claim that found something."""
        self._released = 0
        """How many of them have ended since."""
        self._is_told = isinstance(backend, Listens) and backend.hears
        """It hears of what other processes accept. Who does not looks often while it is at work."""
        self._tight = True
        """There may be something due that the last claim has left, for lack of room, or did not see."""
        self._claiming = False
        """A claim is under way: whether there is more than it takes, nobody knows yet."""
        self._rhythm = Rhythm(waker, clock, self._is_busy)
        self._draining = False
        self._policies_read_ms: int | None = None
        self.lateness = Lateness()
        self.processed = Processed()

    @property
    def lease_ms(self) -> int:
        return self._settings.lease_ms or self._policies.book.longest_timeout_ms + LEASE_MARGIN_MS

    @property
    def stale(self) -> int:
        return self._settler.stale

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def in_flight_by(self) -> Mapping[tuple[str, str], int]:
        """(lane, provider) → attempts under way."""
        return Counter((claim.lane, claim.provider) for claim in self._in_flight.values())

    @property
    def settle_backlog(self) -> int:
        return self._settler.backlog

    @property
    def looked_ms_ago(self) -> int | None:
        """Since it last went round: one that hangs, in the store or anywhere, grows old."""
        looked_ms = self._rhythm.looked_ms
        return None if looked_ms is None else self._clock.monotonic_ms() - looked_ms

    async def run(self) -> None:
        """Works until `drain` is called and everything under way is settled; cancel it to stop hard."""
        background = self._background()
        try:
            while not self._draining:
                wait_ms = await self._look()
                if not self._draining:
                    await self._rhythm.sleep(wait_ms)
            await self._finish()
        finally:
            self._rhythm.close()
            await self._stop(background)

    def drain(self) -> None:
        """No more claims; what is under way ends and is settled."""
        self._draining = True
        self._waker.wake()

    async def run_once(self, limit: int) -> Processed:
        """Takes at most `limit` due notifications, delivers them, and says what became of them."""
        background = self._background()
        before = self.processed
        self.processed = Processed()
        try:
            left = limit
            for lane in self._room.lane_names():
                while left > 0 and (batch := await self._claim(lane, left)).claims:
                    left -= len(batch.claims)
                    await self._finish()
            await self._finish()
            return self.processed
        finally:
            self.processed = before
            await self._stop(background)

    def adopt(self, claims: Sequence[Claim]) -> None:
        """Settles what a reaper took: lost leases as lost, passed deadlines by the guard."""
        for claim in claims:
            if not claim.overdue:
                self._add(self._deliverer.settle_lost(claim), claim)
        overdue = [claim for claim in claims if claim.overdue]
        if overdue:
            self._spawn(self._guard_only(overdue))

    def _background(self) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._settler.run()), asyncio.create_task(self._keep_leases())]
        for task in tasks:
            task.add_done_callback(self._done)
        return tasks

    async def _look(self) -> int:
        """One claim, if anything can be started; how long to sleep afterwards."""
        poll_ms = self._settings.poll_ms
        self._rhythm.look()
        if self._settler.backlog > self._settings.settle_backlog:
            return poll_ms
        try:
            batch = await self._claim()
        except StoreError as error:
            log.warning("claiming waits for the store: %s", error)
            self._observer.store_failed("claim", error)
            return _STORE_PAUSE_MS
        except Exception:
            log.exception("claiming failed unexpectedly; it is tried again")
            return _STORE_PAUSE_MS
        waits = [poll_ms]
        if batch.next_due_at is not None:
            # A millisecond more: both clocks are cut to whole ones, and a look too early is one in vain.
            waits.append(max(1, batch.next_due_at - self._breakers.now() + 1))
        if self._room.retry_in_ms is not None:
            waits.append(max(1, self._room.retry_in_ms))
        return min(waits)

    async def _claim(self, lane: str | None = None, limit: int | None = None) -> ClaimBatch:
        await self._refresh()
        self._released = 0
        request = await self._room.request(self.name, self.lease_ms, lane=lane, limit=limit)
        self._tight = True
        if request is None:
            return ClaimBatch(claims=(), now=self._breakers.now(), next_due_at=None)
        asked_ms = self._clock.monotonic_ms()
        self._claiming = True
        try:
            batch = await self._backend.claim(request)
        finally:
            self._claiming = False
        self._breakers.learn_time(batch.now, asked_ms)
        self._tight = not self._is_told or self._room.is_tight(request, batch.claims)
        if batch.claims:
            self._take(batch)
            self._spawn(self._deliver(batch.claims))
        if self._released:
            self._look_for_more()
        return batch

    def _take(self, batch: ClaimBatch) -> None:
        now = batch.now
        self._in_flight.update([((claim.id, claim.token), claim) for claim in batch.claims])
        self._rested.clear()
        self.lateness.note([max(0, now - claim.due_at) for claim in batch.claims])
        self._room.take(batch.claims)
        self._room.spend(batch.claims)
        self._full = len(self._in_flight)
        self._observer.claimed(batch)

    def _is_busy(self) -> bool:
        """Much is under way, and less than half of it has ended since the last claim."""
        return not self._draining and len(self._in_flight) >= _MUCH and self._released * 2 < self._full

    async def _refresh(self) -> None:
        await self._breakers.refresh()
        mono = self._clock.monotonic_ms()
        if self._policies_read_ms is None or mono - self._policies_read_ms >= _POLICY_REFRESH_MS:
            await self._policies.refresh()
            self._policies_read_ms = mono

    async def _deliver(self, claims: Sequence[Claim]) -> None:
        """Guard and route once per batch, then all attempts together, as far as their providers can."""
        by_id = {claim.id: claim for claim in claims}
        try:
            settle = self._adding(by_id)
            ready = await self._deliverer.guard(claims, settle)
            placed = await self._deliverer.route(ready, settle)
            within = await self._within_limits(by_id, placed)
            for one in within:
                if one.claim is not (claim := by_id[one.claim.id]):
                    self._move(claim, one.claim)
            left = self._deliverer.begin(within, self._ended)
            for one in within:
                del by_id[one.claim.id]
        finally:
            self._release(list(by_id.values()))
        for one in left:
            self._spawn(self._attempt(one))

    def _move(self, claim: Claim, to: Claim) -> None:
        """It goes to another provider than it was claimed for."""
        self._room.release([claim])
        self._room.take([to])
        self._in_flight[claim.id, claim.token] = to

    async def _within_limits(self, claims: Mapping[str, Claim], placed: Sequence[Ready]) -> list[Ready]:
        """What goes to another provider than it was counted for keeps to that one's rate limit too."""
        ways = {(claims[one.claim.id].provider, one.claim.provider) for one in placed}
        counted = {way for way in ways if self._room.is_counted(*way)}
        if len(counted) == len(ways):
            return list(placed)
        kept = []
        for one in placed:
            if (claims[one.claim.id].provider, one.claim.provider) in counted:
                kept.append(one)
                continue
            try:
                wait_ms = await self._room.token(one.claim.provider)
            except StoreError as error:
                log.warning("a rate limit waits for the store: %s", error)
                wait_ms = _STORE_PAUSE_MS
            if wait_ms:
                self._add(postpone(one.claim, one.policy, wait_ms, Reason.RATE_LIMIT), one.claim)
            else:
                kept.append(one)
        return kept

    async def _attempt(self, one: Ready) -> None:
        settlement = None
        try:
            settlement = await self._deliverer.attempt(one)
        except Exception:
            log.exception("an attempt broke off unexpectedly; its lease will run out")
        finally:
            self._ended([(one, settlement)])

    def _ended(self, ended: Sequence[tuple[Ready, Settlement | None]]) -> None:
        self._settler.add_all(
            [(settlement, one.claim) for one, settlement in ended if settlement is not None]
        )
        self._release([one.claim for one, _ in ended])

    async def _guard_only(self, claims: Sequence[Claim]) -> None:
        await self._deliverer.guard(claims, self._adding({claim.id: claim for claim in claims}))

    def _adding(self, claims: Mapping[str, Claim]) -> Callable[[Settlement], None]:
        return lambda settlement: self._add(settlement, claims[settlement.id])

    def _add(self, settlement: Settlement, claim: Claim) -> None:
        self._settler.add(settlement, claim)

    def _settled(self, batch: Sequence[Settled], refused: Collection[str]) -> None:
        count, told = self.processed.count, self._on_settled
        for settlement, _ in batch:
            applied = settlement.id not in refused
            if applied:
                count(settlement)
                if settlement.status in WAITING and settlement.delay_ms < self._settings.poll_ms:
                    self._rhythm.look_in(settlement.delay_ms)
            try:
                told(settlement, applied)
            except Exception:
                log.exception("a listener to settlements failed; the work goes on without it")

    def _release(self, claims: Sequence[Claim]) -> None:
        """They are no longer under way: there is room for others."""
        under_way = self._in_flight
        gone = [one for claim in claims if (one := under_way.pop((claim.id, claim.token), None)) is not None]
        self._room.release(gone)
        self._released += len(gone)
        if not under_way:
            self._rested.set()
        if claims and not self._claiming:
            self._look_for_more()

    def _look_for_more(self) -> None:
        """There is room; if the last claim may have left something for lack of it, now or in a moment."""
        if not self._tight:
            return
        if not self._in_flight or self._released * 2 >= self._full:
            self._waker.wake()
        else:
            self._rhythm.look_soon()

    async def _keep_leases(self) -> None:
        """Prolongs the leases of long sends, well before they run out."""
        while True:
            await self._clock.sleep_ms(max(50, self.lease_ms // 3))
            leases = [Lease(claim.id, claim.token) for claim in self._in_flight.values()]
            if not leases:
                continue
            try:
                held = await self._backend.extend(leases, self.lease_ms)
            except StoreError as error:
                log.warning("could not prolong %d leases: %s", len(leases), error)
                self._observer.store_failed("extend", error)
                continue
            gone = [one.id for one in leases if one.id not in held and (one.id, one.token) in self._in_flight]
            if gone:
                log.warning("%d leases were taken over while their send is under way", len(gone))

    async def _finish(self) -> None:
        """Waits for what is under way, then for its settlement."""
        while self._tasks or self._in_flight:
            await (asyncio.wait(self._tasks) if self._tasks else self._rested.wait())
        await self._settler.drained()

    async def _stop(self, background: Sequence[asyncio.Task[None]]) -> None:
        """Hard: what is under way by now is left to its lease."""
        await _cancelled([*self._tasks, *background])
        self._release([one.claim for one in self._deliverer.abandon(self._ended)])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("something broke off unexpectedly; leases that it held will run out", exc_info=error)


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
