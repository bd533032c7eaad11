"""The registered sinks as one transaction sees them, and the outbox rows that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from msgspec import Struct

from homing.core.lifecycle.events import Event
from homing.core.ports.stores import RegisteredSink, SinkRegistration
from homing.stores.common.codec import Column, encode

SINK_EVENT_FIELDS = ("id", "sink", "name", "tenant", "at", "notification_id", "payload")
"""Columns of an outbox row, in the order of `sink_event_rows`."""

LEGACY_KEPT_MS = 3_600_000
"""Events that an older release wrote without a sink are kept this long for sinks that register."""

REMOVER = "removal of the sink"
"""Relay of a sink while it is removed, so that nothing is published of what is left."""

REMOVAL_TERM_MS = 60_000
"""Term of the `REMOVER`. If the removing process ends, a relay may publish what is left after this time."""

REMOVAL_STEP = 1_000
"""Number of events to delete per transaction when a sink is removed."""


def parked_name(sink: str) -> str:
    """Returns the name under which the outbox keeps the parked events of a sink.

    No sink is registered under it, so no relay gets these events. Copies and retention include them.
    """
    return f"parked:{sink}"


class SinkBook(Struct, frozen=True, gc=False):
    """The sinks that are registered as of a transaction."""

    sinks: tuple[tuple[str, frozenset[str]], ...] = ()
    """Name and events of each sink, by name."""
    subscribed: frozenset[str] = frozenset()
    """Names of all events that at least one sink gets."""


NO_SINKS = SinkBook()


@lru_cache(maxsize=64)
def read_sink_book(text: str | None) -> SinkBook:
    """Decodes the sinks from lines of `EVENT,EVENT NAME`. None means that there are no sinks."""
    lines = (line.partition(" ") for line in sorted((text or "").split("\n")) if line)
    sinks = tuple((name, split_events(events)) for events, _, name in lines)
    return SinkBook(sinks, frozenset().union(*(events for _, events in sinks)))


def sink_event_rows(book: SinkBook, events: Iterable[Event]) -> Iterator[tuple[Column, ...]]:
    """Yields the outbox rows of these events: one per event and sink that gets the event."""
    for e in events:
        payload = None
        for sink, names in book.sinks:
            if e.name in names:
                payload = payload or encode(e.payload)
                yield e.id, sink, e.name, e.tenant, e.at, e.notification_id, payload


def join_events(events: Iterable[str]) -> str:
    """Returns names of events as they are stored."""
    return ",".join(sorted(events))


def split_events(events: str) -> frozenset[str]:
    """Returns the names of events that are stored as this text."""
    return frozenset(events.split(",")) - {""}


def is_known(sinks: Iterable[RegisteredSink], sink: SinkRegistration) -> bool:
    """Returns True if one of the registered sinks equals the registration."""
    fields = SinkRegistration.__struct_fields__
    return any(all(getattr(one, name) == getattr(sink, name) for name in fields) for one in sinks)
