"""The methods that both SQL stores share: each one runs an operation of the store's modules in a transaction.

The modules of the two stores have the same functions, but those of PostgreSQL are coroutines. So their types
cannot be checked here; the conformance suite calls every method of both stores.
"""
# mypy: disable-error-code=no-any-return

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from types import ModuleType
from typing import Any

from homing.core.lifecycle.claims import Lease
from homing.core.lifecycle.commands import AmendResult, Command
from homing.core.lifecycle.events import Event
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.notifications import Filter, History, Page, Status
from homing.core.ports.stores import (
    Entry,
    RegisteredSink,
    Retention,
    SeenWorker,
    TokenGrant,
    TokenRequest,
    WorkerHeartbeat,
)
from homing.core.routing.breaker import Breaker
from homing.core.routing.rate_limits import RateLimit
from homing.core.statistics import (
    ErrorGroup,
    GoalRollUp,
    MinuteRollUp,
    RollUp,
    Tally,
    Unacknowledged,
    WaitingGroups,
)


class TransactionalStore(ABC):
    """The operations that are one transaction in every store with SQL transactions."""

    # The store's modules of these names.
    _amend: ModuleType
    _change_recorder: ModuleType
    _leases: ModuleType
    _reads: ModuleType
    _reference_data: ModuleType
    _sinks: ModuleType
    _upkeep: ModuleType
    _workers: ModuleType

    @abstractmethod
    async def _write(self, action: Callable[[Any], Any]) -> Any:
        """Runs the action in a transaction."""

    async def _write_with_events(self, action: Callable[[Any], Any]) -> Any:
        """Runs the action, which may write events, in a transaction that knows the registered sinks."""
        return await self._write(action)

    @abstractmethod
    async def _read(self, action: Callable[[Any], Any], tenant: str | None = None) -> Any:
        """Runs the action, which only reads, in a transaction. `tenant` is the one that asks, if any."""

    @abstractmethod
    async def _look(self, action: Callable[[Any], Any]) -> Any:
        """Runs the action, which is a single reading statement. It needs no transaction."""

    # Delivery path ------------------------------------------------------------------------------

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> frozenset[str]:
        return await self._write(lambda tx: self._leases.extend_leases(tx, leases, lease_ms))

    async def amend(
        self, tenant: str, target: Sequence[str] | Filter, command: Command, *, limit: int = 1000
    ) -> AmendResult:
        return await self._write_with_events(lambda tx: self._amend.amend(tx, tenant, target, command, limit))

    # Reads ---------------------------------------------------------------------------------------

    async def get(self, tenant: str, id: str) -> History | None:
        return await self._read(lambda tx: self._reads.get(tx, tenant, id), tenant)

    async def find_missing(self, ids: Collection[str]) -> frozenset[str]:
        return await self._look(lambda tx: self._reads.find_missing(tx, ids))

    async def list(
        self,
        tenant: str,
        filter: Filter,
        *,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
        scan: int | None = None,
    ) -> Page:
        return await self._read(
            lambda tx: self._reads.list_page(tx, tenant, filter, limit, cursor, oldest_first, scan), tenant
        )

    async def waiting(self, tenant: str | None, *, limit: int = 50, ready: bool | None = None) -> Page:
        return await self._read(lambda tx: self._reads.waiting(tx, tenant, limit, ready), tenant)

    async def count_due(self, tenant: str | None) -> dict[Status, int]:
        return await self._read(lambda tx: self._reads.count_due(tx, tenant), tenant)

    async def waiting_groups(
        self, tenant: str, *, step_ms: int | None = None, limit: int = 20_000
    ) -> WaitingGroups:
        return await self._read(lambda tx: self._reads.waiting_groups(tx, tenant, step_ms, limit), tenant)

    async def tallies(self, tenant: str | None) -> tuple[Tally, ...]:
        return await self._read(lambda tx: self._reads.tallies(tx, tenant), tenant)

    async def error_groups(
        self, tenant: str, *, limit: int = 50, status: Status = Status.FAILED, newest: int | None = None
    ) -> tuple[ErrorGroup, ...]:
        return await self._read(
            lambda tx: self._reads.error_groups(tx, tenant, limit, status, newest), tenant
        )

    async def retrying(self, tenant: str, *, limit: int = 50) -> Page:
        return await self._read(lambda tx: self._reads.retrying(tx, tenant, limit), tenant)

    async def roll_ups(self, tenant: str | None, *, since_ms: int) -> tuple[RollUp, ...]:
        return await self._read(lambda tx: self._reads.roll_ups(tx, tenant, since_ms), tenant)

    async def minute_roll_ups(
        self, tenant: str | None, *, since_ms: int, step_ms: int = 60_000
    ) -> tuple[MinuteRollUp, ...]:
        return await self._read(lambda tx: self._reads.minute_roll_ups(tx, tenant, since_ms, step_ms), tenant)

    async def last_attempts(
        self, tenant: str, *, per_provider: int, scan: int
    ) -> tuple[tuple[str, AttemptRecord], ...]:
        return await self._read(lambda tx: self._reads.last_attempts(tx, tenant, per_provider, scan), tenant)

    async def goal_roll_ups(self, tenant: str | None, *, since_ms: int) -> tuple[GoalRollUp, ...]:
        return await self._read(lambda tx: self._reads.goal_roll_ups(tx, tenant, since_ms), tenant)

    async def unacknowledged(self, tenant: str | None) -> Unacknowledged:
        return await self._read(lambda tx: self._reads.unacknowledged(tx, tenant), tenant)

    async def oldest_retry_at(self, tenant: str | None) -> datetime | None:
        return await self._read(lambda tx: self._reads.oldest_retry_at(tx, tenant), tenant)

    async def silent(
        self, status: Status, providers: Collection[str], *, after: int, until: int, limit: int
    ) -> tuple[tuple[str, str], ...]:
        return await self._read(lambda tx: self._reads.silent(tx, status, providers, after, until, limit))

    async def tenants(self) -> tuple[str, ...]:
        return await self._read(self._reads.tenants)

    # Events --------------------------------------------------------------------------------------

    async def emit(self, events: Sequence[Event]) -> None:
        await self._write_with_events(lambda tx: self._change_recorder.write_events(tx, events))

    async def sink_seen(self, name: str) -> bool:
        return await self._write(lambda tx: self._sinks.sink_seen(tx, name))

    async def sinks(self) -> tuple[RegisteredSink, ...]:
        return await self._read(self._sinks.sinks)

    async def outbox(self, sink: str, worker: str, limit: int, lease_ms: int) -> tuple[Event, ...]:
        return await self._write(lambda tx: self._sinks.lease_events(tx, sink, worker, limit, lease_ms))

    async def published(self, sink: str, events: Sequence[Event]) -> None:
        await self._write(lambda tx: self._sinks.remove_events(tx, sink, events))

    async def park_events(self, sink: str, events: Sequence[Event]) -> None:
        await self._write(lambda tx: self._sinks.park_events(tx, sink, events))

    async def release_events(self, sink: str) -> int:
        return await self._write(lambda tx: self._sinks.release_events(tx, sink))

    # Workers -------------------------------------------------------------------------------------

    async def worker_seen(self, heartbeat: WorkerHeartbeat) -> None:
        await self._write(lambda tx: self._workers.worker_seen(tx, heartbeat))

    async def worker_gone(self, name: str) -> None:
        await self._write(lambda tx: self._workers.worker_gone(tx, name))

    async def workers(self) -> tuple[SeenWorker, ...]:
        return await self._look(self._workers.workers)

    # Upkeep --------------------------------------------------------------------------------------

    async def prune(self, retention: Retention, limit: int) -> Mapping[str, int]:
        return await self._write_with_events(lambda tx: self._upkeep.prune(tx, retention, limit))

    # Registry ------------------------------------------------------------------------------------

    async def get_many(self, tenant: str, kind: str, keys: Collection[str]) -> dict[str, Entry]:
        return await self._look(lambda tx: self._reference_data.get_many(tx, tenant, kind, keys))

    async def list_entries(
        self, tenant: str, kind: str, *, prefix: str = "", after: str = "", limit: int = 100
    ) -> tuple[Entry, ...]:
        return await self._look(
            lambda tx: self._reference_data.list_entries(tx, tenant, kind, prefix, after, limit)
        )

    async def put(self, entries: Sequence[Entry], *, who: str) -> tuple[Entry, ...] | None:
        return await self._write(lambda tx: self._reference_data.put(tx, entries, who))

    async def delete(self, tenant: str, kind: str, keys: Sequence[str]) -> int:
        return await self._write(lambda tx: self._reference_data.delete(tx, tenant, kind, keys))

    # State shared by workers ---------------------------------------------------------------------

    async def breakers(self) -> dict[str, Breaker]:
        return await self._look(self._reference_data.breakers)

    async def put_breaker(self, provider: str, breaker: Breaker) -> bool:
        return await self._write(lambda tx: self._reference_data.put_breaker(tx, provider, breaker))

    async def take(self, key: str, limit: RateLimit, want: int, reserve: int = 0) -> TokenGrant:
        wants = {key: TokenRequest(limit, want, reserve)}
        return (await self._write(lambda tx: self._reference_data.take_tokens(tx, wants)))[key]

    async def take_many(self, wants: Mapping[str, TokenRequest]) -> dict[str, TokenGrant]:
        return await self._write(lambda tx: self._reference_data.take_tokens(tx, wants))

    async def lead(self, task: str, worker: str, for_ms: int) -> bool:
        return await self._write(lambda tx: self._reference_data.lead(tx, task, worker, for_ms))
