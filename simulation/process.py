"""A simulated process: it has its own engine, and can crash, freeze and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from homing.core.errors import NotFound, SinkUnavailable, StoreError
from homing.core.lifecycle.events import Event
from homing.core.lifecycle.receipts import LookUpPolicy
from homing.core.ports.plug_ins import SubscribedSink
from homing.core.ports.providers import Provider
from homing.core.ports.timers import AssignedTimer
from homing.core.retry.presets import PRIORITY
from homing.engine.engine import Engine, EngineParts, EngineSettings
from homing.engine.provider_roster import Listed, ProviderRoster
from homing.engine.settings import AlertThresholds, WorkerSettings
from homing.engine.upkeep.upkeep import UpkeepSettings
from homing.rehearsal.virtual_time import START_MS, TASK_GROUP, VirtualClock, VirtualLoop
from simulation.checkers.shared_state import MAIN_SINK
from simulation.invariants import InvariantChecker
from simulation.message_broker import SimBridge, SimulatedBroker
from simulation.plan import FaultPlan
from simulation.poison import ScriptedInbox, is_poisoned_event
from simulation.shadow_state import SimulationState
from simulation.simulated_providers import (
    SimulatedLookupClient,
    SimulatedProvider,
    SimulatedProviderClient,
    blocking_client,
)
from simulation.store_boundary import FaultyInboxStore, FaultyStore
from simulation.timer_server import SimTimer, SimulatedTimerServer

_T = TypeVar("_T")

SINK_LAG_MS = 120_000
"""Age of a waiting event from which an alert is raised."""

SINKS = (MAIN_SINK, "audit")
"""Names of the sinks. Every process has the first one."""


class SimProcess:
    """One simulated process. All its tasks belong to one group of the virtual loop."""

    def __init__(
        self,
        name: str,
        *,
        loop: VirtualLoop,
        state: SimulationState,
        watch: InvariantChecker,
        providers: Sequence[SimulatedProvider],
        fault_plan: FaultPlan,
        store_is_away: Callable[[str], bool],
        on_death: Callable[[SimProcess], None],
        timer_server: SimulatedTimerServer | None = None,
        broker: SimulatedBroker | None = None,
        inbox: ScriptedInbox | None = None,
        spool: Path | None = None,
        fronts: Sequence[str] = (),
        cron: bool = False,
    ) -> None:
        self.name = name
        self.dead = False
        self.paused = False
        self.stopping = False
        self.cron = cron
        self.working_since_ms: int | None = None
        """Time since the run began at which the worker was started. None before that."""
        self._loop = loop
        self._state = state
        self._watch = watch
        self._providers = providers
        self._rng = Random(f"{state.plan.seed}/{name}")
        self._by_hand = Random(f"{state.plan.seed}/{name}/by hand")
        self._clock = VirtualClock(
            loop,
            wall_ms=START_MS + self._rng.randrange(-2_000, 2_000),
            monotonic_from_ms=self._rng.randrange(1, 10**9),
        )
        self.store_is_away = store_is_away
        self._on_death = on_death
        self._timer_server = timer_server
        self._broker = broker
        self._spool = spool
        self.sinks = SINKS if Random(f"{state.plan.seed}/{name}/sinks").random() < 0.5 else SINKS[:1]
        """Names of the sinks of this process. They differ between processes, as in a rolling deploy."""
        way = Random(f"{state.plan.seed}/{name}/way")
        self.store = (
            FaultyStore(self, watch, fault_plan, way)
            if inbox is None
            else FaultyInboxStore(self, watch, fault_plan, way, inbox)
        )
        self._context = copy_context()
        self._context.run(TASK_GROUP.set, name)
        self.fronts = {tenant: self._context.run(self._engine, tenant) for tenant in fronts}
        """Tenant → engine without a worker. Only the operator's process has these."""
        self.engine = self._context.run(self._engine, state.plan.tenants[0])

    @property
    def awake(self) -> bool:
        return not (self.dead or self.paused or self.stopping)

    def start(self) -> None:
        self._state.note(self.name, "starts")
        self.run(self._open())

    def run(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Runs a coroutine in this process. A crash cancels it."""
        return self._loop.create_task(work, context=self._context)

    def crash(self, why: str) -> None:
        """Cancels all tasks of the process. No cleanup reaches the store."""
        if self.dead:
            return
        self._state.note(self.name, f"crashes {why}")
        self._die()
        number = self._loop.cancel_group(self.name)
        self._loop.thaw(self.name)
        self._state.note(self.name, f"{number} tasks cancelled")

    def pause(self) -> None:
        """Freezes the process while time goes on for all others, like a suspended machine."""
        self.paused = True
        self._state.note(self.name, "is paused")
        self._state.paused_ms[self.name] = 10**15
        self._loop.freeze(self.name)

    def resume(self) -> None:
        if self.paused and not self.dead:
            self.paused = False
            self._state.note(self.name, "goes on")
            self._state.paused_ms[self.name] = self._state.ms
            self._loop.thaw(self.name)

    async def stop(self) -> None:
        """Stops the process gracefully: attempts in flight end and are settled first."""
        self.stopping = True
        self._state.note(self.name, "stopping")
        work = self.run(self._stop_engine())
        await asyncio.wait({work})
        if not self.dead:
            self._die()
            self._loop.cancel_group(self.name)
            self._state.note(self.name, "has stopped")
            if (error := work.exception()) is not None:
                raise error

    async def _stop_engine(self) -> None:
        await self.engine.bridges.stop()
        await self.engine.stop_worker()

    def _die(self) -> None:
        self.dead = True
        self._state.dead.add(self.name)
        self._on_death(self)

    async def _open(self) -> None:
        while True:
            try:
                await self.engine.open()
                break
            except StoreError:
                await asyncio.sleep(1)
        if self.cron:
            await self._process_now_and_then()
        elif not self.fronts:
            self.engine.start_worker()
            self.engine.bridges.start()
            self.working_since_ms = self._state.ms

    async def _process_now_and_then(self) -> None:
        """Processes due rows every few seconds, like a cron job that runs `homing process`."""
        while not self.stopping:
            try:
                tenant, ids = self._choose()
                await self.engine.process(20, tenant=tenant, ids=ids)
            except StoreError:
                self._state.note(self.name, "could not process: store unavailable")
            except NotFound:
                self._state.note(self.name, "could not process: a chosen notification was purged")
            await asyncio.sleep(self._rng.randrange(1_000, 8_000) / 1000)

    def _choose(self) -> tuple[str | None, list[str] | None]:
        """Returns the tenant and the ids to process, like those of `homing process --tenant` and `--id`.

        Returns None for both if everything is processed, and for the ids if everything of the tenant is.
        """
        drawn = self._by_hand.random() if self._state.plan.by_hand else 0.0
        if drawn < 0.4:
            return None, None
        tenant = self._by_hand.choice(self._state.plan.tenants)
        ids = [shadow.id for shadow in self._state.shadows.values() if shadow.tenant == tenant]
        if drawn < 0.7 or not ids:
            return tenant, None
        newest = ids[-40:]
        return tenant, self._by_hand.sample(newest, min(len(newest), self._by_hand.randrange(1, 9)))

    def _client(self, provider: SimulatedProvider) -> Provider:
        if provider.plan.blocking:
            return blocking_client(provider, self)
        kind = SimulatedLookupClient if provider.plan.answers else SimulatedProviderClient
        rng = Random(f"{self._state.plan.seed}/{self.name}/{provider.plan.id}")
        return kind(provider, self, begins=rng.random() < 0.5)

    def _engine(self, tenant: str) -> Engine:
        plan = self._state.plan
        roster = ProviderRoster(
            Listed(
                id=provider.plan.id,
                provider=self._client(provider),
                channels=provider.plan.channels,
                max_in_flight=provider.plan.max_in_flight,
                rate=provider.plan.rate,
                breaker=provider.plan.breaker,
                host_slots=provider.plan.host_slots,
                weight=provider.plan.weight,
            )
            for provider in self._providers
            if self._state.has_provider(self.name, provider.plan.id)
        )
        parts = EngineParts(
            backend=self.store,
            roster=roster,
            clock=self._clock,
            random_source=self._rng,
            sinks={name: SubscribedSink(SimSink(name, self), plan.events) for name in self.sinks},
            timers={} if self._timer_server is None else {"sim": AssignedTimer(SimTimer(self._timer_server))},
            bridges={} if self._broker is None else {"sim": SimBridge(self._broker, self.name)},
        )
        settings = EngineSettings(
            name=self.name,
            tenant=tenant,
            preset=PRIORITY,
            rules=plan.rules,
            worker=WorkerSettings(poll_ms=plan.poll_ms, lease_ms=plan.lease_ms or 0),
            slots=plan.slots,
            paces=plan.paces,
            quiet_hours=plan.quiet_hours,
            spool=self._spool,
            upkeep=UpkeepSettings(
                retention=plan.retention,
                purge_every_ms=20_000,
                thresholds=AlertThresholds(sink_lag_ms=SINK_LAG_MS),
            ),
            look_ups=LookUpPolicy(
                doubt_after_ms=10_000, silent_after_ms=40_000, until_ms=600_000, every_ms=10_000
            ),
        )
        return Engine(parts, settings)

    async def publish(self, sink: str, events: Sequence[Event]) -> None:
        """Receives the events of a sink. May fail before or after it has recorded them."""
        await asyncio.sleep(0.01)
        if self.dead:
            raise asyncio.CancelledError("the process is dead")
        if self._state.plan.poison and any(is_poisoned_event(sink, event) for event in events):
            raise ValueError("the sink cannot encode this event")
        drawn = self._rng.random()
        if drawn < self.store.fault_plan.sink_error / 2:
            if drawn < self.store.fault_plan.sink_error / 4:
                self._watch.published(self.name, sink, taken := events[: len(events) // 2])
                raise SinkUnavailable(published=[event.id for event in taken], retry_after_ms=1_000)
            raise ConnectionError("the sink is unavailable")
        self._watch.published(self.name, sink, events)
        if drawn < self.store.fault_plan.sink_error:
            raise ConnectionError("the connection to the sink was lost")


class SimSink:
    """A sink of one simulated process."""

    def __init__(self, name: str, process: SimProcess) -> None:
        self._name = name
        self._process = process

    async def open(self) -> None:
        """Does nothing: there is no connection."""

    async def close(self) -> None:
        """Does nothing: there is no connection."""

    async def publish(self, events: Sequence[Event]) -> None:
        """Receives events in the process."""
        await self._process.publish(self._name, events)
