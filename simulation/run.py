"""A simulation run: one store, several processes, providers, callers and an operator, on virtual time.

A run has two phases. In the first, faults are injected. In the second there are none, and every
notification must reach a final status. The same plan gives the same trace, byte for byte.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Coroutine, Mapping
from contextvars import copy_context
from random import Random
from typing import Any
from unittest.mock import patch

from msgspec import Struct

from homing.core.errors import StoreError
from homing.core.lifecycle.receipts import Receipt
from homing.core.ports.providers import Delivery
from homing.core.ports.stores import SinkRegistration
from homing.core.routing.failover import Route, RouteStep
from homing.engine.upkeep import outbox_relay
from homing.rehearsal.virtual_time import VirtualClock, VirtualDeadlock, VirtualLoop, run_virtual
from simulation.callers_and_operator import SimulatedCallers, SimulatedOperator
from simulation.checkers.shared_state import DEAD_SINK, MAIN_SINK, OPERATOR_PROCESS
from simulation.checkers.store import CheckedStore
from simulation.database import SimulatedDatabase
from simulation.faults import FaultInjector
from simulation.invariants import InvariantChecker
from simulation.lost_commits import lose_commits
from simulation.message_broker import SimulatedBroker
from simulation.plan import NO_FAULTS, SimulationPlan
from simulation.poison import INBOX_TENANT, POISONED_EVENTS, ScriptedInbox, refuse_poison
from simulation.process import SINK_LAG_MS, SINKS, SimProcess
from simulation.shadow_state import SimulationState, Violation
from simulation.simulated_providers import SimulatedProvider
from simulation.spool_file import SpoolFile, run_inline
from simulation.timer_server import SimulatedTimerServer
from simulation.trace import Trace

_CHECK_INTERVAL_MS = 5_000

_RELAY_POLL_MS = 5_000
"""Poll interval of the outbox relay, five times the default. Idle relays would otherwise take a quarter of
the time of a run."""

_INBOX_ENTRIES = 20
"""Number of entries in the scripted inbox of a run with poison."""

_ISOLATED_MS = 25 * 60_000
"""Longest time after the last fault until all that is not refused has left inbox, broker and outbox."""

_PUBLISHED_MS = 10 * 60_000
"""Longest time until an event is published that its sink does not refuse, without faults."""

_ALERTED_MS = SINK_LAG_MS + 10 * 60_000
"""Longest time, without faults, until an alert reports that events wait for a sink too long."""

_MAX_FAULTLESS_MS = 6 * 3_600_000
"""Longest virtual time that a run may take after the last fault."""

_MAX_STOP_MS = 30_000
"""Longest time until a process without attempts in flight has stopped."""


class SimulationReport(Struct, frozen=True, kw_only=True):
    """Counts of a simulation run without a violation."""

    seed: int
    lifetimes: int
    """Number of accepted notifications."""
    attempts: int
    outcomes: Mapping[str, int]
    statuses: Mapping[str, int]
    leases: int
    stale: int
    crashes: int
    pauses: int
    jumps: int
    rollbacks: int
    """Number of times that the store has lost its last commits."""
    breaker_checks_after_loss: int
    """Number of checks of breakers after the store had lost commits."""
    reported_lost: int
    """Number of lost notifications that a process has reported."""
    breaker_changes: int
    commands: int
    receipts: int
    events: int
    mean_wait_ms: Mapping[str, Mapping[str, int]]
    """Lane → tenant → mean time between a row's due time and its claim, in milliseconds."""
    virtual_ms: int
    trace_lines: int
    trace_sha256: str


