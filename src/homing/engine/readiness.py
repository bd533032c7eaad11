"""Status of this process and its store: a snapshot, queue depths, and readiness."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from homing.core.errors import HomingError
from homing.core.notifications import Status
from homing.core.ports.observers import ProcessSnapshot, QueueDepths, Readiness
from homing.core.ports.stores import Backend
from homing.core.statistics import count_statuses
from homing.engine.delivery.breakers import Breakers
from homing.engine.operations.workers import OVERDUE_AFTER_MS, find_unattended_ms
from homing.engine.provider_roster import ProviderRoster

if TYPE_CHECKING:
    from homing.engine.delivery.worker import Worker
    from homing.engine.engine import EngineSettings


_HUNG_MS = 60_000
"""A worker counts as hung if its last claim is more than this time and three poll intervals ago."""


class EngineStatus:
    """Status operations of the engine, as a mixin."""

    _backend: Backend
    _roster: ProviderRoster
    _breakers: Breakers
    _work: asyncio.Task[None] | None
    settings: EngineSettings
    worker: Worker

    def snapshot(self) -> ProcessSnapshot:
        """Returns the current state of this process, without a call to the store."""
        working = self._work is not None and not self._work.done()
        states = {listed.id: self._breakers.state(listed.id) for listed in self._roster}
        return ProcessSnapshot(
            working=working,
            ms_since_last_claim=self.worker.ms_since_last_claim if working else None,
            in_flight=self.worker.in_flight_counts,
            settle_backlog=self.worker.settle_backlog,
            breakers={provider: state.forced or state.phase for provider, state in states.items()},
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

    async def unattended_ms(self) -> int:
        """Returns for how many milliseconds some notification has been due while no worker is live.

        0 if a worker of any process is live, or if nothing is due.
        """
        return await find_unattended_ms(self._backend)

    async def readiness(self, *, timeout_ms: int = 2_000) -> Readiness:
        """Checks that the store answers a query in time, and that the worker runs if one was started."""
        store, worker = await self._check_store(timeout_ms), self._check_worker()
        ready = store == worker == "ok"
        if ready and self._work is None and await self._is_unattended(timeout_ms):
            worker = "none is live, and work is overdue"  # requests are still accepted and stored
        return Readiness(ready=ready, store=store, worker=worker)

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
                return await self.unattended_ms() > OVERDUE_AFTER_MS
        return False

    def _check_worker(self) -> str:
        if self._work is None:
            return "ok"  # no worker was started
        if self._work.done():
            return "stopped"
        ago_ms = self.worker.ms_since_last_claim or 0
        hung = ago_ms > max(_HUNG_MS, 3 * self.settings.worker.poll_ms)
        return f"made no claim for {ago_ms // 1000} s" if hung else "ok"
