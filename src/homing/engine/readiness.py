"""Status of this process and its store: a snapshot, queue depths, and readiness."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from homing.core.errors import HomingError
from homing.core.notifications import Status
from homing.core.ports.observers import ProcessSnapshot, QueueDepths, Readiness, SinkBacklogs
from homing.core.ports.stores import Backend
from homing.core.statistics import count_statuses
from homing.engine.delivery.breakers import Breakers
from homing.engine.delivery.timers import Timers
from homing.engine.delivery.worker import Worker
from homing.engine.intake.bridges import Bridges
from homing.engine.operations.workers import find_unattended_ms
from homing.engine.provider_roster import ProviderRoster
from homing.engine.upkeep.outbox_relay import OutboxRelay

_HUNG_MS = 60_000
"""A worker counts as hung if its last claim is more than this time and three poll intervals ago."""


class EngineStatus:
    """Status operations of the engine.

    `worker` returns the current worker of this process. `worker_task` returns the task that runs it, or None
    if no worker was started.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        roster: ProviderRoster,
        breakers: Breakers,
        worker: Callable[[], Worker],
        worker_task: Callable[[], asyncio.Task[None] | None],
        poll_ms: int,
        timers: Timers,
        bridges: Bridges,
        relay: OutboxRelay,
        unattended_after_ms: int,
    ) -> None:
        self._backend = backend
        self._roster = roster
        self._breakers = breakers
        self._worker = worker
        self._worker_task = worker_task
        self._poll_ms = poll_ms
        self._timers = timers
        self._bridges = bridges
        self._relay = relay
        self._unattended_after_ms = unattended_after_ms

    def snapshot(self) -> ProcessSnapshot:
        """Returns the current state of this process, without a call to the store."""
        worker, task = self._worker(), self._worker_task()
        working = task is not None and not task.done()
        return ProcessSnapshot(
            working=working,
            ms_since_last_claim=worker.ms_since_last_claim if working else None,
            in_flight=worker.in_flight_counts,
            abandoned=worker.abandoned_counts,
            settle_backlog=worker.settle_backlog,
            breakers={listed.id: self._breakers.phase(listed.id) for listed in self._roster},
            timers=self._timers.states(),
            bridges=self._bridges.states(),
            sinks=self._relay.states(),
        )

    async def queue_depths(self) -> QueueDepths:
        """Returns the number of notifications by status, for all tenants, and the age of the oldest retry."""
        tallies = await self._backend.tallies(None)
        now = await self._backend.now_ms()
        oldest = await self._backend.oldest_retry_at(None)
        return QueueDepths(
            statuses={status: count_statuses(tallies, status) for status in Status},
            oldest_retry_ms=None if oldest is None else max(0, now - int(oldest.timestamp() * 1000)),
        )

    async def sink_backlogs(self) -> SinkBacklogs:
        """Returns the registered sinks of all processes, with the events that wait for each."""
        return SinkBacklogs(now_ms=await self._backend.now_ms(), sinks=await self._backend.sinks())

    async def unattended_ms(self) -> int:
        """Returns for how many milliseconds some notification has been due while no worker is live.

        0 if a worker of any process is live, or if nothing is due. It counts from the last heartbeat of a
        worker or a run of `homing process`, if there is one.
        """
        return await find_unattended_ms(self._backend, enough_ms=self._unattended_after_ms)

    async def readiness(self, *, timeout_ms: int = 2_000) -> Readiness:
        """Checks that the store answers a query in time, and that worker and bridges run if started."""
        store, worker = await self._check_store(timeout_ms), self._check_worker()
        bridges = {name: state.status for name, state in self._bridges.states().items()}
        ready = all(one == "ok" for one in (store, worker, *bridges.values()))
        if ready and self._worker_task() is None and await self._is_unattended(timeout_ms):
            worker = "none is live, and work is overdue"  # requests are still accepted and stored
        return Readiness(ready=ready, store=store, worker=worker, bridges=bridges)

    async def _check_store(self, timeout_ms: int) -> str:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._backend.tallies(None)
        except TimeoutError:
            return f"no answer within {timeout_ms} ms"
        except HomingError as error:  # the error's text may contain host and file names
            return error.code
        except Exception as error:
            return type(error).__name__
        return "ok"

    async def _is_unattended(self, timeout_ms: int) -> bool:
        """Returns True if work is overdue and no process has a live worker. If in doubt, returns False."""
        with suppress(TimeoutError, HomingError):
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.unattended_ms() > self._unattended_after_ms
        return False

    def _check_worker(self) -> str:
        task = self._worker_task()
        if task is None:
            return "ok"  # no worker was started
        if task.done():
            return "stopped"
        ago_ms = self._worker().ms_since_last_claim or 0
        hung = ago_ms > max(_HUNG_MS, 3 * self._poll_ms)
        return f"made no claim for {ago_ms // 1000} s" if hung else "ok"
