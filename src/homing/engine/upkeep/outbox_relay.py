"""Publishes events from the outbox to the sinks, at least once and in order per notification."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct, field

from homing.core.errors import StoreError
from homing.core.lifecycle.events import ALERT, NOTIFICATION_FAILED, Event
from homing.core.ports.plug_ins import Sink, SubscribedSink
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Backend, SinkRegistration, relay_task
from homing.engine.plug_in_calls import call_within

log = logging.getLogger("homing.relay")


DEFAULT_EVENTS = frozenset({NOTIFICATION_FAILED, ALERT})

_LEASE_MS = 30_000

_BATCH = 200

_PUBLISH_TIMEOUT_S = 20
"""Shorter than the lease, so that a sink gets no events from two relays at once."""

_POLL_MS = 1_000

_MAX_PAUSE_MS = 30_000

_SEEN_EVERY_MS = 60_000


class _SinkRelay(Struct):
    """State of the relay of one sink."""

    name: str
    sink: Sink
    opened: bool = False
    leads: bool = False
    """True if this process has become the relay of the sink and not given that up."""
    pause_ms: int = 0
    """Time to wait after the last failure. 0 if the last call of the sink succeeded."""
    next_try_ms: int = 0
    next_seen_ms: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a batch is published, because `process` may call `run_once` while `run` publishes."""


class OutboxRelay:
    """Publishes the events of this process's sinks.

    Several processes may have the same sink. In the store, one of them at a time is the relay of that sink,
    so the events of a notification arrive in order. A sink that fails or hangs is paused and its events stay
    in the outbox, where another process may publish them. Other sinks are not affected.
    """

    def __init__(
        self, backend: Backend, sinks: Mapping[str, SubscribedSink], clock: Clock, worker: str
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._worker = worker
        self._registrations = [
            SinkRegistration(name=name, kind=given.kind, events=given.events, durable=given.durable)
            for name, given in sinks.items()
            if given.events
        ]
        self._relays = [_SinkRelay(one.name, sinks[one.name].sink) for one in self._registrations]

    async def register(self) -> None:
        """Registers the sinks in the store. From now on, every process writes events for them."""
        for sink in self._registrations:
            await self._backend.register_sink(sink)

    async def run(self) -> None:
        """Publishes events until cancelled."""
        await asyncio.gather(*(self._run(one) for one in self._relays))

    async def run_once(self) -> int:
        """Publishes one batch to each sink, and returns the number of events that were published."""
        return sum(await asyncio.gather(*(self._publish_batch(one) for one in self._relays)))

    async def close(self) -> None:
        """Lets other processes take over the sinks, and closes the sinks."""
        for one in self._relays:
            await self._release(one)
            if one.opened:
                one.opened = False
                try:
                    await call_within(one.sink.close, 1000 * _PUBLISH_TIMEOUT_S)
                except Exception as error:  # a sink may raise anything, or hang
                    log.warning("sink %s could not be closed: %s", one.name, type(error).__name__)

    async def _run(self, one: _SinkRelay) -> None:
        while True:
            if self._clock.monotonic_ms() >= one.next_seen_ms:
                await self._mark_seen(one)
            published = 0
            if self._clock.monotonic_ms() >= one.next_try_ms:
                published = await self._publish_batch(one)
            if published < _BATCH:
                await self._clock.sleep_ms(_POLL_MS)

    async def _mark_seen(self, one: _SinkRelay) -> None:
        one.next_seen_ms = self._clock.monotonic_ms() + _SEEN_EVERY_MS
        try:
            if not await self._backend.sink_seen(one.name):
                log.warning("sink %s was removed and gets no events; a restart registers it again", one.name)
        except StoreError as error:
            log.warning("cannot mark sink %s as seen, the store is unavailable: %s", one.name, error)

    async def _publish_batch(self, one: _SinkRelay) -> int:
        """Publishes the oldest events of one sink, and returns their number."""
        async with one.lock:
            try:
                batch = await self._backend.outbox(one.name, self._worker, _BATCH, _LEASE_MS)
                if not batch:
                    return 0
                one.leads = True
                try:
                    await call_within(lambda: _publish(one, batch), 1000 * _PUBLISH_TIMEOUT_S)
                except Exception as error:  # a sink may raise anything, or hang
                    await self._pause(one, batch, error)
                    return 0
                one.pause_ms = one.next_try_ms = 0
                await self._backend.published(one.name, [event.id for event in batch])
                return len(batch)
            except StoreError as error:
                log.warning("cannot relay events, the store is unavailable; trying again: %s", error)
            except Exception:
                log.exception("relaying events failed; trying again in the next round")
            return 0

    async def _pause(self, one: _SinkRelay, batch: Sequence[Event], error: Exception) -> None:
        one.pause_ms = min(_MAX_PAUSE_MS, 2 * one.pause_ms or _POLL_MS)
        one.next_try_ms = self._clock.monotonic_ms() + one.pause_ms
        kind = type(error).__name__
        log.warning(
            "sink %s failed to take %d events, they stay in the outbox: %s", one.name, len(batch), kind
        )
        await self._release(one)

    async def _release(self, one: _SinkRelay) -> None:
        """Lets another process become the relay of this sink at once."""
        if not one.leads:
            return
        one.leads = False
        with suppress(StoreError):  # the lease expires by itself
            await self._backend.lead(relay_task(one.name), self._worker, 0)


async def _publish(one: _SinkRelay, batch: Sequence[Event]) -> None:
    if not one.opened:
        await one.sink.open()
        one.opened = True
    await one.sink.publish(batch)
