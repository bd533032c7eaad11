"""Periodic tasks that one worker does for all workers: reclaim leases, purge, check health, raise alerts."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from homing.core.clock_steps import describe_step
from homing.core.errors import StoreError, StoreRejected
from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.states import FINAL
from homing.core.notifications import Filter, Status, lane_of
from homing.core.ports.observers import NULL_OBSERVER, Observer
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Backend, Retention
from homing.core.times import moment
from homing.engine.delivery.breakers import Breakers
from homing.engine.operations.workers import OVERDUE_AFTER_MS
from homing.engine.receipts.receipt_monitor import ReceiptMonitor
from homing.engine.settings import AlertThresholds
from homing.engine.store_clock import StoreClock
from homing.engine.upkeep.alerts import Alerts
from homing.engine.upkeep.lost_commits import LostCommits
from homing.engine.upkeep.thresholds import ThresholdMonitor

log = logging.getLogger("homing.upkeep")

UNSEEN_AFTER_MS = 3_600_000
"""A sink that no process has used for this long gets an alert or, if it is not durable, is removed."""

_CLOCK_EVERY_MS = 5_000
"""Interval between two checks for a suspected step of the store's clock."""

_AFTER_STEP_MS = 120_000
"""After a step of the store's time, sinks and workers have this long to be seen by the new time."""

_OVERDUE_PAGE = 100
"""Number of due notifications per tenant that are searched for lanes without a worker."""


class UpkeepSettings(Struct, frozen=True, kw_only=True):
    """Intervals, step sizes, retention and alert thresholds of upkeep."""

    retention: Retention = Retention()
    thresholds: AlertThresholds = AlertThresholds()
    purge_every_ms: int = 60_000
    purge_step: int = 500
    look_every_ms: int = 60_000
    reap_step: int = 200


