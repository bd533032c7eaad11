"""How a process is: what it sees of itself, what the store counts, and whether it can do its work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from homing.core.errors import HomingError
from homing.core.model import Status
from homing.core.observing import Depths, Glance, Readiness
from homing.core.ports import Backend
from homing.engine.breakers import Breakers
from homing.engine.roster import Roster
from homing.engine.upkeep import count

if TYPE_CHECKING:
    from homing.engine.homing import EngineSettings
    from homing.engine.worker import Worker

_HUNG_MS = 60_000
"""A worker that has not gone round for this long, and for three polls, hangs."""


class Vitals:
    """The engine's part for who watches it."""

    _backend: Backend
    _roster: Roster
    _breakers: Breakers
    _work: asyncio.Task[None] | None
    settings: EngineSettings
    worker: Worker

    def glance(self) -> Glance:
        """This process as it is now, without asking the store."""
        working = self._work is not None and not self._work.done()
        states = {listed.id: self._breakers.state(listed.id) for listed in self._roster}
        return Glance(
            working=working,
            looked_ms_ago=self.worker.looked_ms_ago if working else None,
            in_flight=self.worker.in_flight_by,
            settle_backlog=self.worker.settle_backlog,
            breakers={provider: state.forced or state.phase for provider, state in states.items()},
        )

    async def depths(self) -> Depths:
        """How many notifications of all tenants have each status, and how long the oldest retry waits."""
        tallies = await self._backend.tallies(None)
        now = await self._backend.now_ms()
        oldest = await self._backend.oldest_retry_at(None)
        return Depths(
            statuses={status: count(tallies, status) for status in Status},
            oldest_retry_ms=None if oldest is None else max(0, now - int(oldest.timestamp() * 1000)),
        )

    async def readiness(self, *, timeout_ms: int = 2_000) -> Readiness:
        """Whether the store answers a real question in time, and the worker (where one is started) works."""
        store, worker = await self._store_now(timeout_ms), self._worker_now()
        return Readiness(ready=store == worker == "ok", store=store, worker=worker)

    async def _store_now(self, timeout_ms: int) -> str:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._backend.tallies(None)
        except TimeoutError:
            return f"no answer within {timeout_ms} ms"
        except HomingError as error:  # its text may name hosts and files
            return error.code
        except Exception as error:
            return type(error).__name__
        return "ok"

    def _worker_now(self) -> str:
        if self._work is None:
            return "ok"  # none was asked for
        if self._work.done():
            return "stopped"
        ago_ms = self.worker.looked_ms_ago or 0
        hung = ago_ms > max(_HUNG_MS, 3 * self.settings.worker.poll_ms)
        return f"has not looked for work for {ago_ms // 1000} s" if hung else "ok"
