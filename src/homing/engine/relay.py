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
        self._missing: dict[str, set[str]] = {}
        """Event id → sinks that have still to take it."""
        backend.subscribe(frozenset().union(*(lane.wants for lane in self._lanes.values())))

    async def run(self) -> None:
        """Publishes until cancelled."""
        while True:
            found, _ = await self._round()
            if found < _BATCH:
                await self._clock.sleep_ms(_POLL_MS)

    async def run_once(self) -> int:
        """One batch; how many events left the outbox."""
        _, done = await self._round()
        return done

    async def _round(self) -> tuple[int, int]:
        try:
            batch = await self._backend.outbox(self._worker, _BATCH, _LEASE_MS)
            for event in batch:
                self._note(event)
            await asyncio.gather(*(self._publish(name, lane) for name, lane in self._lanes.items()))
            return len(batch), await self._forget()
        except StoreError as error:
            log.warning("relaying waits for the store: %s", error)
            return 0, 0

    def _note(self, event: Event) -> None:
        """Owed to every sink that wants it. One that is owed too much finds the rest in the outbox later."""
        if event.id in self._missing:
            return
        wanting = [(name, lane) for name, lane in self._lanes.items() if event.name in lane.wants]
        if any(len(lane.owed) >= _MOST_OWED for _, lane in wanting):
            return
        self._missing[event.id] = {name for name, _ in wanting}
        for _, lane in wanting:
            lane.owed[event.id] = event

    async def _publish(self, name: str, lane: _Lane) -> None:
        while lane.owed and self._clock.monotonic_ms() >= lane.again_ms:
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
                del lane.owed[event.id]
                self._missing[event.id].discard(name)

    async def _forget(self) -> int:
        """What every sink has taken leaves the outbox."""
        done = [id_ for id_, missing in self._missing.items() if not missing]
        if done:
            await self._backend.published(done)
            for id_ in done:
                del self._missing[id_]
        return len(done)
