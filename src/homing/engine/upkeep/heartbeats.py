"""The heartbeat of a worker: tells the store, and so all other processes, that the worker is alive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from homing.core.errors import StoreError
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import HEARTBEAT_MS, Backend, WorkerHeartbeat

log = logging.getLogger("homing.worker")

_FAREWELL_TIMEOUT_S = 2
"""A worker that stops waits at most this long for the store."""


class Heartbeats:
    """Sends a worker's heartbeats in a task of its own. No failure of theirs affects the worker."""

    def __init__(self, backend: Backend, clock: Clock, describe: Callable[[], WorkerHeartbeat]) -> None:
        self._backend = backend
        self._clock = clock
        self._describe = describe

    async def run(self) -> None:
        """Sends heartbeats until cancelled."""
        while True:
            await self._beat()
            await self._clock.sleep_ms(HEARTBEAT_MS)

    async def stop(self) -> None:
        """Removes the worker from the store. If that fails, the worker counts as dead after a while."""
        try:
            async with asyncio.timeout(_FAREWELL_TIMEOUT_S):
                await self._backend.worker_gone(self._describe().name)
        except (StoreError, TimeoutError) as error:
            log.info("cannot remove the stopped worker from the store: %s", type(error).__name__)

    async def _beat(self) -> None:
        try:
            await self._backend.worker_seen(self._describe())
        except StoreError as error:
            log.info("a heartbeat was not stored; trying again: %s", error)
        except Exception:
            log.exception("a heartbeat failed unexpectedly; trying again")
