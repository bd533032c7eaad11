"""Publishes events from the outbox to the sinks, at least once and in order per notification.

If a sink fails on a batch, the batch is halved until the event that it refuses is alone. The others are
published, except later events of the same notification, which must wait. An event that is refused several
times while the sink takes others is parked: it stays in the store, but no longer waits to be published.
A sink that raises `SinkUnavailable` or `EventsRefused` makes the search for the refused event unnecessary.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from homing.core.errors import EventsRefused, SinkError, SinkUnavailable, StoreError
from homing.core.lifecycle.events import ALERT, NOTIFICATION_FAILED, Event
from homing.core.lifecycle.trace_ids import traceparent_of
from homing.core.ports.plug_ins import Sink, SinkState, SubscribedSink
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Backend, SinkRegistration, relay_task
from homing.core.redaction import redact
from homing.engine.plug_in_calls import call_within

log = logging.getLogger("homing.relay")


DEFAULT_EVENTS = frozenset({NOTIFICATION_FAILED, ALERT})

_LEASE_MS = 30_000

_BATCH = 200

_MAX_ROUNDS = 500
"""Number of batches per sink that one call of `run_until_empty` publishes at most."""

_PUBLISH_TIMEOUT_S = 20
"""Shorter than the lease, so that a sink gets no events from two relays at once."""

_POLL_MS = 1_000

_MAX_PAUSE_MS = 30_000

_MAX_RETRY_AFTER_MS = 600_000
"""Longest pause that the other system can ask for."""

_MAX_ERROR_CHARS = 500

_SEEN_EVERY_MS = 60_000

_ISOLATE_MS = _LEASE_MS - 1_000 * _PUBLISH_TIMEOUT_S
"""Longest time after which the search for refused events starts another call of the sink."""

_MAX_VAIN_CALLS = 12
"""Number of failed calls without a successful one after which the sink counts as unavailable. A batch is
halved eight times until an event is alone."""

_MIN_REFUSALS, _PARK_AFTER_MS = 5, 300_000
"""Number of rounds, and time since the first of them, in which an event is refused before it is parked."""

_MAX_SUSPECTS = 1_000

_DATA_ERRORS = (TypeError, ValueError, RecursionError, OverflowError)
"""Errors of a sink that concern the event itself, unless they are an `OSError` too."""


class _Suspect(Struct):
    """An event that a sink has refused while it took others."""

    since_ms: int
    refusals: int = 0


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
    not_before_ms: int = 0
    """Time until which the other system has asked not to be called."""
    next_seen_ms: int = 0
    limit: int = _BATCH
    """Number of events per call. It is halved after a call that hung, and doubled after a round without an
    error."""
    published: int = 0
    failures: int = 0
    removed: bool = False
    """True if the sink is known to have been removed from the store."""
    suspects: dict[str, _Suspect] = field(default_factory=dict)
    """Suspected events by id."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a batch is published, because `process` may call `run_once` while `run` publishes."""


class _Round(Struct):
    """One round of publishing: the calls still to make, and what the calls so far have resulted in."""

    parts: list[list[Event]]
    """Stack of the calls to make."""
    published: list[Event] = field(default_factory=list)
    refused: list[tuple[Event, Exception]] = field(default_factory=list)
    blocked: set[str] = field(default_factory=set)
    """Notifications whose later events must wait for one that was not published."""
    vain_calls: int = 0
    last_error: Exception | None = None
    unavailable: bool = False
    """True if the sink has reported that the other system takes no events now."""

    @property
    def goes_on(self) -> bool:
        return bool(self.parts) and self.vain_calls < _MAX_VAIN_CALLS and not self.unavailable

    def next_part(self) -> list[Event]:
        """Returns the events of the next call, without those that must wait."""
        return [event for event in self.parts.pop() if event.notification_id not in self.blocked]

    def record_failure(self, part: list[Event], error: Exception) -> None:
        """Decides what becomes of the events of a failed call: refused, tried again in parts, or later."""
        self.last_error = error
        if isinstance(error, SinkError):
            self.published += [event for event in part if event.id in error.published]
            part = [event for event in part if event.id not in error.published]
        self.vain_calls += not self.published
        self.unavailable = isinstance(error, SinkUnavailable)
        if self.unavailable:
            return
        bad = part if len(part) == 1 else []
        if isinstance(error, EventsRefused):
            bad = [event for event in part if event.id in error.refused] or bad
        if bad:
            self.refused += [(event, error) for event in bad]
            ids = {event.id for event in bad}
            self.parts.append([event for event in part if event.id not in ids])
            self._block(bad)
        elif isinstance(error, TimeoutError):
            self._block(part)
        elif part:
            middle = len(part) // 2
            self.parts += [part[middle:], part[:middle]]

    def _block(self, events: Iterable[Event]) -> None:
        self.blocked.update(event.notification_id for event in events if event.notification_id is not None)


