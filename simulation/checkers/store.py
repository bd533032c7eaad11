"""The store object of one simulated process, with a check after each of its commits."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from homing.core.errors import StoreError
from homing.core.lifecycle.claims import Acceptance, ClaimBatch, ClaimRequest, Lease, Submission
from homing.core.lifecycle.commands import AmendResult, Command
from homing.core.lifecycle.events import Event
from homing.core.lifecycle.outcomes import FailureReport, Settlement, SettleResult
from homing.core.lifecycle.receipts import Receipt, ReceiptEvent, ReceiptResult
from homing.core.lifecycle.row_commands import apply_command, resent_row
from homing.core.lifecycle.rows import Change, Row, lease, reclaim, settle
from homing.core.notifications import Filter, History, Page
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Entry, Retention, SinkRegistration, WorkerHeartbeat
from homing.core.routing.breaker import Breaker
from homing.stores.sqlite import SqliteStore
from homing.stores.sqlite.clock import CheckedClock
from homing.stores.sqlite.statements import SqliteTransaction
from homing.stores.sqlite.writer_thread import BatchAction
from simulation.checkers.stored_rows import (
    ExpectedRow,
    check_columns,
    expect_new_rows,
    expect_transition,
    nothing_expected,
)
from simulation.database import (
    Changed,
    Created,
    Logged,
    OutboxRow,
    Registered,
    Removed,
    SimulatedDatabase,
    StatementFault,
)

if TYPE_CHECKING:
    from simulation.invariants import InvariantChecker

_R = TypeVar("_R")

_FAILURES = (ReceiptEvent.FAILED.value, ReceiptEvent.SPAM_REPORT.value)


class CheckedStore(SqliteStore):
    """A store over the run's database that reports every change and every result to the invariant checker.

    As in production, each process has a store object of its own, and its caches die with the process.
    """

    def __init__(
        self, database: SimulatedDatabase, clock: Clock, watch: InvariantChecker, caller: str
    ) -> None:
        super().__init__(database, clock=clock.now_ms, steady_clock=clock.monotonic_ms)
        self.database = database
        self.watch = watch
        self._caller = caller
        self._log: list[Logged] = []
        """What the last call has committed, until it is checked."""

    def forget_clock(self) -> None:
        """Forgets which time is expected, as if the process had been started again."""
        self._checked_clock = CheckedClock(self._clock, self.watch.state.clock.monotonic_ms)

    def trace(self, who: str, what: str) -> None:
        """Adds a line to the trace."""
        self.watch.state.note(who, what)

    async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
        answers = await super().accept(batch, tx=tx)
        self._check_log("accept", expect_new_rows(batch, self.watch.state.now))
        self.watch.accepted(batch, answers)
        return answers

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        batch = await super().claim(request)
        self._check_log(
            "claim", expect_transition(lambda row: lease(row, request.worker, request.lease_ms, batch.now))
        )
        self.watch.claimed(self._caller, batch, request)
        return batch

    async def reclaim(self, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        batch = await super().reclaim(worker, limit, lease_ms)
        self._check_log("reclaim", expect_transition(lambda row: reclaim(row, worker, lease_ms, batch.now)))
        self.watch.claimed(self._caller, batch)
        return batch

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> frozenset[str]:
        held = await super().extend(leases, lease_ms)
        self._check_log("extend")
        self.watch.extended(self._caller, leases, held)
        return held

    async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
        result = await super().settle(batch)
        self._check_failures(result.failures)
        settled = self._settled_rows()
        applied = self._applied(batch, settled)
        for settlement in batch:
            expected = self.watch.settling(self._caller, settlement)
            logged = settled.get(settlement.id) if applied.get(settlement.id) is settlement else None
            if logged is not None:
                self._log = [one for one in self._log if one is not logged]
                self._check("settle", logged, self._expect_settled(settlement))
            self.watch.settled(settlement, expected, logged is not None)
        self._check_log("settle")
        self.watch.settled_batch(batch, result)
        return result

    async def amend(
        self, tenant: str, target: Sequence[str] | Filter, command: Command, *, limit: int = 1000
    ) -> AmendResult:
        result = await super().amend(tenant, target, command, limit=limit)
        self._check_log("amend", self._expect_commanded(command))
        self.watch.amended(tenant, result)
        return result

    async def receipt(self, batch: Sequence[Receipt]) -> ReceiptResult:
        result = await super().receipt(batch)
        self._check_failures(result.failures)
        self.watch.rows.receipt = batch[0] if len(batch) == 1 else None
        self._check_log("receipt")
        self.watch.rows.receipt = None
        self.watch.received(self._caller, batch, result)
        return result

    async def prune(self, retention: Retention, limit: int) -> Mapping[str, int]:
        removed = await super().prune(retention, limit)
        self.watch.workers.forgotten()
        if removed["receipts"]:
            self.watch.purged_receipts()
        self._check_log("prune")
        return removed

    async def get(self, tenant: str, id: str) -> History | None:
        history = await super().get(tenant, id)
        if history is not None:
            self.watch.read(tenant, (history.notification,))
        return history

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
        page = await super().list(
            tenant, filter, limit=limit, cursor=cursor, oldest_first=oldest_first, scan=scan
        )
        self.watch.read(tenant, page.items)
        return page

    async def waiting(self, tenant: str | None, *, limit: int = 50, ready: bool | None = None) -> Page:
        page = await super().waiting(tenant, limit=limit, ready=ready)
        if tenant is not None:
            self.watch.read(tenant, page.items)
        return page

    async def put(self, entries: Sequence[Entry], *, who: str) -> tuple[Entry, ...] | None:
        written = await super().put(entries, who=who)
        self._check_log("put")
        return written

    async def delete(self, tenant: str, kind: str, keys: Sequence[str]) -> int:
        number = await super().delete(tenant, kind, keys)
        for key in keys:
            self.watch.directory.filed(tenant, kind, key, None)
        return number

    async def put_breaker(self, provider: str, breaker: Breaker) -> bool:
        put = await super().put_breaker(provider, breaker)
        self.watch.breaker_put(self._caller, provider, breaker, put)
        return put

    async def register_sink(self, sink: SinkRegistration) -> None:
        await super().register_sink(sink)
        self.watch.events.registered(self._caller, sink)

    async def remove_sink(self, name: str) -> int | None:
        removed = await super().remove_sink(name)
        self.watch.events.sink_removed(self._caller, name)
        return removed

    async def park_events(self, sink: str, events: Sequence[Event]) -> None:
        await super().park_events(sink, events)
        self.watch.events.parked(self._caller, sink, [event.id for event in events])

    async def worker_seen(self, heartbeat: WorkerHeartbeat) -> None:
        await super().worker_seen(heartbeat)
        self.watch.workers.seen(heartbeat.name)

    async def worker_gone(self, name: str) -> None:
        await super().worker_gone(name)
        self.watch.workers.gone(name)

    # The log of the transaction ------------------------------------------------------------------

    async def _write(
        self,
        action: Callable[[SqliteTransaction], _R],
        together: BatchAction | None = None,
        part: object = None,
    ) -> _R:
        if self._log:
            self.watch.state.violate("12", "a call that must not change notifications changed one")
        result = await super()._write(action, together, part)
        self.database.commits += 1
        log = self.database.take_log(self.watch.state.now)
        self.watch.events.committed([logged for logged in log if isinstance(logged, OutboxRow)])
        self._log = [logged for logged in log if not isinstance(logged, OutboxRow)]
        return result

    def _went_back(self) -> None:
        """Does nothing in a run in which no process notices that commits are lost."""
        if self.watch.state.plan.fault_plan.lost_commits_are_noticed:
            super()._went_back()

    def _tx(self, cursor: sqlite3.Cursor, *, writable: bool = True) -> SqliteTransaction:
        tx = super()._tx(cursor, writable=writable)
        self.watch.clock.used(self._caller, tx.now, writable=writable)
        return tx

    @contextmanager
    def failing(self, fault: StatementFault, name: str) -> Iterator[None]:
        """Lets a statement of the call in this block fail, and checks that nothing of the call remains."""
        cached = self._leased_rows.ids()
        self.database.set_fault(fault)
        try:
            yield
        except StoreError:
            self.database.clear_fault()
            self.trace(self._caller, f"{fault.kind} in {name}")
            self._check_rolled_back(cached)
            raise
        self.database.clear_fault()

    def _check_rolled_back(self, cached: frozenset[str]) -> None:
        """Checks that a failed call has left nothing behind, neither in the database nor in the cache."""
        state = self.watch.state
        if self.database.in_transaction:
            state.violate("2", "a failed call has left its transaction open")
        if self.database.take_log(self.watch.state.now):
            state.violate("2", "a failed call has changed something")
        for id in sorted(self._leased_rows.ids() - cached):
            state.violate("4", "the lease was rolled back, but the process has cached it", id)

    def _check_failures(self, returned: Sequence[FailureReport]) -> None:
        """Checks that the call has returned exactly the reported failures that it has committed."""
        said = Counter((one.id, one.provider, one.event, one.status) for one in returned)
        changes = [logged.change for logged in self._log if isinstance(logged, Changed)]
        committed = Counter(
            (change.row.id, change.cause.who, change.cause.name, change.cause.after)
            for change in changes
            if change.cause is not None and _by_receipt(change) and change.cause.name in _FAILURES
        )
        if said != committed:
            id = next(iter((said - committed) + (committed - said)))[0]
            self.watch.state.violate("12", f"returned {said.total()} of {committed.total()} failures", id)

    def _settled_rows(self) -> dict[str, Changed]:
        """Returns the first change of each row in the log, unless a receipt has caused it."""
        firsts: dict[str, Changed] = {}
        for logged in self._log:
            if isinstance(logged, Changed):
                firsts.setdefault(logged.change.row.id, logged)
        return {id: one for id, one in firsts.items() if not _by_receipt(one.change)}

    def _applied(self, batch: Sequence[Settlement], settled: Mapping[str, Changed]) -> dict[str, Settlement]:
        """Returns the settlement that has caused each change, by notification id.

        A process that was suspended may settle several leases of one notification at once. If the store has
        lost a lease, its token is given out again, so two of them may have the same token.
        """
        ranked: dict[str, tuple[tuple[bool, bool, bool, bool, int], Settlement]] = {}
        for one in batch:
            shadow, logged = self.watch.state.shadows.get(one.id), settled.get(one.id)
            if logged is None:
                continue
            stored, mine = logged.change.attempt, one.attempt
            same = (stored is None) is (mine is None)
            if stored is not None and mine is not None:
                same = (stored.number, stored.started_at) == (mine.number, mine.started_at)
            start = logged.change.row.started_at
            newest = shadow is not None and shadow.token == one.token
            rank = (newest, one.started_at >= start, same, one.started_at == start, one.token)
            if one.id not in ranked or rank > ranked[one.id][0]:
                ranked[one.id] = (rank, one)
        return {id: settlement for id, (_, settlement) in ranked.items()}

    def _expect_commanded(self, command: Command) -> ExpectedRow:
        now = self.watch.state.now
        commanded = expect_transition(lambda row: apply_command(row, command, now))

        def expected(before: Row | None, stored: Row) -> Row | None:
            if before is not None:
                return commanded(before, stored)
            resent = [id for id, new_id in command.new_ids.items() if new_id == stored.id]
            original = self.database.find_row(resent[0]) if resent else None
            return None if original is None else resent_row(original, command, now).row

        return expected

    def _expect_settled(self, settlement: Settlement) -> ExpectedRow:
        now = self.watch.state.now
        return expect_transition(lambda row: settle(row, settlement, now))

    def _check_log(self, serving: str, expected: ExpectedRow = nothing_expected) -> None:
        """Checks what the call has committed."""
        log, self._log = self._log, []
        for logged in log:
            self._check(serving, logged, expected)

    def _check(self, serving: str, logged: Logged, expected: ExpectedRow = nothing_expected) -> None:
        match logged:
            case Created(change, message):
                self.watch.created(self._caller, change, message)
                check_columns(self.watch.state, serving, expected(None, change.row), change.row)
            case Changed(change, exact, before):
                self.watch.changed(serving, self._caller, change, exact)
                check_columns(self.watch.state, serving, expected(before, change.row), change.row)
            case Removed(row):
                self.watch.removed(row)
            case Registered(tenant, kind, key, value):
                self.watch.directory.filed(tenant, kind, key, value)


def _by_receipt(change: Change) -> bool:
    return change.cause is not None and change.cause.kind == "receipt"
