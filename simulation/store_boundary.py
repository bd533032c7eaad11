"""A simulated process's connection to the store, with the faults of a network, and the trace of a run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from random import Random
from typing import Any, NoReturn, Protocol, TypeVar

from msgspec.structs import replace

from homing.core.errors import StoreUnavailable
from homing.core.lifecycle.claims import Acceptance, ClaimBatch, ClaimRequest, Lease, Submission
from homing.core.lifecycle.commands import AmendResult, Command
from homing.core.lifecycle.events import Event
from homing.core.lifecycle.outcomes import Settlement, SettleResult
from homing.core.lifecycle.receipts import Receipt, ReceiptResult
from homing.core.notifications import Filter, History, Page, Status
from homing.core.ports.stores import (
    Entry,
    RegisteredSink,
    Retention,
    SeenWorker,
    SinkRegistration,
    TokenGrant,
    TokenRequest,
    WorkerHeartbeat,
)
from homing.core.routing.breaker import Breaker
from homing.core.routing.rate_limits import RateLimit
from homing.core.statistics import ErrorGroup, RollUp, Tally
from simulation.checkers.store import CheckedStore
from simulation.database import StatementFault
from simulation.plan import FaultPlan

_T = TypeVar("_T")

_FAULTY_STATEMENTS = 16
"""A fault strikes one of the first 16 statements of a call. If the call has fewer, it may strike none."""


class FaultyStoreOwner(Protocol):
    """The simulated process that uses the store."""

    name: str
    dead: bool

    def crash(self, why: str) -> None: ...
    def store_is_away(self) -> bool: ...


class FaultyStore:
    """A `Backend` that passes every call to the store, but injects faults.

    Before or after the store has executed a call, the call may fail or be delayed, or the process may crash.
    Calls of a dead process are cancelled before they reach the store.
    """

    def __init__(
        self, host: FaultyStoreOwner, store: CheckedStore, fault_plan: FaultPlan, rng: Random
    ) -> None:
        self._host = host
        self._store = store
        self._rng = rng
        self.fault_plan = fault_plan

    # Store ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._call("open", self._store.open)

    async def close(self) -> None:
        """Does nothing: the other processes still use the store."""

    async def migrate(self) -> tuple[str, ...]:
        return await self._call("migrate", self._store.migrate)

    async def now_ms(self) -> int:
        return await self._call("now_ms", self._store.now_ms)

    async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
        return await self._call("accept", lambda: self._store.accept(batch, tx=tx))

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        return await self._call("claim", lambda: self._store.claim(request))

    async def reclaim(self, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        return await self._call("reclaim", lambda: self._store.reclaim(worker, limit, lease_ms))

    hears = True

    async def listen(self, wake: Callable[[], None], wake_inbox: Callable[[], None]) -> None:
        """Never wakes the worker. A lost wake-up may delay work, but must not do other harm."""

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> frozenset[str]:
        return await self._call("extend", lambda: self._store.extend(leases, lease_ms))

    async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
        return await self._call("settle", lambda: self._store.settle(batch))

    async def amend(
        self, tenant: str, target: Sequence[str] | Filter, command: Command, *, limit: int = 1000
    ) -> AmendResult:
        return await self._call("amend", lambda: self._store.amend(tenant, target, command, limit=limit))

    async def receipt(self, batch: Sequence[Receipt]) -> ReceiptResult:
        return await self._call("receipt", lambda: self._store.receipt(batch))

    async def emit(self, events: Sequence[Event]) -> None:
        await self._call("emit", lambda: self._store.emit(events))

    async def register_sink(self, sink: SinkRegistration) -> None:
        await self._call("register_sink", lambda: self._store.register_sink(sink))

    async def sink_seen(self, name: str) -> bool:
        return await self._call("sink_seen", lambda: self._store.sink_seen(name))

    async def remove_sink(self, name: str) -> int | None:
        return await self._call("remove_sink", lambda: self._store.remove_sink(name))

    async def sinks(self) -> tuple[RegisteredSink, ...]:
        return await self._call("sinks", lambda: self._store.sinks())

    async def outbox(self, sink: str, worker: str, limit: int, lease_ms: int) -> tuple[Event, ...]:
        return await self._call("outbox", lambda: self._store.outbox(sink, worker, limit, lease_ms))

    async def published(self, sink: str, ids: Sequence[str]) -> None:
        await self._call("published", lambda: self._store.published(sink, ids))

    async def worker_seen(self, heartbeat: WorkerHeartbeat) -> None:
        await self._call("worker_seen", lambda: self._store.worker_seen(heartbeat))

    async def worker_gone(self, name: str) -> None:
        await self._call("worker_gone", lambda: self._store.worker_gone(name))

    async def workers(self) -> tuple[SeenWorker, ...]:
        return await self._call("workers", self._store.workers)

    async def get(self, tenant: str, id: str) -> History | None:
        return await self._call("get", lambda: self._store.get(tenant, id))

    async def list(self, tenant: str, filter: Filter, *, limit: int = 50, cursor: str | None = None) -> Page:
        return await self._call("list", lambda: self._store.list(tenant, filter, limit=limit, cursor=cursor))

    async def waiting(self, tenant: str, *, limit: int = 50, ready: bool | None = None) -> Page:
        return await self._call("waiting", lambda: self._store.waiting(tenant, limit=limit, ready=ready))

    async def tallies(self, tenant: str | None) -> tuple[Tally, ...]:
        return await self._call("tallies", lambda: self._store.tallies(tenant))

    async def error_groups(self, tenant: str, *, limit: int = 50) -> tuple[ErrorGroup, ...]:
        return await self._call("error_groups", lambda: self._store.error_groups(tenant, limit=limit))

    async def roll_ups(self, tenant: str | None, *, since_ms: int) -> tuple[RollUp, ...]:
        return await self._call("roll_ups", lambda: self._store.roll_ups(tenant, since_ms=since_ms))

    async def oldest_retry_at(self, tenant: str | None) -> datetime | None:
        return await self._call("oldest_retry_at", lambda: self._store.oldest_retry_at(tenant))

    async def silent(
        self, status: Status, providers: Collection[str], *, after: int, until: int, limit: int
    ) -> tuple[tuple[str, str], ...]:
        return await self._call(
            "silent", lambda: self._store.silent(status, providers, after=after, until=until, limit=limit)
        )

    async def tenants(self) -> tuple[str, ...]:
        return await self._call("tenants", self._store.tenants)

    async def prune(self, retention: Retention, limit: int) -> Mapping[str, int]:
        return await self._call("prune", lambda: self._store.prune(retention, limit))

    async def size(self) -> Mapping[str, int]:
        return await self._call("size", self._store.size)

    # Registry ------------------------------------------------------------------------------------

    async def get_many(self, tenant: str, kind: str, keys: Collection[str]) -> dict[str, Entry]:
        return await self._call("get_many", lambda: self._store.get_many(tenant, kind, keys))

    async def list_entries(
        self, tenant: str, kind: str, *, prefix: str = "", after: str = "", limit: int = 100
    ) -> tuple[Entry, ...]:
        entries = await self._call(
            "list_entries",
            lambda: self._store.list_entries(tenant, kind, prefix=prefix, after=after, limit=limit),
        )
        if kind == "policy":
            self._store.watch.policies_read(self._host.name, entries)
        return entries

    async def put(self, entries: Sequence[Entry], *, who: str) -> tuple[Entry, ...] | None:
        return await self._call("put", lambda: self._store.put(entries, who=who))

    async def delete(self, tenant: str, kind: str, keys: Sequence[str]) -> int:
        return await self._call("delete", lambda: self._store.delete(tenant, kind, keys))

    # Shared --------------------------------------------------------------------------------------

    async def breakers(self) -> dict[str, Breaker]:
        found = await self._call("breakers", self._store.breakers)
        self._store.watch.breakers.read(self._host.name, found)
        return found

    async def put_breaker(self, provider: str, breaker: Breaker) -> bool:
        put = await self._call("put_breaker", lambda: self._store.put_breaker(provider, breaker))
        if put:
            stored = replace(breaker, version=breaker.version + 1)
            self._store.watch.breakers.known(self._host.name, provider, stored)
        else:
            self._store.watch.breakers.refused(self._host.name, provider)
        return put

    async def take(self, key: str, limit: RateLimit, want: int) -> TokenGrant:
        return await self._call("take", lambda: self._store.take(key, limit, want))

    async def take_many(self, wants: Mapping[str, TokenRequest]) -> dict[str, TokenGrant]:
        return await self._call("take_many", lambda: self._store.take_many(wants))

    async def lead(self, task: str, worker: str, for_ms: int) -> bool:
        return await self._call("lead", lambda: self._store.lead(task, worker, for_ms))

    # Faults --------------------------------------------------------------------------------------

    async def _call(self, name: str, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        await self._travel(name, "before")
        fault = self._next_fault()
        if fault is None:
            answer = await work()  # one transaction, because a store in memory never awaits
        else:
            with self._store.failing(fault, name):
                answer = await work()
        await self._travel(name, "after")
        return answer

    def _next_fault(self) -> StatementFault | None:
        """Draws whether a statement of the next call fails, and which one."""
        share = self.fault_plan.statement_error_per_call
        if not share or self._rng.random() >= share:
            return None
        statement = 0 if self._rng.random() < 0.3 else self._rng.randrange(1, _FAULTY_STATEMENTS + 1)
        return StatementFault(statement, full=self._rng.random() < 0.5)

    async def _travel(self, name: str, leg: str) -> None:
        """Simulates the request or the response. One random number decides which fault occurs, if any."""
        self._alive()
        drawn, fault_plan = self._rng.random(), self.fault_plan
        if leg == "before" and self._host.store_is_away():
            await self._fail(name, leg)
        if drawn > 0.6:
            await self._take_ms(int(8 * (drawn - 0.6)) + 1)
            return
        drawn -= fault_plan.crash_per_call / 2
        if drawn < 0:
            self._host.crash(f"{leg} {name}")
            self._alive()
        drawn -= fault_plan.error_per_call / 2
        if drawn < 0:
            await self._fail(name, leg)
        drawn -= fault_plan.slow_per_call / 2
        if drawn < 0:
            await self._take_ms(self._rng.randrange(100, fault_plan.longest_slow_ms))

    async def _fail(self, name: str, leg: str) -> NoReturn:
        await self._take_ms(self._rng.randrange(1, 100))
        self._store.trace(self._host.name, f"store error {leg} {name}")
        raise StoreUnavailable(f"simulated store error {leg} {name}")

    async def _take_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)
        self._alive()

    def _alive(self) -> None:
        if self._host.dead:
            raise asyncio.CancelledError("the process is dead")


class Trace:
    """A log with lines of `time process event`.

    The hash covers all lines. Only the newest `keep` lines are stored, or all if `keep` is None.
    """

    def __init__(self, keep: int | None = 20_000) -> None:
        self._hash = sha256()
        self._pending: list[str] = []
        self.lines: deque[str] = deque(maxlen=keep)
        self.length = 0

    def add(self, at_ms: int, who: str, what: str) -> None:
        """Adds one event, `at_ms` after the start of the run."""
        line = f"{at_ms:>9} {who:<6} {what}"
        self.lines.append(line)
        self._pending.append(line)
        self.length += 1
        if len(self._pending) >= 512:
            self._digest()

    @property
    def sha256(self) -> str:
        """Returns the hash of all lines so far."""
        self._digest()
        return self._hash.hexdigest()

    def tail(self, number: int, about: str = "") -> list[str]:
        """Returns the newest `number` lines that contain `about`."""
        chosen = [line for line in self.lines if about in line]
        return chosen[-number:]

    def _digest(self) -> None:
        if self._pending:
            self._hash.update(("\n".join(self._pending) + "\n").encode())
            self._pending.clear()
