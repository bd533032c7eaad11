"""The engine: the operations of the default tenant, a worker and its background tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace

from homing.core.clock_steps import ClockStep
from homing.core.content.templates import ManagedRenderer
from homing.core.errors import NotFound
from homing.core.ids import uuid7
from homing.core.lifecycle.claims import Acceptance, Claim, Submission
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.outcomes import Settlement
from homing.core.lifecycle.receipts import Callback, LookUpPolicy
from homing.core.lifecycle.states import WAITING
from homing.core.notifications import DEFAULT_TENANT, Mode, Notification, Status
from homing.core.overview import OpenAlert
from homing.core.plain_values import is_storable
from homing.core.ports.bridges import Bridge
from homing.core.ports.observers import Observer
from homing.core.ports.plug_ins import Directory, Renderer, SubscribedSink
from homing.core.ports.providers import Provider
from homing.core.ports.runtime import Clock, RandomSource, RunsBlockingCalls
from homing.core.ports.stores import (
    Backend,
    Inbox,
    InboxEntry,
    RegisteredSink,
    SharedState,
    SupportsMetadataIndexes,
    SupportsWakeUps,
    WorkerHeartbeat,
)
from homing.core.ports.timers import AssignedTimer
from homing.core.recipients.quiet_hours import DEFAULT_TIME_ZONE, QuietHours
from homing.core.retry.policy import Preset, Rule
from homing.core.retry.presets import PRIORITY
from homing.core.routing.breaker import BreakerGate
from homing.core.routing.delivery_modes import MODE_INFO
from homing.core.routing.rate_limits import RateLimitRules
from homing.core.routing.receipt_health import ReceiptHealthPolicy
from homing.core.system_status import SystemStatus, WorkerStatus, find_sink, sink_status
from homing.core.times import moment
from homing.core.version import __version__
from homing.engine.access.api_keys import ApiKeyManager
from homing.engine.access.audit import AuditTrail
from homing.engine.access.tenants import Tenants
from homing.engine.access.web_sessions import WebSessions
from homing.engine.delivery.breakers import Breakers, max_trial_ms
from homing.engine.delivery.capacity import Capacity
from homing.engine.delivery.deliverer import Deliverer
from homing.engine.delivery.guard import SendThrottle
from homing.engine.delivery.loop_watchdog import LoopWatchdog
from homing.engine.delivery.outlets import Outlets
from homing.engine.delivery.timers import StoreTimer, Timers
from homing.engine.delivery.worker import Processed, Worker
from homing.engine.delivery_log import DeliveryLog
from homing.engine.intake.bridges import Bridges
from homing.engine.intake.requests import Intake, IntakeSettings
from homing.engine.intake.spool import Spool
from homing.engine.intake.sql_inbox import InboxReader
from homing.engine.intake.synchronous_send import SynchronousSender, wait_until_ended
from homing.engine.intake.unsubscribe_links import UnsubscribeLinks, UnsubscribeLinkSettings
from homing.engine.observers import combine_observers
from homing.engine.operations.breaker_holds import BreakerHold, find_holds
from homing.engine.operations.jobs import Jobs
from homing.engine.operations.policies import RULES_MAX_AGE_MS, Policies
from homing.engine.operations.providers import ProviderOperations
from homing.engine.operations.queue_overview import QueueOverview, find_left_out, read_queue_overview
from homing.engine.operations.reload_requests import ReloadRequests
from homing.engine.operations.split_overrides import SplitOverrides
from homing.engine.operations.sql_schedule import SqlSchedule
from homing.engine.operations.stored_settings import StoredSettings
from homing.engine.operations.workers import list_workers
from homing.engine.provider_roster import Listed, ProviderRoster
from homing.engine.readiness import EngineStatus
from homing.engine.receipts.callbacks import CallbackHandler, CallbackResult
from homing.engine.receipts.receipt_monitor import ReceiptMonitor
from homing.engine.receipts.status_lookups import StatusLookups
from homing.engine.recipient_directory import RegistryDirectory
from homing.engine.settings import (
    STORE_TIMEOUT_MS,
    LaneSlots,
    ProcessSettings,
    SearchSettings,
    WorkerSettings,
)
from homing.engine.store_clock import StoreClock
from homing.engine.system_runtime import LocalWaker, find_zone
from homing.engine.tenant_api import EngineServices, TenantApi, delegate
from homing.engine.upkeep.alerts import Alerts, list_open_alerts
from homing.engine.upkeep.heartbeats import Heartbeats
from homing.engine.upkeep.lost_commits import LostCommits
from homing.engine.upkeep.metadata_indexes import index_declared_metadata
from homing.engine.upkeep.outbox_relay import OutboxRelay
from homing.engine.upkeep.process_reports import ProcessReport, ProcessReports
from homing.engine.upkeep.upkeep import Upkeep, UpkeepSettings

log = logging.getLogger("homing")

_RECORD_WITHIN_MS = 5_000
"""Time that `close` waits for a locked store to record synchronous sends that timed out."""


class EngineSettings(Struct, frozen=True, kw_only=True):
    """All settings of an engine. The objects it works with are in `EngineParts`."""

    name: str
    """Name of this process. It is stored with attempts, leases and heartbeats."""
    tenant: str = DEFAULT_TENANT
    preset: Preset = PRIORITY
    rules: tuple[Rule, ...] = ()
    intake: IntakeSettings = IntakeSettings()
    worker: WorkerSettings = WorkerSettings()
    process: ProcessSettings = ProcessSettings()
    process_name: str = ""
    """Name of the heartbeats that runs of `process` send. All runs on a host share it, so that a cron job
    leaves one entry. Empty means `name`."""
    slots: LaneSlots = LaneSlots()
    upkeep: UpkeepSettings = UpkeepSettings()
    search: SearchSettings = SearchSettings()
    look_ups: LookUpPolicy = LookUpPolicy()
    receipts: ReceiptHealthPolicy = ReceiptHealthPolicy()
    quiet_hours: QuietHours = QuietHours()
    time_zone: str = DEFAULT_TIME_ZONE
    """Time zone for the quiet hours of recipients that have no time zone of their own."""
    paces: RateLimitRules = RateLimitRules()
    links: UnsubscribeLinkSettings = UnsubscribeLinkSettings()
    queue_names: Mapping[Mode, str] = field(
        default_factory=lambda: {mode: info.queue_name for mode, info in MODE_INFO.items()}
    )
    spool: Path | None = None
    trace_share: float = 0.0
    """Share of notifications that are traced, for the trace context of their events. 0 if tracing is off."""
    store_timeout_ms: int = STORE_TIMEOUT_MS
    """Maximum time that a request, or a chunk of many requests, waits for the store."""


class EngineParts(Struct, frozen=True, kw_only=True):
    """The objects that an engine works with: store, providers, clock and optional extensions."""

    backend: Backend
    roster: ProviderRoster
    clock: Clock
    random_source: RandomSource
    sinks: Mapping[str, SubscribedSink] = field(default_factory=dict)
    directory: Directory | None = None
    renderer: Renderer | None = None
    observers: tuple[Observer, ...] = ()
    timers: Mapping[str, AssignedTimer] = field(default_factory=dict)
    """Timers that wake the workers of other processes. The worker of this process needs none."""
    bridges: Mapping[str, Bridge] = field(default_factory=dict)
    """Sources of requests, which run only if they are started."""


def _provider_operations(engine: Engine) -> ProviderOperations:
    return engine._provider_operations


def _status(engine: Engine) -> EngineStatus:
    return engine._status


class Engine(TenantApi):
    """A delivery engine: accepts notifications, delivers them and records the results.

    Use `async with` to open and close an engine. As a `TenantApi`, it offers its default tenant's operations.
    """

    def __init__(self, parts: EngineParts, settings: EngineSettings) -> None:
        self.settings = settings
        policies = Policies(
            settings.preset,
            settings.rules,
            registry=parts.backend,
            clock=parts.clock,
            random_source=parts.random_source,
        )
        splits = SplitOverrides(parts.backend, parts.roster)
        policies.read_along = splits.refresh
        alerts = Alerts(parts.backend, parts.clock, parts.random_source)
        lost_commits = LostCommits(parts.backend, parts.clock, alerts, settings.upkeep.retention)
        self._lost_commits = lost_commits
        observer = combine_observers((DeliveryLog(), *parts.observers))
        self._store_clock = StoreClock(parts.backend.now_ms, parts.clock)
        breakers = Breakers(
            roster=parts.roster,
            backend=parts.backend,
            clock=parts.clock,
            store_clock=self._store_clock,
            alerts=alerts,
            worker=settings.name,
            observer=observer,
            wake_worker=lambda: self._timers.wake(),
        )
        directory = parts.directory or RegistryDirectory(parts.backend)
        self._outlets = Outlets(parts.roster, parts.clock)
        self._deliverer = Deliverer(
            backend=parts.backend,
            roster=parts.roster,
            policies=policies,
            breakers=breakers,
            outlets=self._outlets,
            alerts=alerts,
            directory=directory,
            pacing=SendThrottle(
                parts.backend,
                parts.clock,
                quiet_hours=settings.quiet_hours,
                paces=settings.paces,
                time_zone=find_zone(settings.time_zone) or UTC,
            ),
            clock=parts.clock,
            store_clock=self._store_clock,
            random_source=parts.random_source,
        )
        self.unsubscribe_links = UnsubscribeLinks(parts.backend, directory, settings.links)
        spool = None
        if settings.spool is not None:
            spool = Spool(settings.spool, observer, self._spool_accepted)
        intake = Intake(
            store=parts.backend,
            spool=spool,
            roster=parts.roster,
            policies=policies,
            directory=directory,
            renderer=parts.renderer,
            clock=parts.clock,
            random_source=parts.random_source,
            settings=settings.intake,
            name=settings.name,
            usable=breakers.may_take_new,
            links=self.unsubscribe_links,
        )
        self._synchronous = synchronous = SynchronousSender(
            backend=parts.backend,
            roster=parts.roster,
            breakers=breakers,
            deliverer=self._deliverer,
            clock=parts.clock,
            observer=observer,
            lost_commits=lost_commits,
        )
        self._inbox_waker = LocalWaker()
        self._timers = Timers(
            parts.timers,
            wake=lambda due_at=0: self.worker.claim_at(due_at),
            store_timer=StoreTimer(parts.backend, self._inbox_waker.wake)
            if isinstance(parts.backend, SupportsWakeUps)
            else None,
            store_now_ms=self._store_clock.now,
            clock=parts.clock,
        )
        upkeep = Upkeep(
            backend=parts.backend,
            breakers=breakers,
            clock=parts.clock,
            store_clock=self._store_clock,
            alerts=alerts,
            worker=settings.name,
            lease_ms=lambda: self.worker.lease_ms,
            settle_reclaimed=lambda claims: self.worker.settle_reclaimed(claims),
            lanes=lambda: self.worker.lanes,
            providers=tuple(listed.id for listed in parts.roster),
            foreign_providers=lambda: self.worker.foreign_providers,
            settings=settings.upkeep,
            receipts=ReceiptMonitor(
                backend=parts.backend, roster=parts.roster, breakers=breakers, policy=settings.receipts
            ),
            observer=observer,
            lost_commits=lost_commits,
        )
        tools = EngineServices(
            backend=parts.backend,
            roster=parts.roster,
            clock=parts.clock,
            random_source=parts.random_source,
            policies=policies,
            splits=splits,
            breakers=breakers,
            intake=intake,
            upkeep=upkeep,
            observer=observer,
            spool=spool,
            spool_waker=LocalWaker(),
            send_synchronously=synchronous.send,
            queue_name=settings.queue_names.__getitem__,
            timers=self._timers,
            lost_commits=lost_commits,
            store_timeout_ms=settings.store_timeout_ms,
            thresholds=settings.upkeep.thresholds,
            locales=settings.intake.locales,
            press=parts.renderer if isinstance(parts.renderer, ManagedRenderer) else None,
        )
        super().__init__(tools, settings.tenant)
        self._backend = parts.backend
        self._roster = parts.roster
        self._clock = parts.clock
        self._random_source = parts.random_source
        self._breakers = breakers
        self._intake = intake
        self._upkeep = upkeep
        self._observer = observer
        self._provider_operations = ProviderOperations(
            settings.tenant,
            roster=parts.roster,
            breakers=breakers,
            splits=splits,
            clock=parts.clock,
            random_source=parts.random_source,
        )
        self.splits = splits
        """How the first attempts of each channel are split between its providers, and the overrides."""
        self.bridges = Bridges(
            parts.bridges,
            intake=intake,
            accept=self._sends.accept_prepared,
            probe_store=parts.backend.now_ms,
            clock=parts.clock,
            tenant=settings.tenant,
        )
        """Sources of requests, such as message brokers. They run only if they are started."""
        self._relay = OutboxRelay(
            parts.backend, parts.sinks, parts.clock, settings.name, trace_share=settings.trace_share
        )
        self._status = EngineStatus(
            backend=parts.backend,
            roster=parts.roster,
            breakers=breakers,
            worker=lambda: self.worker,
            worker_task=lambda: self._work,
            poll_ms=settings.worker.poll_ms,
            timers=self._timers,
            bridges=self.bridges,
            relay=self._relay,
            unattended_after_ms=settings.upkeep.thresholds.unattended_ms,
        )
        self.stored_settings = StoredSettings(parts.backend, settings.process)
        """Settings in the store that can be changed at runtime."""
        self.reload_requests = ReloadRequests(parts.backend, settings.name)
        """Requests to all processes to read their settings again."""
        self.tenants = Tenants(parts.backend, parts.clock)
        self.keys = ApiKeyManager(parts.backend, self.tenants, parts.clock, parts.random_source)
        self.audit = AuditTrail(parts.backend, self.tenants, parts.clock)
        self.web_sessions = WebSessions(
            parts.backend, self.keys, self.tenants, parts.clock, parts.random_source
        )
        self.jobs = Jobs(
            backend=parts.backend,
            clock=parts.clock,
            random_source=parts.random_source,
            worker=settings.name,
            tenant_api=self.of,
        )
        self._callbacks = CallbackHandler(
            backend=parts.backend,
            roster=parts.roster,
            policies=policies,
            clock=parts.clock,
            alerts=alerts,
            wake=self._timers.wake,
            observer=observer,
        )
        self.on_settled: Callable[[Settlement, bool], None] = lambda settlement, applied: None
        """Function that is called with each settlement of this worker, and True if it was applied."""
        self.on_started: Callable[[Sequence[Claim]], None] | None = None
        """Function that is called with the claims of a batch whose attempts start now, or None.

        Set it before a worker is started or `process` is called.
        """
        lost_commits.on_change(self._relay.register_again)
        self._reports = ProcessReports(
            parts.backend,
            settings.name,
            lambda: ProcessReport(bridges=self.bridges.states(), timers=self._timers.states()),
        )
        self._heartbeats = Heartbeats(
            parts.backend,
            parts.clock,
            self._heartbeat,
            run_name=settings.process_name or settings.name,
            reports=self._reports,
        )
        self._started_ms = 0
        """Monotonic time at which the worker was started."""
        self.worker: Worker = self._new_worker()
        self._look_ups = StatusLookups(
            backend=parts.backend,
            roster=parts.roster,
            breakers=breakers,
            callbacks=self._callbacks,
            clock=parts.clock,
            worker=settings.name,
            policy=settings.look_ups,
        )
        self._inbox = self._inbox_reader(parts.backend) if isinstance(parts.backend, Inbox) else None
        self._watchdog = None if isinstance(parts.clock, RunsBlockingCalls) else LoopWatchdog()
        """Watches the event loop while a worker runs. None on virtual time, which has no threads."""
        self._running: list[asyncio.Task[None]] = []
        self._replacing: set[asyncio.Task[None]] = set()
        """Tasks that close replaced providers once no attempt uses them any more."""
        self._work: asyncio.Task[None] | None = None
        self._spooler: asyncio.Task[None] | None = None

    @property
    def roster(self) -> ProviderRoster:
        """The configured providers."""
        return self._roster

    @property
    def shared(self) -> SharedState:
        """State shared by all processes that use the store: breakers, rate limits and leadership."""
        return self._backend

    # Lifecycle -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self, *, create: bool = True) -> None:
        """Connects the store, brings its schema up to date and registers the sinks.

        Raises `SchemaError` if there is no schema yet and `create` is False.
        """
        await self._backend.open()
        await self._backend.migrate(create=create)
        self._lost_commits.begin()
        await self._relay.register()
        await self.policies.refresh()
        await self._start_timers()
        if self.settings.spool is not None:
            self._spooler = asyncio.create_task(self._sends.drain_spool(), name="homing-spool")

    async def close(self) -> None:
        """Stops bridges, waits for attempts in flight and settles them, and closes the store and providers.

        Aborts running jobs.
        """
        await self.bridges.stop()
        await self.jobs.close()
        await self.stop_worker()
        await self._synchronous.close(_RECORD_WITHIN_MS)
        if self._spooler is not None:
            self._spooler.cancel()
            await asyncio.gather(self._spooler, return_exceptions=True)
        await self._lost_commits.close()
        await self._timers.close()
        await self._relay.close()
        for task in self._replacing:
            task.cancel()
        await self._roster.close()
        await self.keys.close()
        await self._backend.close()

    def start_worker(self) -> None:
        """Starts a worker and its background tasks in this process. Does nothing if they already run."""
        if self._running:
            return
        self.worker = self._new_worker()
        if self._watchdog is not None:
            self._watchdog.start()
        self._started_ms = self._clock.monotonic_ms()
        self._running = [
            asyncio.create_task(self.worker.run(), name="homing-worker"),
            asyncio.create_task(self._upkeep.run(), name="homing-upkeep"),
            asyncio.create_task(self._relay.run(), name="homing-relay"),
            asyncio.create_task(self._heartbeats.run(), name="homing-heartbeat"),
        ]
        if isinstance(self._backend, SupportsMetadataIndexes):
            indexing = index_declared_metadata(self._backend, self.settings.search.metadata_keys, self._clock)
            self._running.append(asyncio.create_task(indexing, name="homing-metadata-indexes"))
        if self._look_ups.possible:
            self._running.append(asyncio.create_task(self._look_ups.run(), name="homing-look-ups"))
        if self._inbox is not None:
            self._running.append(asyncio.create_task(self._inbox.run(), name="homing-inbox"))
        self._running.append(asyncio.create_task(self._timers.listen(), name="homing-listen"))
        self._work = self._running[0]

    async def stop_worker(self, *, hard: bool = False) -> None:
        """Stops claiming and waits until attempts in flight have ended and are settled.

        With `hard`, aborts the attempts and lets their leases expire. A call with `hard` also ends an earlier
        call that still waits.
        """
        if hard and self._work is not None:
            self._work.cancel()
        if not self._running:
            return
        work, *others = self._running
        self._running = []
        self.worker.drain()
        await asyncio.gather(work, return_exceptions=True)
        if self._watchdog is not None:
            self._watchdog.stop()
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._heartbeats.stop()
        await self._relay.run_once()

    async def run_worker(self) -> None:
        """Runs a worker until this call is cancelled or the worker is drained."""
        self.start_worker()
        work = self._running[0]
        try:
            await asyncio.wait([work])
        finally:
            await self.stop_worker()
        if not work.cancelled():
            work.result()

    async def process(
        self, limit: int | None = None, *, tenant: str | None = None, ids: Collection[str] | None = None
    ) -> Processed:
        """Claims and delivers due notifications once, and returns counts of the results.

        At most `limit` notifications are delivered, or the stored batch size if it is None. First accepts
        spooled and inbox requests, and settles up to `limit` notifications with an expired lease or a missed
        deadline. If no worker runs in this process, also sends a heartbeat, purges and raises alerts, each at
        most once per minute. Inbox requests that become dead letters count as failed. Publishes events at
        the end.

        With `tenant`, only the notifications of that tenant are delivered. With `ids`, only these are, even
        if their next attempt is not due yet. Such a run sends no heartbeat, purges nothing and raises no
        alerts. One for `ids` also accepts no requests and settles no expired leases. Chosen notifications
        that do not wait are left out, and named in `left_out`. Raises `NotFound` if the tenant has no
        notification with one of the ids.
        """
        if limit is None:
            limit = await self.stored_settings.batch_size() if ids is None else max(1, len(ids))
        await self.policies.refresh(max_age_ms=RULES_MAX_AGE_MS)
        keeps_up = tenant is None and ids is None and not self._running
        if keeps_up:
            await self._heartbeats.beat_for_run()
        refused, left_out = 0, dict[str, Status]()
        if ids is None:
            await self._sends.drain_spool_once()
            refused = 0 if self._inbox is None else (await self._inbox.run_once()).refused
        else:
            tenant = tenant or self.tenant
            left_out = await self._make_due(tenant, ids)
        worker = self._new_worker()
        if keeps_up:
            self.worker = worker
            await self._upkeep.check_health()
        if ids is None:
            asked_ms = self._clock.monotonic_ms()
            batch = await self._backend.reclaim(self.settings.name, limit, worker.lease_ms)
            self._store_clock.sync(batch.now, asked_ms)
            worker.settle_reclaimed(batch.claims)
        self._breakers.claims_once = not self._running
        try:
            result = await worker.run_once(limit, tenant=tenant, ids=ids)
        finally:
            self._breakers.claims_once = False
        result.processed += refused
        result.failed += refused
        result.left_out, result.held = left_out, await self._find_holds(limit, tenant, ids)
        self._lost_commits.check()
        if keeps_up:
            await self._relay.mark_seen()  # the upkeep removes sinks that no process uses
            await self._upkeep.run_after_process()
        await self._relay.run_until_empty()
        return result

    async def _make_due(self, tenant: str, ids: Collection[str]) -> dict[str, Status]:
        """Makes those due that wait for a later attempt. Returns the statuses of those that do not wait."""
        chosen, now = await self._read_chosen(tenant, ids), moment(await self._backend.now_ms())
        early = [n.id for n in chosen if n.status in WAITING and n.next_retry_at and n.next_retry_at > now]
        if early:
            command = Command(name=CommandName.RESCHEDULE, who="process", why="chosen for this run")
            await self._backend.amend(tenant, early, command)
        return find_left_out(chosen)

    async def _read_chosen(self, tenant: str | None, ids: Collection[str]) -> list[Notification]:
        return [await self.of(tenant or self.tenant).get(id) for id in dict.fromkeys(ids)]

    async def _find_holds(
        self, limit: int, tenant: str | None, ids: Collection[str] | None
    ) -> tuple[BreakerHold, ...]:
        """Returns the breakers that hold back due notifications, at most `limit`, or those with the ids."""
        if all(self._breakers.gate(listed.id) is not BreakerGate.STOP for listed in self._roster):
            return ()
        if ids is None:
            due = list((await self._backend.waiting(tenant, limit=limit, ready=True)).items)
        else:
            chosen, now = await self._read_chosen(tenant, ids), moment(await self._backend.now_ms())
            due = [n for n in chosen if n.status in WAITING and (n.next_retry_at or now) <= now]
        return find_holds(due, self._roster, self._breakers)

    # Providers and status ------------------------------------------------------------------------

    providers = delegate(_provider_operations, ProviderOperations.providers)
    check_providers = delegate(_provider_operations, ProviderOperations.check_providers)
    try_provider = delegate(_provider_operations, ProviderOperations.try_provider)
    force_breaker = delegate(_provider_operations, ProviderOperations.force_breaker)
    snapshot = delegate(_status, EngineStatus.snapshot)
    queue_depths = delegate(_status, EngineStatus.queue_depths)
    sink_backlogs = delegate(_status, EngineStatus.sink_backlogs)
    readiness = delegate(_status, EngineStatus.readiness)
    unattended_ms = delegate(_status, EngineStatus.unattended_ms)

    async def replace_providers(self, changed: Sequence[Listed]) -> None:
        """Replaces configured providers by others with the same id and channels, for example credentials.

        Attempts in flight end with the provider that they began with. A provider whose breaker is open is
        checked at once, so that corrected credentials need not wait for the breaker.
        """
        old = self._roster.replace(changed)
        wait_ms = max_trial_ms(self.policies.book)
        task = asyncio.create_task(self._close_replaced(old, wait_ms), name="homing-replaced-providers")
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)
        await self._breakers.check_replaced([listed.id for listed in changed])

    async def _close_replaced(self, providers: Sequence[Provider], wait_ms: int) -> None:
        await self._clock.sleep_ms(wait_ms)
        await self._roster.close_replaced(providers)

    async def queue_overview(
        self, tenant: str | None = None, *, limit: int = 50, ids: Collection[str] | None = None
    ) -> QueueOverview:
        """Returns the state of the queue and what a run of `process` would find, of one tenant or of all."""
        chosen = None if ids is None else await self._read_chosen(tenant, ids)
        found = await read_queue_overview(self._backend, tenant, limit, chosen)
        await self._breakers.try_refresh()
        return replace(found, held=find_holds(found.due, self._roster, self._breakers))

    async def workers(self) -> tuple[WorkerStatus, ...]:
        """Returns the workers of all processes that use the store. Those that died are listed for a day."""
        return await list_workers(self._backend)

    async def system(self) -> SystemStatus:
        """Returns the workers, sinks, bridges and timers of all processes, with what waits for each."""
        bridges, timers = await self._reports.read()
        return SystemStatus(
            now=moment(await self._backend.now_ms()),
            workers=await self.workers(),
            sinks=tuple(map(sink_status, await self.sinks())),
            bridges=bridges,
            timers=timers,
        )

    async def open_alerts(self) -> tuple[OpenAlert, ...]:
        """Returns the alerts whose cause still exists, the newest first. They are about all tenants."""
        found = await list_open_alerts(self._backend)
        if any(one.name == "NoProviderLeft" for one in found):  # it ends as soon as a provider works again
            await self._breakers.try_refresh()
            found = tuple(
                one
                for one in found
                if one.name != "NoProviderLeft" or not self._breakers.any_closed(one.details["channel"])
            )
        return found

    async def suspected_clock_step(self) -> ClockStep | None:
        """Returns the step of the store's clock that processes do not believe yet, or None."""
        return await self._backend.suspected_clock_step()

    async def sinks(self) -> tuple[RegisteredSink, ...]:
        """Returns the registered sinks of all processes, with the number of events that wait for each."""
        return await self._backend.sinks()

    async def remove_sink(self, name: str) -> int:
        """Removes a sink and the events that wait for it, and returns their number.

        A process that still has the sink registers it again when it starts. Raises `NotFound` if no sink has
        this name.
        """
        removed = await self._backend.remove_sink(name)
        if removed is None:
            raise NotFound(f"there is no sink {name!r}")
        self._relay.note_removed(name)
        return removed

    async def release_sink_events(self, name: str) -> int:
        """Makes the parked events of a sink wait for publication again, and returns their number.

        Raises `NotFound` if no sink has this name.
        """
        find_sink(await self._backend.sinks(), name)
        return await self._backend.release_events(name)

    async def wait(self, id: str, *, timeout_ms: int = 60_000) -> Notification:
        """Waits until a notification has ended or is in doubt, at most `timeout_ms`, and returns it."""
        found = None
        if is_storable(id):
            found = await wait_until_ended(self._backend, self._clock, self.tenant, id, timeout_ms)
        if found is None:
            raise NotFound(f"there is no notification {id} for tenant {self.tenant!r}")
        return found

    async def handle_callback(self, provider: str, callback: Callback) -> CallbackResult:
        """Verifies a provider's callback and applies its receipts.

        Receipts may arrive repeatedly and in any order; each is applied once. Raises `CallbackRefused` and
        changes nothing if the provider did not sign the callback.
        """
        return await self._callbacks.handle_callback(provider, callback)

    async def _start_timers(self) -> None:
        if self._timers.given:
            await self._store_clock.refresh()  # due times are times of the store
            self._timers.start()

    def _spool_accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance]) -> None:
        self._timers.accepted(batch, answers)
        self._lost_commits.acknowledged(answers)

    def _heartbeat(self) -> WorkerHeartbeat:
        return WorkerHeartbeat(
            name=self.settings.name,
            version=__version__,
            lanes=self.worker.lanes,
            providers=tuple(listed.id for listed in self._roster),
            running_ms=self._clock.monotonic_ms() - self._started_ms,
            draining=self.worker.draining,
        )

    def _inbox_reader(self, inbox: Inbox) -> InboxReader:
        schedule = SqlSchedule(inbox, self.policies)
        self.policies.after_change = schedule.store
        return InboxReader(
            inbox,
            intake=self._intake,
            policies=self.policies,
            schedule=schedule,
            resend_request=self._resend_request,
            purge=self._upkeep.purge,
            clock=self._clock,
            waker=self._inbox_waker,
            wake_worker=self._timers.wake,
            new_id=lambda: uuid7(self._clock.now_ms(), self._random_source.getrandbits(74)),
            poll_ms=lambda: self._timers.poll_interval_ms(self.settings.worker.poll_ms),
            observer=self._observer,
        )

    async def _resend_request(self, entry: InboxEntry) -> bool:
        return await self.of(entry.tenant)._commands.resend_if_request(
            entry.notification_id or "", new_id=entry.id, who=entry.who, why=entry.why
        )

    def _new_worker(self) -> Worker:
        return Worker(
            self.settings.name,
            backend=self._backend,
            policies=self.policies,
            breakers=self._breakers,
            deliverer=self._deliverer,
            capacity=Capacity(
                roster=self._roster,
                breakers=self._breakers,
                outlets=self._outlets,
                abandoned=self._deliverer.abandoned,
                backend=self._backend,
                clock=self._clock,
                slots=self.settings.slots,
            ),
            clock=self._clock,
            store_clock=self._store_clock,
            timers=self._timers,
            settings=self.settings.worker,
            on_settled=lambda settlement, applied: self.on_settled(settlement, applied),
            on_started=self.on_started,
            observer=self._observer,
        )