class SimulationRun:
    """Runs one plan to its end or to the first violation."""

    def __init__(self, plan: SimulationPlan, loop: VirtualLoop, trace: Trace) -> None:
        self.plan = plan
        self.trace = trace
        self._loop = loop
        self._clock = VirtualClock(loop)
        self.state = SimulationState(plan, self._clock, trace)
        self._rng = Random(f"{plan.seed}/world")
        routes = {
            channel: tuple(c.id for c in plan.providers if channel in c.channels) for channel in plan.channels
        }
        self.database = SimulatedDatabase()
        self.watch = InvariantChecker(self.state, routes, self.database)
        self._store = CheckedStore(self.database, self.state.clock, self.watch, "sim")
        """The store as the run itself uses it, without faults."""
        self._fault_plan = plan.fault_plan
        self._providers = [
            SimulatedProvider(
                provider,
                fault_plan=plan.fault_plan,
                rng=Random(f"{plan.seed}/{provider.id}"),
                watch=self.watch,
                report=self._report,
                route_of=self._route_of,
            )
            for provider in plan.providers
        ]
        self._timer_server: SimulatedTimerServer | None = None
        if plan.timer is not None:
            self._timer_server = SimulatedTimerServer(
                plan.timer, self.state, self.watch.is_known, Random(f"{plan.seed}/timer server")
            )
        self._broker: SimulatedBroker | None = None
        if plan.bridge is not None:
            self._broker = SimulatedBroker(
                plan.bridge, self.state, self.watch.answers, Random(f"{plan.seed}/broker")
            )
        self._inbox: ScriptedInbox | None = None
        self._spool: SpoolFile | None = None
        if plan.spools:
            self._spool = SpoolFile(self.state)
        if plan.poison:
            refuse_poison(self.database)
            self._inbox = ScriptedInbox(plan, self.state)
            self._inbox.write_entries(_INBOX_ENTRIES)
        self._processes: list[SimProcess] = []
        self._faults = FaultInjector(
            self.state,
            loop,
            self._clock,
            self._processes,
            self._providers,
            self._clock_jumped,
            self._forget_clock,
        )
        self._jumps_are_noticed = Random(f"{plan.seed}/notice").random() < 0.7
        self._named = 0
        self._over = False
        fronts = (*plan.tenants, INBOX_TENANT) if plan.poison else plan.tenants
        self._operator_process = self._process(OPERATOR_PROCESS, fronts=fronts)
        self._callers = SimulatedCallers(plan, self.watch, self._some_process, self._spool)
        self._operator = SimulatedOperator(plan, self.watch, self._operator_process)
        self._context = copy_context()
        self._reports: set[asyncio.Task[None]] = set()
        self._counts: Counter[str] = Counter()
        self._failed: asyncio.Future[None] = loop.create_future()
        self.state.on_violation = self._violated

    async def run(self) -> SimulationReport:
        """Runs the plan and returns the report. Raises `Violation` if an invariant does not hold."""
        self._loop.set_exception_handler(self._lost_exception)
        script = asyncio.create_task(self._script())
        try:
            await asyncio.wait({script, self._failed}, return_when=asyncio.FIRST_COMPLETED)
            if self.state.violation is not None:
                raise self.state.violation
            script.result()
            self.watch.finish()
            if self._broker is not None:
                self._broker.finish()
            if self._inbox is not None:
                self._inbox.finish(self.database, list(self.watch.rows.removed))
            if self._spool is not None:
                self._spool.finish(self.database, self.watch.rows.removed)
        finally:
            script.cancel()
            if self._spool is not None:
                self._spool.close()
        return self._result()

    async def _script(self) -> None:
        await self._store.register_sink(
            SinkRegistration(name=MAIN_SINK, kind="callback", events=self.plan.events)
        )
        if self.plan.dead_sink:
            await self._store.register_sink(
                SinkRegistration(name=DEAD_SINK, kind="kafka", events=self.plan.events)
            )
        self._operator_process.start()
        for _ in range(self.plan.processes):
            self._start_process()
        if self.plan.cron:
            self._start_process(cron=True)
        calls = asyncio.create_task(self._call_and_publish())
        faults = [asyncio.create_task(work) for work in self._works()]
        ticks = asyncio.create_task(self._tick())
        await asyncio.sleep(self.plan.faults_ms / 1000)
        await self._until(calls)
        await self._calm_down(faults)
        while self._unfinished():
            await asyncio.sleep(_CHECK_INTERVAL_MS / 1000)
            self._check_isolation()
            self._check_dead_sink()
            if self.state.ms > self.plan.faults_ms + _MAX_FAULTLESS_MS:
                self.state.violate(
                    "14", f"{len(self.database.live())} notifications never reach a final status"
                )
        ticks.cancel()
        self.watch.rest(self._working_ms())
        self._over = True
        for process in list(self._processes):
            stopping = asyncio.create_task(process.stop())
            await asyncio.wait({stopping}, timeout=_MAX_STOP_MS / 1000)
            if not stopping.done():
                self.state.violate("31", f"{process.name} does not stop")
            stopping.result()

    def _check_isolation(self) -> None:
        """Checks that, without faults, refused items do not hold up what waits behind them (invariant 22)."""
        since_ms = self.state.quiet_since_ms
        if not self.plan.poison or since_ms is None or self.state.ms < since_ms + _ISOLATED_MS:
            return
        if self._inbox is not None and self._inbox.waiting:
            self.state.violate("22", f"{self._inbox.waiting} entries still wait in the inbox")
        if self._spool is not None and self._spool.waiting:
            self.state.violate("22", f"{self._spool.waiting} requests still wait in the spool")
        if self._broker is not None and self._broker.waiting:
            self.state.violate("22", f"{self._broker.waiting} messages still wait at the broker")
        recent = f"at > {self.state.now - _PUBLISHED_MS}"
        dead = f"sink = '{DEAD_SINK}'"
        if held_up := self.database.unpublished(ignored=f"{recent} OR {dead} OR ({POISONED_EVENTS})"):
            self.state.violate("22", f"{held_up} events still wait for their sinks")

    def _check_dead_sink(self) -> None:
        """Checks that an alert reports the sink that no process has (invariant 28)."""
        since_ms = self.state.quiet_since_ms
        if (
            since_ms is not None
            and self.state.ms > since_ms + _ALERTED_MS
            and self._is_dead_sink_unreported()
        ):
            self.state.violate("28", f"events wait for {DEAD_SINK}, but no alert says so")

    def _is_dead_sink_unreported(self) -> bool:
        if DEAD_SINK in self.watch.events.reported_lag:
            return False
        return bool(self.database.unpublished(ignored=f"sink <> '{DEAD_SINK}'"))

    async def _call_and_publish(self) -> None:
        """Sends the requests of the callers and publishes the messages of the broker."""
        publishing = asyncio.create_task(self._broker.run()) if self._broker is not None else None
        await self._callers.run()
        if publishing is not None:
            await publishing

    def _works(self) -> list[Coroutine[Any, Any, None]]:
        """Returns the coroutines of the fault phase: the faults and the operator."""
        works, fault_plan = self._faults.works(), self.plan.fault_plan
        works.append(self._remove_sinks())
        if fault_plan.lost_commits_every_ms:
            noticed = fault_plan.lost_commits_are_noticed
            works.append(lose_commits(self.state, self.watch, noticed=noticed))
        if fault_plan.operator_every_ms:
            works.append(self._operator.run())
        if fault_plan.policy_every_ms:
            works.append(self._operator.change_policies())
        return works

    async def _remove_sinks(self) -> None:
        """Now and then removes the sinks that some processes lack. New processes register them again."""
        rng = Random(f"{self.plan.seed}/sinks")
        while True:
            await asyncio.sleep(rng.randrange(10_000, 120_000) / 1000)
            await self._remove_unused_sinks(used=())

    async def _remove_unused_sinks(self, used: Collection[str]) -> None:
        for name in SINKS[1:]:
            if name not in used:
                await self._store.remove_sink(name)

    def _unfinished(self) -> bool:
        if self._broker is not None and self._broker.waiting:
            return True
        if self._inbox is not None and self._inbox.waiting:
            return True
        if self._spool is not None and self._spool.waiting:
            return True
        if self._is_dead_sink_unreported():
            return True
        unpublished = self.database.unpublished(ignored=f"sink = '{DEAD_SINK}'")
        return bool(self.database.live() or unpublished or self._reports)

    async def _until(self, task: asyncio.Task[None]) -> None:
        """Waits for the callers' task. A caller may be waiting for a paused process."""
        await asyncio.wait({task}, timeout=_MAX_FAULTLESS_MS / 1000)
        task.result()

    async def _calm_down(self, faults: list[asyncio.Task[None]]) -> None:
        """Ends the fault phase: stops all faults, resumes all processes and replaces the dead ones."""
        for task in faults:
            if task.done():
                task.result()
            task.cancel()
        self._fault_plan = NO_FAULTS
        self._faults.over()
        self._loop.cancel_group(
            OPERATOR_PROCESS
        )  # a delayed command after the last fault would act like a fault
        for provider in self._providers:
            provider.fault_plan, provider.outage = NO_FAULTS, None
        for process in [*self._processes, self._operator_process]:
            process.store.fault_plan = NO_FAULTS
            process.resume()
        self._replace()
        await self._remove_unused_sinks({name for process in self._processes for name in process.sinks})
        await self._operator.give_back()
        self.state.quiet_since_ms = self.state.ms
        self.state.quiet_backlog = len(self.database.live())
        self.state.note("sim", "no more faults")

    async def _clock_jumped(self, by_ms: int) -> None:
        """Lets a process that is always at work notice the jump first, in most runs.

        A process that starts believes the clock unless another one has recorded a jump.
        """
        self.watch.clock.jumped(by_ms)
        if self._jumps_are_noticed:
            await self._store.lead("notice", "sim", 1)

    def _forget_clock(self) -> None:
        self.watch.clock.restarted()
        self._store.forget_clock()
        self._operator_process.store.forget_clock()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_MS / 1000)
            await self._store.now_ms()  # it knows the time, like a worker that is always at work
            self.watch.tick(self._working_ms())

    def _working_ms(self) -> dict[str, int]:
        """Returns the names of the workers that run now, and since when."""
        return {
            process.name: process.working_since_ms
            for process in self._processes
            if process.awake and process.working_since_ms is not None
        }

    # Processes -----------------------------------------------------------------------------------

    def _start_process(self, *, cron: bool = False) -> None:
        self._named += 1
        process = self._process(f"p{self._named}", cron=cron)
        self._processes.append(process)
        process.start()

    def _process(self, name: str, *, fronts: tuple[str, ...] = (), cron: bool = False) -> SimProcess:
        return SimProcess(
            name,
            loop=self._loop,
            state=self.state,
            watch=self.watch,
            providers=self._providers,
            fault_plan=self._fault_plan,
            store_is_away=self._faults.store_is_away,
            on_death=self._died,
            timer_server=self._timer_server,
            broker=self._broker,
            inbox=self._inbox,
            spool=None if fronts or self._spool is None else self._spool.path,
            fronts=fronts,
            cron=cron,
        )

    def _died(self, process: SimProcess) -> None:
        if process is self._operator_process:
            process.dead = False  # the operator's process must survive: it is not under test
            self.state.dead.discard(process.name)
            return
        self._counts["crashes"] += not process.stopping
        if self._broker is not None:
            self._broker.disconnect(process.name)
        self._processes.remove(process)
        if not self._over:
            self._loop.call_later(self._rng.randrange(200, 20_000) / 1000, self._replace)

    def _replace(self) -> None:
        """Starts processes until the planned number runs. A replacement gets a new name."""
        if self._over:
            return
        if self.plan.cron and not any(process.cron for process in self._processes):
            self._start_process(cron=True)
        while sum(not process.cron for process in self._processes) < self.plan.processes:
            self._start_process()

    def _some_process(self) -> SimProcess | None:
        awake = [process for process in self._processes if not process.dead and not process.stopping]
        return self._rng.choice(awake) if awake else None

    # Receipts from the providers -----------------------------------------------------------------

    def _report(self, delay_ms: int, receipt: Receipt) -> None:
        # Not in the sending process's context, because the provider reports even if that process is dead.
        task = self._loop.create_task(self._deliver_report(delay_ms, receipt), context=self._context)
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _deliver_report(self, delay_ms: int, receipt: Receipt) -> None:
        """Sends the receipt after `delay_ms`, and repeats it until the store has accepted it."""
        await asyncio.sleep(delay_ms / 1000)
        while True:
            task = self._operator_process.run(self._operator_process.store.receipt([receipt]))
            await asyncio.wait({task})
            if not task.cancelled():
                error = task.exception()
                if error is None:
                    self._counts["receipts"] += 1
                    return
                if not isinstance(error, StoreError):
                    raise error
            await asyncio.sleep(3)

    def _route_of(self, delivery: Delivery) -> Route:
        return tuple(
            RouteStep(provider.id, provider.host_slots is not None)
            for provider in self.plan.providers
            if delivery.channel in provider.channels
        )

    # The end -------------------------------------------------------------------------------------

    def _violated(self) -> None:
        if not self._failed.done():
            self._failed.set_result(None)

    def _lost_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Reports a task's unhandled exception as a violation."""
        error = context.get("exception")
        if self.state.violation is None and not isinstance(error, (Violation, VirtualDeadlock)):
            try:
                self.state.violate("12", f"{context.get('message')}: {error!r}")
            except Violation:
                return

    def _mean_waits(self) -> dict[str, dict[str, int]]:
        means: dict[str, dict[str, int]] = {}
        for (lane, tenant), waits in sorted(self.watch.rows.waited.items()):
            means.setdefault(lane, {})[tenant] = sum(waits) // len(waits)
        return means

    def _result(self) -> SimulationReport:
        rows = [*self.state.shadows.values(), *self.watch.rows.removed.values()]
        return SimulationReport(
            seed=self.plan.seed,
            lifetimes=len(rows),
            attempts=self.watch.sends.calls,
            outcomes=dict(sorted(self.watch.sends.outcomes.items())),
            statuses=dict(sorted(Counter(row.status.value for row in rows).items())),
            leases=self.watch.rows.leases,
            stale=self.watch.rows.stale,
            crashes=self._counts["crashes"],
            pauses=self._faults.pauses,
            jumps=self.state.jumps,
            rollbacks=self.state.rollbacks,
            reported_lost=len(self.watch.events.reported_lost),
            breaker_checks_after_loss=self.watch.breakers.checks_after_loss,
            breaker_changes=self.watch.breakers.changes,
            commands=self._operator.commands,
            receipts=self._counts["receipts"],
            events=sum(len(row.events) for row in rows),
            mean_wait_ms=self._mean_waits(),
            virtual_ms=self.state.ms,
            trace_lines=self.trace.length,
            trace_sha256=self.trace.sha256,
        )


def run_simulation(plan: SimulationPlan, trace: Trace | None = None) -> SimulationReport:
    """Runs a simulation and returns its report. Raises `Violation` if an invariant does not hold."""
    trace = Trace() if trace is None else trace
    handlers: list[logging.Handler] = []

    async def main(loop: VirtualLoop) -> SimulationReport:
        run = SimulationRun(plan, loop, trace)
        handlers.append(run.watch.logs)
        log.addHandler(run.watch.logs)
        return await run.run()

    log = logging.getLogger("homing")
    before, spread = log.level, log.propagate
    log.setLevel(logging.DEBUG)
    log.propagate = False
    try:
        with (
            patch.object(outbox_relay, "_POLL_MS", _RELAY_POLL_MS),
            patch.object(VirtualLoop, "run_in_executor", run_inline),
        ):
            return run_virtual(main)
    finally:
        log.setLevel(before)
        log.propagate = spread
        for handler in handlers:
            log.removeHandler(handler)
