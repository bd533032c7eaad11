"""The heartbeat of a worker: tells the store, and so all other processes, that the worker is alive.

A single run of `process` sends one too. Its entry has the same name in every run and is not removed at the
end of a run, so that a cron job is listed once, with its last run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from homing.core.errors import StoreError
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import HEARTBEAT_MS, Backend, WorkerHeartbeat
from homing.engine.upkeep.process_reports import ProcessReports

log = logging.getLogger("homing.worker")

_FAREWELL_TIMEOUT_S = 2
"""A worker that stops waits at most this long for the store."""


class Heartbeats:
    """Sends a worker's heartbeats in a task of its own. No failure of theirs affects the worker."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        describe: Callable[[], WorkerHeartbeat],
        *,
        run_name: str,
        reports: ProcessReports,
    ) -> None:
        self._reports = reports
        self._backend = backend
        self._clock = clock
        self._describe = describe
        self._run_name = run_name
        self._run_sent_ms: int | None = None
        """Monotonic time of the last heartbeat of a run. None before the first."""

    async def run(self) -> None:
        """Sends heartbeats until cancelled."""
        while True:
            await self._beat(self._describe())
            await self._attempt(self._reports.store)
            await self._clock.sleep_ms(HEARTBEAT_MS)

    async def beat_for_run(self) -> None:
        """Sends the heartbeat of a single run, unless this process has sent one a moment ago."""
        now = self._clock.monotonic_ms()
        if self._run_sent_ms is None or now - self._run_sent_ms >= HEARTBEAT_MS:
            self._run_sent_ms = now
            await self._beat(replace(self._describe(), name=self._run_name, running_ms=0))

    async def stop(self) -> None:
        """Removes the worker from the store. If that fails, the worker counts as dead after a while."""
        try:
            async with asyncio.timeout(_FAREWELL_TIMEOUT_S):
                await self._backend.worker_gone(self._describe().name)
        except (StoreError, TimeoutError) as error:
            log.info("cannot remove the stopped worker from the store: %s", type(error).__name__)
        await self._reports.remove()

    async def _beat(self, heartbeat: WorkerHeartbeat) -> None:
        await self._attempt(lambda: self._backend.worker_seen(heartbeat))

    async def _attempt(self, call: Callable[[], Awaitable[object]]) -> None:
        try:
            await call()
        except StoreError as error:
            log.info("a heartbeat was not stored; trying again: %s", error)
        except Exception:
            log.exception("a heartbeat failed unexpectedly; trying again")