class OutboxRelay:
    """Publishes the events of this process's sinks.

    Several processes may have the same sink. In the store, one of them at a time is the relay of that sink,
    so the events of a notification arrive in order. A sink that fails or hangs is paused and its events stay
    in the outbox, where another process may publish them. Other sinks are not affected.
    """

    def __init__(
        self,
        backend: Backend,
        sinks: Mapping[str, SubscribedSink],
        clock: Clock,
        worker: str,
        *,
        trace_share: float = 0.0,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._worker = worker
        self._trace_share = trace_share
        """Share of notifications that are traced. 0 if tracing is off."""
        self._registrations = [
            SinkRegistration(name=name, kind=given.kind, events=given.events, durable=given.durable)
            for name, given in sinks.items()
            if given.events
        ]
        self._relays = [_SinkRelay(one.name, sinks[one.name].sink) for one in self._registrations]
        self._registered_in = ""
        """History of the store in which the sinks were registered last."""

    async def register(self) -> None:
        """Registers the sinks in the store. From now on, every process writes events for them."""
        for one in self._relays:
            one.removed = False
        await self.register_again()

    async def register_again(self) -> None:
        """Registers the sinks again, after the store may have lost them, but not those that were removed."""
        for one, sink in zip(self._relays, self._registrations, strict=True):
            if not one.removed:
                await self._backend.register_sink(sink)
        self._registered_in = self._backend.history

    def states(self) -> dict[str, SinkState]:
        """Returns what this process has published to each sink."""
        return {
            one.name: SinkState(published=one.published, failures=one.failures, available=one.pause_ms == 0)
            for one in self._relays
        }

    def note_removed(self, name: str) -> None:
        """Remembers that a sink was removed, so that only a start of the process registers it again."""
        for one in self._relays:
            if one.name == name:
                one.removed = True

    async def run(self) -> None:
        """Publishes events until cancelled."""
        await asyncio.gather(*(self._run(one) for one in self._relays))

    async def run_once(self) -> int:
        """Publishes one batch to each sink, and returns the number of events that were published."""
        return sum(await asyncio.gather(*(self._publish_batch(one) for one in self._relays)))

    async def run_until_empty(self) -> None:
        """Publishes the events that wait, for a process that does not run long enough to come back."""
        for _ in range(_MAX_ROUNDS):
            if await self.run_once() < _BATCH:
                return

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

    async def mark_seen(self) -> None:
        """Marks the sinks as seen, if that is due. For a process in which `run` does not run."""
        for one in self._relays:
            if self._clock.monotonic_ms() >= one.next_seen_ms:
                await self._mark_seen(one)

    async def _mark_seen(self, one: _SinkRelay) -> None:
        one.next_seen_ms = self._clock.monotonic_ms() + _SEEN_EVERY_MS
        try:
            if not await self._backend.sink_seen(one.name):
                if self._backend.history != self._registered_in:
                    return  # perhaps the store has lost it, and it will be registered again
                one.removed = True
                log.warning("sink %s was removed and gets no events; a restart registers it again", one.name)
        except StoreError as error:
            log.warning("cannot mark sink %s as seen, the store is unavailable: %s", one.name, error)
        except Exception:
            log.exception("marking sink %s as seen failed unexpectedly; trying again", one.name)

    async def _publish_batch(self, one: _SinkRelay) -> int:
        """Publishes the oldest events of one sink, and returns their number."""
        async with one.lock:
            if self._clock.monotonic_ms() < one.not_before_ms:
                return 0
            try:
                limit = _BATCH + len(one.suspects)
                batch = await self._backend.outbox(one.name, self._worker, limit, _LEASE_MS)
                if not batch:
                    return 0
                one.leads = True
                until_ms = self._clock.monotonic_ms() + _ISOLATE_MS
                if not await self._open(one, batch):
                    return 0
                return await self._publish_isolated(one, self._traced(batch), until_ms)
            except StoreError as error:
                log.warning("cannot relay events, the store is unavailable; trying again: %s", error)
            except Exception:
                log.exception("relaying events failed; trying again in the next round")
            return 0

    def _traced(self, batch: Sequence[Event]) -> Sequence[Event]:
        """Returns the events with the trace context of their notifications, if notifications are traced."""
        if self._trace_share <= 0:
            return batch
        return [
            replace(event, traceparent=traceparent_of(event.notification_id, self._trace_share))
            for event in batch
        ]

    async def _open(self, one: _SinkRelay, batch: Sequence[Event]) -> bool:
        """Opens a sink that is not open yet. If that fails, pauses the sink and returns False."""
        if one.opened:
            return True
        try:
            await call_within(one.sink.open, 1000 * _PUBLISH_TIMEOUT_S)
        except Exception as error:  # a sink may raise anything, or hang
            one.failures += 1
            await self._pause(one, batch, error)
            return False
        one.opened = True
        return True

    async def _publish_isolated(self, one: _SinkRelay, batch: Sequence[Event], until_ms: int) -> int:
        """Publishes a batch, apart from the events that the sink refuses, and returns the number.

        No call of the sink starts after `until_ms`.
        """
        turn = _Round(_calls(batch, one.suspects, one.limit, probe=one.pause_ms > 0))
        while turn.goes_on and self._clock.monotonic_ms() <= until_ms:
            part = turn.next_part()
            if not part:
                continue
            try:
                await call_within(partial(one.sink.publish, part), 1000 * _PUBLISH_TIMEOUT_S)
            except Exception as error:  # a sink may raise anything, or hang
                if isinstance(error, TimeoutError):
                    one.limit = max(1, len(part) // 2)
                turn.record_failure(part, error)
            else:
                turn.published += part
        if turn.published:
            await self._backend.published(one.name, turn.published)
            one.pause_ms = one.next_try_ms = 0
        if turn.last_error is None:
            one.limit = min(_BATCH, 2 * one.limit)
        await self._park(one, turn.refused, bool(turn.published))
        for event in turn.published:
            one.suspects.pop(event.id, None)
        one.published += len(turn.published)
        one.failures += turn.last_error is not None
        if turn.last_error is not None and (turn.unavailable or not turn.published):
            await self._pause(one, batch, turn.last_error)
        return len(turn.published)

    async def _park(
        self, one: _SinkRelay, refused: Iterable[tuple[Event, Exception]], took_others: bool
    ) -> None:
        """Counts refusals, and parks the events that were refused often enough.

        A refusal counts if the sink took other events in the same round, or if the error concerns the event
        itself.
        """
        parked, now_ms = list[tuple[Event, Exception]](), self._clock.monotonic_ms()
        for event, error in refused:
            id = event.id
            if not took_others and not _concerns_event(error):
                continue
            if id not in one.suspects and len(one.suspects) >= _MAX_SUSPECTS:
                continue
            suspect = one.suspects.setdefault(id, _Suspect(now_ms))
            suspect.refusals += 1
            if suspect.refusals >= _MIN_REFUSALS and now_ms - suspect.since_ms >= _PARK_AFTER_MS:
                parked.append((event, error))
        if not parked:
            return
        await self._backend.park_events(one.name, [event for event, _ in parked])
        for event, error in parked:
            why = _describe(error)
            log.error(
                "sink %s refused the event %s again and again; it is parked: %s", one.name, event.id, why
            )
            del one.suspects[event.id]

    async def _pause(self, one: _SinkRelay, batch: Sequence[Event], error: Exception) -> None:
        mono = self._clock.monotonic_ms()
        one.pause_ms = min(_MAX_PAUSE_MS, 2 * one.pause_ms or _POLL_MS)
        one.next_try_ms = mono + one.pause_ms
        log.warning(
            "sink %s failed to take %d events, they stay in the outbox: %s",
            one.name,
            len(batch),
            _describe(error),
        )
        asked_ms = error.retry_after_ms if isinstance(error, SinkUnavailable) else None
        if not asked_ms:
            await self._release(one)
            return
        asked_ms = min(_MAX_RETRY_AFTER_MS, asked_ms)
        one.not_before_ms = mono + asked_ms
        one.next_try_ms = max(one.next_try_ms, one.not_before_ms)
        if one.leads:  # otherwise another process would call the other system at once
            with suppress(StoreError):
                await self._backend.lead(relay_task(one.name), self._worker, asked_ms)

    async def _release(self, one: _SinkRelay) -> None:
        """Lets another process become the relay of this sink at once."""
        if not one.leads:
            return
        one.leads = False
        with suppress(StoreError):  # the lease expires by itself
            await self._backend.lead(relay_task(one.name), self._worker, 0)


def _calls(batch: Sequence[Event], suspects: Collection[str], size: int, *, probe: bool) -> list[list[Event]]:
    """Returns a stack of the calls to make: first all events that are not suspected, then each suspect alone.

    Later events of a suspect's notification wait for the suspect, and are not published in this round. If
    `probe`, the first call has only one event, the last one in the batch that is the first of its
    notification. Whether the sink takes it shows if the sink is unavailable or refuses the events before it.
    """
    waiting, alone = list[Event](), list[list[Event]]()
    seen: set[str] = set()
    behind: set[str] = set()
    probed: Event | None = None
    for event in batch:
        about = event.notification_id
        if event.id in suspects:
            alone.append([event])
            behind.update(() if about is None else (about,))
        elif about is None or about not in behind:
            waiting.append(event)
            if probe and about is not None and about not in seen:
                probed = event
        if probe and about is not None:
            seen.add(about)
    if probed is not None:
        waiting.remove(probed)
    others = [waiting[start : start + size] for start in range(0, len(waiting), size)]
    first = [] if probed is None else [[probed]]
    return [*reversed(alone), *reversed(others), *first]


def _describe(error: Exception) -> str:
    """Returns the message of an error that is known to contain no secrets, or the kind of another error."""
    return redact(str(error))[:_MAX_ERROR_CHARS] if isinstance(error, SinkError) else type(error).__name__


def _concerns_event(error: Exception) -> bool:
    """Returns True if the event itself is at fault, so that the error counts although no event was taken.

    An expired certificate is a `ValueError` and an `OSError`, and concerns the connection.
    """
    return isinstance(error, _DATA_ERRORS) and not isinstance(error, OSError)
