"""Takes events from the outbox to the sinks: at least once, in the order in which they were written."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from homing.core.errors import StoreError
from homing.core.events import ALERT, NOTIFICATION_FAILED
from homing.core.model import Event
from homing.core.ports import Backend, Clock, Sink

log = logging.getLogger("homing.relay")

DEFAULT_EVENTS = frozenset({NOTIFICATION_FAILED, ALERT})
_LEASE_MS = 30_000
_BATCH = 200


class Relay:
    """One per process; the outbox leases events, so several do not publish the same ones at once."""

    def __init__(
        self, backend: Backend, sinks: Mapping[str, tuple[Sink, frozenset[str]]], clock: Clock, worker: str
    ) -> None:
        self._backend = backend
        self._sinks = sinks
        self._clock = clock
        self._worker = worker
        self._poll_ms = 1_000
        self._taken: dict[str, set[str]] = {}
        """Event id → sinks that have it, for events that another sink has still to take."""
        wanted = frozenset().union(*(names for _, names in sinks.values())) if sinks else frozenset()
        backend.subscribe(wanted)

    async def run(self) -> None:
        """Publishes until cancelled."""
        while True:
            if not await self.run_once():
                await self._clock.sleep_ms(self._poll_ms)

    async def run_once(self) -> int:
        """One batch; how many events left the outbox."""
        try:
            batch = await self._backend.outbox(self._worker, _BATCH, _LEASE_MS)
            if not batch:
                return 0
            for name, (sink, wants) in self._sinks.items():
                await self._publish(name, sink, [event for event in batch if event.name in wants])
            done = [event.id for event in batch if self._complete(event)]
            await self._backend.published(done)
        except StoreError as error:
            log.warning("relaying waits for the store: %s", error)
            return 0
        for id_ in done:
            self._taken.pop(id_, None)
        return len(done)

    async def _publish(self, name: str, sink: Sink, batch: list[Event]) -> None:
        fresh = [event for event in batch if name not in self._taken.get(event.id, ())]
        if not fresh:
            return
        try:
            await sink.publish(fresh)
        except Exception as error:  # a sink may fail in any way; its events stay in the outbox
            log.warning("sink %s did not take %d events, they stay: %s", name, len(fresh), error)
            return
        for event in fresh:
            self._taken.setdefault(event.id, set()).add(name)

    def _complete(self, event: Event) -> bool:
        wanted = {name for name, (_, wants) in self._sinks.items() if event.name in wants}
        return wanted <= self._taken.get(event.id, set())