class Upkeep:
    """Runs the periodic tasks alongside a worker.

    The store elects a leader, so that only one worker at a time runs them.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        breakers: Breakers,
        clock: Clock,
        store_clock: StoreClock,
        alerts: Alerts,
        worker: str,
        lease_ms: Callable[[], int],
        settle_reclaimed: Callable[[Sequence[Claim]], None],
        lanes: Callable[[], Collection[str]],
        settings: UpkeepSettings,
        providers: Collection[str] = (),
        foreign_providers: Callable[[], Collection[str]] = tuple,
        receipts: ReceiptMonitor,
        lost_commits: LostCommits,
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        self._backend = backend
        self._breakers = breakers
        self._clock = clock
        self._store_clock = store_clock
        self._alerts = alerts
        self._thresholds = ThresholdMonitor(backend, alerts, settings.thresholds)
        self._worker = worker
        self._lease_ms = lease_ms
        self._settle_reclaimed = settle_reclaimed
        self._lanes = lanes
        self._providers = providers
        self._foreign_providers = foreign_providers
        self._settings = settings
        self._receipts = receipts
        self._lost_commits = lost_commits
        self._observer = observer
        self._due_ms: dict[str, int] = {}

    async def run(self) -> None:
        """Runs the tasks at their intervals until cancelled."""
        while True:
            await self.run_once()
            await self._clock.sleep_ms(self._reap_every_ms())

    async def run_once(self, *, reap: bool = True) -> None:
        """Runs the tasks that are due, if this worker is the leader. Logs errors instead of raising them.

        Without `reap`, leases are not reclaimed. A task that fails does not keep the others from running,
        unless the store is unavailable.
        """
        try:
            leads = await self._backend.lead("upkeep", self._worker, 3 * self._reap_every_ms())
            self._lost_commits.check()
            if not leads:
                return
            await self._every("clock", _CLOCK_EVERY_MS, self._check_clock)
            if reap:
                await self._run_task("reclaim", self.reap)
            await self._every("purge", self._settings.purge_every_ms, self.purge)
            await self._every("health", self._health_every_ms(), self._breakers.check_health)
            await self._every("look", self._settings.look_every_ms, self._thresholds.check)
            await self._every("receipts", self._settings.look_every_ms, self._receipts.check)
            if not self._store_clock.has_stepped_within(_AFTER_STEP_MS):
                await self._every("sinks", self._settings.look_every_ms, self._check_sinks)
                await self._every("workers", self._settings.look_every_ms, self._check_workers)
        except StoreError as error:
            log.warning("upkeep cannot run, the store is unavailable; trying again: %s", error)
            self._observer.store_failed("upkeep", error)
        except Exception:
            log.exception("upkeep failed; trying again in the next round")

    async def check_health(self) -> None:
        """Checks the providers with an open breaker before a single run, if that is due.

        A provider that works again is then tried in this run.
        """
        await self._breakers.refresh()
        if self._breakers.any_open():
            await self._every("health", self._health_every_ms(), self._breakers.check_health)

    async def run_after_process(self) -> None:
        """Runs the tasks that are due after a single run of `process`, which has reclaimed leases itself.

        Alerts that were raised shortly before, perhaps by another process, are not repeated.
        """
        mono = self._clock.monotonic_ms()
        if mono < self._due_ms.get("look", mono):
            return
        try:
            await self._alerts.load_memory()
            await self.run_once(reap=False)
            await self._alerts.save_memory()
        except StoreError as error:
            log.warning("upkeep cannot run, the store is unavailable: %s", error)

    async def reap(self) -> int:
        """Reclaims and settles notifications whose lease has expired or whose deadline has passed.

        Returns the number of reclaimed notifications.
        """
        total, step = 0, self._settings.reap_step
        while True:
            asked_ms = self._clock.monotonic_ms()
            batch = await self._backend.reclaim(self._worker, step, self._lease_ms())
            self._store_clock.sync(batch.now, asked_ms)
            self._settle_reclaimed(batch.claims)
            total += len(batch.claims)
            if len(batch.claims) < step:
                return total

    async def purge(
        self,
        retention: Retention | None = None,
        on_step: Callable[[Mapping[str, int]], bool | None] = lambda so_far: None,
    ) -> dict[str, int]:
        """Deletes data that is older than its retention, in small steps, so that other work need not wait.

        Returns the number of deleted rows by kind. `on_step` is called with these counts after each step, and
        ends the purge early by returning True.
        """
        total: dict[str, int] = {}
        if retention is not None:
            await self._lost_commits.record_purge(retention)
        while True:
            removed = await self._backend.prune(
                retention or self._settings.retention, self._settings.purge_step
            )
            self._observer.purged(removed)
            for kind, count in removed.items():
                total[kind] = total.get(kind, 0) + count
            enough = on_step(total)
            if enough or max(removed.values(), default=0) < self._settings.purge_step:
                if retention is not None:
                    await self._lost_commits.record_purge(retention)  # time has passed since the first step
                if total.get("events"):
                    log.warning("%d events were deleted that no sink had published", total["events"])
                return total
            await self._clock.sleep_ms(1)

    async def count_purgeable(
        self,
        retention: Retention | None = None,
        on_step: Callable[[Mapping[str, int]], bool | None] = lambda so_far: None,
    ) -> dict[str, int]:
        """Counts the notifications of all tenants that a purge would delete. Deletes nothing."""
        kept, found = retention or self._settings.retention, {"notifications": 0}
        now = moment(await self._backend.now_ms())
        for tenant in await self._backend.tenants():
            for status in sorted(FINAL):
                until = now - timedelta(milliseconds=kept.age_ms(status))
                async for number in self._older(tenant, status, until):
                    found["notifications"] += number
                    if on_step(found):
                        return found
        return found

    async def _check_clock(self) -> None:
        """Raises an alert while processes do not believe a step of the store's clock."""
        step = await self._backend.suspected_clock_step()
        if step is not None:
            self._alerts.add_once(
                f"clock:{step.suspected_at}",
                "StoreClockStepped",
                f"{describe_step(step)}; Homing goes on by the old time and accepts the new one after ten"
                " minutes; if the new time is wrong, set the clock right before then",
                stepMs=-step.correction_ms,
            )
            await self._alerts.flush()

    async def _check_sinks(self) -> None:
        """Removes local sinks that no process uses any more, and raises an alert about durable ones.

        Also raises alerts about events that a sink refused and that were set aside, and about sinks whose
        backlog is too large or too old.
        """
        now, sinks = await self._backend.now_ms(), await self._backend.sinks()
        seen_until = now - UNSEEN_AFTER_MS
        await self._thresholds.check_sinks(sinks, now)
        for sink in sinks:
            if sink.parked:
                self._alerts.add_once(
                    f"parked:{sink.name}",
                    "SinkEventsParked",
                    f"the sink {sink.name} refused {sink.parked} events, which were set aside; after fixing"
                    f" the sink, publish them with homing sinks retry {sink.name}",
                    sink=sink.name,
                    parked=sink.parked,
                )
            if sink.last_seen_at > seen_until:
                continue
            if sink.durable:
                self._alerts.add_once(
                    f"sink:{sink.name}",
                    "SinkUnseen",
                    f"no process has used the sink {sink.name} for an hour and {sink.waiting} events wait for"
                    f" it; start a worker that has it, or remove it with homing sinks remove {sink.name}",
                    sink=sink.name,
                    waiting=sink.waiting,
                )
            else:
                removed = await self._backend.remove_sink(sink.name)
                log.info("removed the sink %s, which no process uses, with %s events", sink.name, removed)
        await self._alerts.flush()

    async def _check_workers(self) -> None:
        """Raises an alert if work is overdue in a lane, or at a provider, that no live worker has."""
        now, workers = await self._backend.now_ms(), await self._backend.workers()
        live = [one for one in workers if one.is_live(now)]
        unserved = {lane for one in workers for lane in one.lanes}
        unserved -= {*self._lanes(), *(lane for one in live for lane in one.lanes)}
        missing = {*self._foreign_providers(), *(name for one in workers for name in one.providers)}
        missing -= {*self._providers, *(name for one in live for name in one.providers)}
        for tenant in await self._backend.tenants() if unserved or missing else ():
            for one in (await self._backend.waiting(tenant, limit=_OVERDUE_PAGE, ready=True)).items:
                if one.next_retry_at is None or not _is_overdue(one.next_retry_at, now):
                    continue
                lane = lane_of(one.mode, one.channel)
                if one.provider in missing and lane not in unserved:
                    missing.discard(one.provider)
                    self._alerts.add_once(
                        f"provider:{one.provider}",
                        "NoLiveWorker",
                        f"work at the provider {one.provider} is overdue and no live worker has it; start a"
                        " worker that has it, or use another provider with homing retry --provider",
                        provider=one.provider,
                    )
                if lane in unserved:
                    unserved.discard(lane)
                    self._alerts.add_once(
                        f"lane:{lane}",
                        "NoLiveWorker",
                        f"work in the lane {lane} is overdue and all workers that served it have died;"
                        " start a worker with a provider for it, see homing workers",
                        lane=lane,
                    )
        await self._alerts.flush()

    async def _older(self, tenant: str, status: Status, until: datetime) -> AsyncIterator[int]:
        """Yields, page by page, the number of notifications with this status that last changed by `until`."""
        chosen = Filter(statuses=(status,), created_until=until + timedelta(milliseconds=1))
        cursor: str | None = None
        while True:
            page = await self._backend.list(tenant, chosen, limit=self._settings.purge_step, cursor=cursor)
            yield sum(n.updated_at <= until for n in page.items)
            cursor = page.cursor
            if cursor is None:
                return

    async def _every(self, name: str, every_ms: int, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        mono = self._clock.monotonic_ms()
        if mono >= self._due_ms.get(name, mono):
            self._due_ms[name] = mono + every_ms
            await self._run_task(name, work)

    async def _run_task(self, name: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Runs one task. Raises only if the store is unavailable, because then no other task can run."""
        try:
            await work()
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, StoreRejected):
                raise
            log.exception("the upkeep task %s failed; the others go on", name)

    def _reap_every_ms(self) -> int:
        return max(100, min(5_000, self._lease_ms() // 4))

    def _health_every_ms(self) -> int:
        return self._breakers.health_every_ms()


def _is_overdue(due_at: datetime, now: int) -> bool:
    return moment(now) - due_at > timedelta(milliseconds=OVERDUE_AFTER_MS)
