"""The interface of observers such as metrics and tracing, and the figures that a process reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from homing.core.errors import StoreError
from homing.core.lifecycle.claims import Acceptance, Claim, ClaimBatch, Submission
from homing.core.lifecycle.outcomes import Settlement
from homing.core.lifecycle.receipts import Receipt, ReceiptResult
from homing.core.notifications import Status
from homing.core.ports.bridges import BridgeState
from homing.core.ports.plug_ins import SinkState
from homing.core.ports.stores import RegisteredSink
from homing.core.ports.timers import TimerState
from homing.core.routing.breaker import Phase

SettledClaim = tuple[Settlement, Claim]
"""A settlement with its claim, because the settlement alone contains neither lane nor tenant."""


class Observer(Protocol):
    """Receiver of what has happened, called once per batch, after the store has committed it.

    Observers do not influence delivery. Their methods run on the engine's event loop, so they must be quick
    and must not block. Exceptions are logged and have no other effect.
    """

    def accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance]) -> None:
        """Called after the store has processed submissions.

        `answers` has one result per submission, which may be a duplicate or a conflict.
        """

    def claimed(self, batch: ClaimBatch) -> None:
        """Called after a worker of this process has claimed notifications. The batch is never empty."""

    def settled(self, batch: Sequence[SettledClaim], refused: Collection[str]) -> None:
        """Called after the store has processed settlements.

        Those of the notifications in `refused` were not written, because their leases were lost.
        """

    def receipts_applied(self, receipts: Sequence[Receipt], result: ReceiptResult) -> None:
        """Called after receipts of one provider were processed. `result` groups their event ids by result.

        Also called, without receipts, if a settlement has applied failures that were reported before it.
        """

    def callback_unreadable(self, provider: str, events: int) -> None:
        """Called after a verified callback of this provider with `events` events that could not be read."""

    def breaker_changed(self, provider: str, phase: Phase) -> None:
        """Called after this process has changed a breaker and stored the change."""

    def purged(self, removed: Mapping[str, int]) -> None:
        """Called after a step of a purge with the number of deleted records by kind.

        The kind `events` means events that a sink did not take within their retention.
        """

    def store_failed(self, call: str, error: StoreError) -> None:
        """Called after a store call has failed.

        The engine repeats the call or returns the error to its caller.
        """


class NullObserver:
    """Observer that does nothing."""

    def accepted(self, batch: Sequence[Submission], answers: Sequence[Acceptance]) -> None:
        """Does nothing."""

    def claimed(self, batch: ClaimBatch) -> None:
        """Does nothing."""

    def settled(self, batch: Sequence[SettledClaim], refused: Collection[str]) -> None:
        """Does nothing."""

    def receipts_applied(self, receipts: Sequence[Receipt], result: ReceiptResult) -> None:
        """Does nothing."""

    def callback_unreadable(self, provider: str, events: int) -> None:
        """Does nothing."""

    def breaker_changed(self, provider: str, phase: Phase) -> None:
        """Does nothing."""

    def purged(self, removed: Mapping[str, int]) -> None:
        """Does nothing."""

    def store_failed(self, call: str, error: StoreError) -> None:
        """Does nothing."""


NULL_OBSERVER: Observer = NullObserver()


class ProcessSnapshot(Struct, frozen=True, kw_only=True):
    """Current state of one process. It is read from memory, so reading it is cheap."""

    working: bool
    """True while the worker runs."""
    ms_since_last_claim: int | None
    """Time since the worker's last claim. None if there was no claim yet, or no worker runs."""
    in_flight: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(lane, provider) → number of attempts in flight."""
    abandoned: Mapping[str, int] = field(default_factory=dict)
    """Provider → number of calls that run on after the deadline of their attempt, and keep their slots."""
    settle_backlog: int = 0
    """Number of outcomes that are not yet written to the store."""
    breakers: Mapping[str, Phase] = field(default_factory=dict)
    """Provider → phase of its breaker, or the phase that an operator has forced."""
    timers: Mapping[str, TimerState] = field(default_factory=dict)
    """Name → state of each timer that the settings name. A lost timer delays work until the next poll."""
    bridges: Mapping[str, BridgeState] = field(default_factory=dict)
    """Name → state of each bridge that was started in this process."""
    sinks: Mapping[str, SinkState] = field(default_factory=dict)
    """Name → what this process has published to each of its sinks."""


class QueueDepths(Struct, frozen=True, kw_only=True):
    """Number of notifications by status, over all tenants, as counted by the store."""

    statuses: Mapping[Status, int]
    oldest_retry_ms: int | None
    """Longest time since the first failure of a waiting retry. None if no retry waits."""


class SinkBacklogs(Struct, frozen=True, kw_only=True):
    """The registered sinks with the events that wait for each, and the store's time."""

    now_ms: int
    sinks: tuple[RegisteredSink, ...]


class Readiness(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether a process is ready to work. `store` and `worker` are `ok` or describe the problem."""

    ready: bool
    store: str
    worker: str
    bridges: Mapping[str, str] = field(default_factory=dict)
    """Name of each bridge that runs in this process → `ok`, or the problem."""


class ReportsReadiness(Protocol):
    """The part of the engine that probes and the status page use."""

    async def readiness(self) -> Readiness: ...
