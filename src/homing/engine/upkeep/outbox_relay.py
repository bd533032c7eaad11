"""Publishes events from the outbox to the sinks, at least once and in the order of their creation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from msgspec import Struct, field

from homing.core.errors import StoreError
from homing.core.lifecycle.events import ALERT, NOTIFICATION_FAILED, Event
from homing.core.ports.plug_ins import Sink
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Backend

log = logging.getLogger("homing.relay")


DEFAULT_EVENTS = frozenset({NOTIFICATION_FAILED, ALERT})

_LEASE_MS = 30_000

_BATCH = 200

_PUBLISH_TIMEOUT_S = 20

_POLL_MS = 1_000

_MAX_PAUSE_MS = 30_000

_MAX_OWED = 10_000


class _Lane(Struct):
    """A sink with the events that it has not taken yet, oldest first."""

    sink: Sink
    wants: frozenset[str]
    owed: dict[str, Event] = field(default_factory=dict)
    pause_ms: int = 0
    again_ms: int = 0
    task: asyncio.Task[None] | None = None


class OutboxRelay:
    """Publishes events to all sinks that subscribe to them.

    There is one relay per process. A relay leases events from the outbox, so that no other relay publishes
    them at the same time. A sink that fails or hangs is paused and gets its events later. The other sinks are
    not affected.
    """

    def __init__(
        self, backend: Backend, sinks: Mapping[str, tuple[Sink, frozenset[str]]], clock: Clock, worker: str
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._worker = worker
        self._lanes = {name: _Lane(sink, wants) for name, (sink, wants) in sinks.items()}
        self._round_lock = asyncio.Lock()
        self._missing: dict[str, set[str]] = {}
        """Event id → names of the sinks that have not taken the event yet."""
        backend.subscribe(frozenset().union(*(lane.wants for lane in self._lanes.values())))

    async def run(self) -> None:
        """Publishes events until cancelled."""
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
        """Publishes one batch, and returns the number of events that were removed from the outbox."""
        _, done = await self._round(_PUBLISH_TIMEOUT_S)
        return done

    async def _round(self, patience_s: float) -> tuple[int, int]:
        async with self._round_lock:  # `process` may call `run_once` while `run` publishes
            try:
                batch = await self._backend.outbox(self._worker, _BATCH, _LEASE_MS)
                for event in batch:
                    self._enqueue(event)
                await self._publish_all(patience_s)
                return len(batch), await self._remove_published()
            except StoreError as error:
                log.warning("cannot relay events, the store is unavailable; trying again: %s", error)
            except Exception:
                log.exception("relaying events failed; trying again in the next round")
            return 0, 0

    def _enqueue(self, event: Event) -> None:
        """Queues an event for every sink that subscribes to it.

        A sink whose queue is full gets the event later, once the event's lease in the outbox has expired.
        """
        if event.id not in self._missing:
            self._missing[event.id] = {n for n, lane in self._lanes.items() if event.name in lane.wants}
        for name in self._missing[event.id]:
            lane = self._lanes[name]
            if event.id not in lane.owed and len(lane.owed) < _MAX_OWED:
                lane.owed[event.id] = event

    async def _publish_all(self, patience_s: float) -> None:
        """Publishes queued events to all sinks concurrently. Waits at most `patience_s` for slow sinks."""
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
                async with asyncio.timeout(_PUBLISH_TIMEOUT_S):
                    await lane.sink.publish(batch)
            except Exception as error:  # a sink may raise anything, or hang
                lane.pause_ms = min(_MAX_PAUSE_MS, 2 * lane.pause_ms or _POLL_MS)
                lane.again_ms = self._clock.monotonic_ms() + lane.pause_ms
                kind = type(error).__name__
                log.warning(
                    "sink %s failed to take %d events, they stay in the outbox: %s", name, len(batch), kind
                )
                return
            lane.pause_ms = lane.again_ms = 0
            for event in batch:
                lane.owed.pop(event.id, None)
                if (missing := self._missing.get(event.id)) is not None:
                    missing.discard(name)

    async def _remove_published(self) -> int:
        """Removes from the outbox the events that every sink has taken, and returns their number."""
        done = [id_ for id_, missing in self._missing.items() if not missing]
        if done:
            await self._backend.published(done)
            for id_ in done:
                del self._missing[id_]
        return len(done)
