"""The parts of all processes that use a store: workers, sinks, bridges and timers, as operators see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from homing.core.errors import NotFound
from homing.core.ports.stores import RegisteredSink
from homing.core.times import moment


class WorkerState(StrEnum):
    """Whether a worker is alive."""

    LIVE = "live"
    DRAINING = "draining"
    """The worker claims nothing more and finishes what is in flight."""
    DEAD = "dead"
    """The worker has sent no heartbeat for a minute."""


class WorkerStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """A worker of any process that uses the store."""

    name: str
    state: WorkerState
    version: str
    started_at: datetime
    seen_at: datetime
    """Time of the last heartbeat."""
    lanes: Mapping[str, int]
    """Lane → maximum number of attempts in flight."""
    providers: tuple[str, ...]


class BridgeStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """A bridge of one process."""

    process: str
    """Name of the process, as in the list of workers."""
    name: str
    live: bool
    """False if the process has reported nothing for a minute."""
    seen_at: datetime
    """Time of the report."""
    status: str
    """`ok` while the bridge consumes, otherwise the reason why it does not."""
    waiting: int | None
    """Number of messages that waited at their source. None if the bridge does not know."""
    accepted: int
    """Number of messages that became notifications, since the process was started."""
    duplicates: int
    rejected: int
    failures: int


class TimerStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """A timer of one process."""

    process: str
    """Name of the process, as in the list of workers."""
    name: str
    live: bool
    """False if the process has reported nothing for a minute."""
    seen_at: datetime
    """Time of the report."""
    connected: bool
    """False after a failed call, until a later call succeeds."""
    waiting: int
    """Number of due times that the timer has not taken yet."""
    scheduled: int
    discarded: int
    """Number of due times that the timer did not get, because it failed or was too slow."""
    failures: int


class SinkStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """A registered sink of any process."""

    name: str
    kind: str
    events: tuple[str, ...]
    """Names of the events that it gets."""
    durable: bool
    """False if the sink may be removed with its events once no process has used it for an hour."""
    waiting: int
    """Number of events that the sink has not published yet, without those that are parked."""
    oldest_at: datetime | None
    """When the first of the waiting events happened. None if no event waits."""
    parked: int
    """Number of events that were set aside, because the sink refused them again and again."""
    registered_at: datetime
    last_seen_at: datetime


class SystemStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """The parts of all processes that use the store."""

    now: datetime
    """Time of the store."""
    workers: tuple[WorkerStatus, ...]
    sinks: tuple[SinkStatus, ...]
    bridges: tuple[BridgeStatus, ...]
    """Bridges of processes that have a worker, as they last reported them, and those of this process."""
    timers: tuple[TimerStatus, ...]
    """Timers of processes that have a worker, as they last reported them, and those of this process."""


def find_sink(sinks: Iterable[RegisteredSink], name: str) -> RegisteredSink:
    """Returns the sink with this name. Raises `NotFound` if there is none."""
    for sink in sinks:
        if sink.name == name:
            return sink
    raise NotFound(f"there is no sink {name!r}")


def sink_status(sink: RegisteredSink) -> SinkStatus:
    """Returns a registered sink with its times as moments."""
    return SinkStatus(
        name=sink.name,
        kind=sink.kind,
        events=tuple(sorted(sink.events)),
        durable=sink.durable,
        waiting=sink.waiting,
        oldest_at=None if sink.oldest_at is None else moment(sink.oldest_at),
        parked=sink.parked,
        registered_at=moment(sink.registered_at),
        last_seen_at=moment(sink.last_seen_at),
    )
