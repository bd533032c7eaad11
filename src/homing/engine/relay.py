"""Takes events from the outbox to the sinks: at least once, for each sink in the order they were written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from msgspec import Struct, field

from homing.core.errors import StoreError
from homing.core.events import ALERT, NOTIFICATION_FAILED
from homing.core.model import Event
from homing.core.ports import Backend, Clock, Sink

log = logging.getLogger("homing.relay")

DEFAULT_EVENTS = frozenset({NOTIFICATION_FAILED, ALERT})
_LEASE_MS = 30_000
_BATCH = 200
_PUBLISH_S = 20
_POLL_MS = 1_000
_LONGEST_PAUSE_MS = 30_000
_MOST_OWED = 10_000


class _Lane(Struct):
    """One sink with what it has still to take, oldest first."""

    sink: Sink
    wants: frozenset[str]
    owed: dict[str, Event] = field(default_factory=dict)
    pause_ms: int = 0
    again_ms: int = 0
    task: asyncio.Task[None] | None = None


class Relay:
    """One per process; the outbox leases events, so several do not publish the same ones at once.

    A sink that fails or hangs is left alone for a while, with what it is owed; the others go on.
    """

    def __init__(
        self, backend: Backend, sinks: Mapping[str, tuple[Sink, frozenset[str]]], clock: Clock, worker: str
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._worker = worker
        self._lanes = {name: _Lane(sink, wants) for name, (sink, wants) in sinks.items()}
        self._turn = asyncio.Lock()
        self._missing: dict[str, set[str]] = {}
        """Event id → sinks that have still to take it."""
        backend.subscribe(frozenset().union(*(lane.wants for lane in self._lanes.values())))

    async def run(self) -> None:
        """Publishes until cancelled."""
        try:
            while True:
                found, _ = await self._round(_POLL_MS / 1000)
                if found < _BATCH:
                    await self._clock.sleep_ms(_POLL_MS)
        finally:
            for lane in self._lanes.values():
                if lane.task is not None:
                    lane.task.cancel()

    async def run_once(self) -> int:
        """One batch; how many events left the outbox."""
        _, done = await self._round(_PUBLISH_S)
        return done

    async def _round(self, patience_s: float) -> tuple[int, int]:
        async with self._turn:  # a round of `process` may come while the worker's relay is at it
            try:
                batch = await self._backend.outbox(self._worker, _BATCH, _LEASE_MS)
                for event in batch:
                    self._note(event)
                await self._publish_all(patience_s)
                return len(batch), await self._forget()
            except StoreError as error:
                log.warning("relaying waits for the store: %s", error)
            except Exception:
                log.exception("relaying failed; it goes on with the next round")
            return 0, 0

    def _note(self, event: Event) -> None:
        """Owed to every sink that wants it; one that is owed too much gets it when it is leased again."""
        if event.id not in self._missing:
            self._missing[event.id] = {n for n, lane in self._lanes.items() if event.name in lane.wants}
        for name in self._missing[event.id]:
            lane = self._lanes[name]
            if event.id not in lane.owed and len(lane.owed) < _MOST_OWED:
                lane.owed[event.id] = event

    async def _publish_all(self, patience_s: float) -> None:
        """All sinks at once; one that hangs goes on by itself while the others are served."""
        for name, lane in self._lanes.items():
            if lane.owed and lane.task is None and self._clock.monotonic_ms() >= lane.again_ms:
                lane.task = asyncio.create_task(self._publish(name, lane))
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)
        for lane in self._lanes.values():
            if lane.task is not None and lane.task.done():
                lane.task = None

    async def _publish(self, name: str, lane: _Lane) -> None:
        while lane.owed:
            batch = list(lane.owed.values())[:_BATCH]
            try:
                async with asyncio.timeout(_PUBLISH_S):
                    await lane.sink.publish(batch)
            except Exception as error:  # a sink may fail in any way, and hang
                lane.pause_ms = min(_LONGEST_PAUSE_MS, 2 * lane.pause_ms or _POLL_MS)
                lane.again_ms = self._clock.monotonic_ms() + lane.pause_ms
                kind = type(error).__name__
                log.warning("sink %s did not take %d events, they stay: %s", name, len(batch), kind)
                return
            lane.pause_ms = lane.again_ms = 0
            for event in batch:
                lane.owed.pop(event.id, None)
                if (missing := self._missing.get(event.id)) is not None:
                    missing.discard(name)

    async def _forget(self) -> int:
        """What every sink has taken leaves the outbox."""
        done = [id_ for id_, missing in self._missing.items() if not missing]
        if done:
            await self._backend.published(done)
            for id_ in done:
                del self._missing[id_]
        return len(done)
