"""The PostgreSQL implementation of the store port.

Each method is one transaction unless its docstring says otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from homing.core.clock_steps import ClockStep
from homing.core.errors import StoreUnavailable
from homing.core.lifecycle.claims import (
    Acceptance,
    ClaimBatch,
    ClaimRequest,
    RequestKey,
    StoredRequest,
    Submission,
)
from homing.core.lifecycle.commands import AmendResult, Command
from homing.core.lifecycle.outcomes import FailureReport, Settlement, SettleResult
from homing.core.lifecycle.receipts import Receipt, ReceiptResult
from homing.core.ports.stores import (
    AcceptedEntry,
    AwaitPrevious,
    InboxAcceptance,
    InboxEntry,
    RetryRule,
    SinkRegistration,
    StoreCheckResult,
    Uninstallation,
)
from homing.core.retry.policy import DEFAULT_LEASE_MS
from homing.core.routing.fair_share import TenantPlace, TenantTurns
from homing.stores.common.clock_guard import steady_clock_ms
from homing.stores.common.group_commit import GroupCommit
from homing.stores.common.leased_rows import (
    MISSING,
    LeasedRows,
    SeqAndRow,
    SettleStatus,
    build_settle_result,
)
from homing.stores.common.sinks import read_sink_book
from homing.stores.common.sweep_pace import SweepPace
from homing.stores.common.transactional_store import TransactionalStore
from homing.stores.postgres import (
    accept,
    amend,
    caller_transactions,
    change_recorder,
    claim,
    database_checks,
    leases,
    metadata_indexes,
    migrations,
    reads,
    receipts,
    reference_data,
    settle,
    sinks,
    sql_inbox,
    uninstall,
    upkeep,
    workers,
)
from homing.stores.postgres.address import parse_database_url
from homing.stores.postgres.clock import suspected_step
from homing.stores.postgres.connection import NOW, SINKS, Database
from homing.stores.postgres.due_watermark import DueWatermark
from homing.stores.postgres.errors import DuplicateIds, QueueGone
from homing.stores.postgres.hosts import Hosts
from homing.stores.postgres.listen_notify import INBOX_PAYLOAD, Listener
from homing.stores.postgres.migrations import migrate
from homing.stores.postgres.queues import QueueKey
from homing.stores.postgres.server_history import STARTED_AT
from homing.stores.postgres.statements import PostgresTransaction, SqlConnection
from homing.stores.postgres.transaction_limits import TransactionLimits

R = TypeVar("R")


_LATE_COMMITS_MS = 60_000
"""A reclaim also finds leases that expired up to this long before the previous reclaim, because a transaction
may commit its lease late.
"""


class PostgresStore(TransactionalStore):
    """A `Backend` in one schema of a PostgreSQL database, 14 or newer.

    `open` connects. `migrate` creates the tables. Until then, calls that need the tables raise `SchemaError`.
    Any number of processes may share a schema. All times come from the database's clock.
    """

    _amend, _change_recorder, _leases, _reads = amend, change_recorder, leases, reads
    _reference_data, _sinks, _upkeep, _workers = reference_data, sinks, upkeep, workers

    def __init__(
        self,
        url: str,
        *,
        timeout_ms: int = 30_000,
        lease_ms: int = DEFAULT_LEASE_MS,
        steady_clock: Callable[[], int] = steady_clock_ms,
    ) -> None:
        """Accepts a PostgreSQL URL whose query may also set Homing's own options.

        They are `schema`, `pool_size`, `cached_statements`, `listen`, `listen_url` and `connect_timeout`, as
        in `?schema=NAME`. `lease_ms` is the length of the workers' leases, within which the server ends the
        transactions of a suspended process. `steady_clock` returns monotonic milliseconds, with which the
        server's clock is compared to detect that it was set.
        """
        self._address = parse_database_url(url)
        self._database = Database(
            self._address,
            timeout_s=timeout_ms / 1000,
            steady_clock=steady_clock,
            limits=TransactionLimits.within_lease(lease_ms),
        )
        listen_at = self._address.listen_at
        self._listener = Listener(
            self._database.hosts if listen_at is None else Hosts(listen_at),
            accept.notify_channel(self._address.schema),
            self._notify,
            self._database.until_expired,
        )
        self._accepting: GroupCommit[Sequence[Submission], tuple[Acceptance, ...]] = GroupCommit(
            self._accept_together
        )
        self._early_slots = self._address.pool_size // 4
        """Number of further `accept_after` calls that may start before their predecessors have ended.

        It is limited so that the predecessors can always get a connection.
        """
        self._watermark = DueWatermark()
        self._turns = TenantTurns()
        self._leased_rows = LeasedRows()
        self._reclaim_pace = SweepPace()
        self._reclaimed_at = 0
        """Time up to which all expired leases have been reclaimed."""
        self._database.forget = self._drop_caches

    def __repr__(self) -> str:
        return f"PostgresStore({self._address.where!r}, schema={self._address.schema!r})"

    async def open(self) -> None:
        """Connects. Raises `SchemaError` if the server or this program is too old or a copy is incomplete."""
        await self._database.open()
        try:
            await self._database.do(self._check_schema, read_only=True, timed=False)
            await self._database.read_history()
            await self._database.resolve_clock()
        except BaseException:
            await self._database.close()
            raise

    async def close(self) -> None:
        """Waits for the calls in progress and disconnects."""
        await self._accepting.finish()
        await self._database.close()

    async def migrate(self, *, create: bool = True) -> tuple[str, ...]:
        """Applies the pending migrations and returns their names. Several processes may call it at once."""
        applied = await migrate(self._database, self._address.where, create=create)
        await self._database.resolve_clock()
        return applied

    async def now_ms(self) -> int:
        database = self._database
        asked_ms = database.steady_clock()
        now: int = await database.look(lambda tx: tx.one(NOW))
        time = database.clock_guard.check(now, asked_ms, database.steady_clock())
        if time is None:
            time = await database.resolve_clock()
        return now if time is None else time.now

    @property
    def history(self) -> str:
        return self._database.history.identity

    async def suspected_clock_step(self) -> ClockStep | None:
        return await self._look(suspected_step)

    @property
    def hears(self) -> bool:
        """True while `listen` reports new work. False behind a pooler in transaction mode, for example."""
        return self._listener.receives

    async def listen(self, wake: Callable[[], None], wake_inbox: Callable[[], None]) -> None:
        """Listens for work from any process, until cancelled. Only waits if the URL has `listen=false`.

        Calls `wake` if notifications were accepted and `wake_inbox` if requests were enqueued with SQL.
        """
        if not self._address.listen:
            await asyncio.Event().wait()
        await self._listener.run(lambda payload: wake_inbox() if payload == INBOX_PAYLOAD else wake())

    async def _notify(self, channel: str) -> None:
        """Sends a message on this channel, over a connection of the pool."""
        await self._database.do(lambda tx: tx.one("SELECT pg_notify($1, '')", channel), timed=False)

    # Delivery path ------------------------------------------------------------------------------

    async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
        """Stores the submissions.

        `tx` may be a caller's own connection to the same database (see `caller_transactions`). In that case,
        missing queues are created first, in a separate transaction. If the caller's transaction created them,
        all other senders to the same queue would have to wait until it ends.
        """
        if tx is not None:
            queues = accept.queues_of(batch)
            await self._make_queues(queues)
            try:
                return await self._join(tx, lambda speaks: self._accept_joined(speaks, batch))
            except QueueGone:
                await self._read_queues_again(queues)
                return await self._join(tx, lambda speaks: self._accept_joined(speaks, batch, trusted=True))
        return await self._accepting.do(batch)

    async def accept_after(
        self, batch: Sequence[Submission], before: AwaitPrevious
    ) -> tuple[Acceptance, ...]:
        """Stores the submissions, but commits only after `before` has returned.

        The work starts early, in a separate transaction, if enough connections are left for the earlier
        calls.
        """
        if not self._early_slots:
            await before()
            return await self.accept(batch)
        self._early_slots -= 1
        try:
            return await self._database.do(
                lambda tx: accept.accept(tx, batch, sure=True, before=before), sinks=True
            )
        except DuplicateIds:
            await before()
            return await self._accept(batch, True, sure=False)
        finally:
            self._early_slots += 1

    async def known_requests(
        self, keys: Collection[RequestKey], *, tx: Any = None
    ) -> dict[RequestKey, StoredRequest]:
        if tx is not None:
            return await self._join(tx, lambda speaks: accept.known_requests(self._joined(speaks), keys))
        return await self._look(lambda reading: accept.known_requests(reading, keys))

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        leased: list[SeqAndRow] = []
        taken: dict[TenantPlace, int] = {}
        batch = await self._write(
            lambda tx: claim.claim(tx, request, self._watermark, self._turns, leased, taken), timed=False
        )
        self._turns.record(taken)
        self._leased_rows.keep(leased)
        return batch

    async def reclaim(self, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        """Leases expired rows to this worker.

        Also folds the ledger and ends the sessions of suspended processes, in a second transaction.
        """
        since = -1
        if not self._reclaim_pace.due():
            since = self._reclaimed_at - _LATE_COMMITS_MS
        with self._reclaim_pace.sweep():
            leased: list[SeqAndRow] = []
            batch = await self._write(
                lambda tx: leases.reclaim_expired(tx, worker, limit, lease_ms, since, leased)
            )
            self._leased_rows.keep(leased)
        if len(batch.claims) < limit:  # otherwise more rows may have expired before this time
            self._reclaimed_at = batch.now
        await self._write(self._tidy_up)
        return batch

    async def _tidy_up(self, tx: PostgresTransaction) -> None:
        await change_recorder.fold_ledger(tx)
        await upkeep.end_silent_sessions(tx, self._database.limits.silence_ms)

    async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
        async def settle_in(tx: PostgresTransaction) -> tuple[list[SettleStatus], list[FailureReport]]:
            return await settle.settle(tx, batch, self._leased_rows), tx.failures

        statuses, failures = await self._write(settle_in, beside=receipts.RECEIPTS_LOCK)
        if MISSING in statuses:
            await self._database.note_loss()
        return build_settle_result(batch, statuses, failures)

    async def receipt(self, batch: Sequence[Receipt]) -> ReceiptResult:
        """Applies receipts.

        Receipts that had to be kept are tried again in a second transaction (see `receipts`).
        """
        result, waiting = await self._write(
            lambda tx: receipts.apply_receipts(tx, batch), beside=receipts.RECEIPTS_LOCK
        )
        if waiting:
            return await self._database.do_briefly(
                lambda tx: receipts.apply_kept_receipts(tx, waiting, result), sinks=True
            )
        return result

    # Events --------------------------------------------------------------------------------------

    async def register_sink(self, sink: SinkRegistration) -> None:
        await sinks.register_sink(self._database, sink)

    async def remove_sink(self, name: str) -> int | None:
        return await sinks.remove_sink(self._database, name)

    # Upkeep --------------------------------------------------------------------------------------

    async def index_metadata(self, keys: Collection[str]) -> None:
        await metadata_indexes.index_metadata(self._database, keys)

    async def size(self) -> Mapping[str, int]:
        return await self._read(lambda tx: upkeep.size(tx))

    async def examine(self, *, now_ms: int) -> tuple[StoreCheckResult, ...]:
        """Checks the database, in one transaction, and then the pooler and LISTEN. Changes nothing."""
        where = self._address.where
        checks = await self._database.do(
            lambda tx: database_checks.examine(tx, where, now_ms), read_only=True, timed=False
        )
        can_write = all(check.ok for check in checks if check.name == "writes")
        return (
            *checks,
            *await database_checks.examine_connections(self._database, self._listener, can_write),
        )

    async def plan_uninstallation(self) -> Uninstallation:
        where = self._address.where
        return await self._database.do(
            lambda tx: uninstall.plan_uninstallation(tx, where), read_only=True, timed=False
        )

    async def uninstall(self, *, force: bool) -> Uninstallation:
        return await uninstall.uninstall(self._database, self._address.where, force=force)

    # Inbox ---------------------------------------------------------------------------------------

    async def take_inbox(self, limit: int, lease_ms: int) -> tuple[InboxEntry, ...]:
        return await self._write(lambda tx: sql_inbox.lease_entries(tx, limit, lease_ms))

    async def count_inbox(self, tenant: str | None) -> int:
        return await self._read(lambda tx: sql_inbox.count_requests(tx, tenant))

    async def accept_inbox(self, batch: Sequence[AcceptedEntry]) -> InboxAcceptance:
        return await self._write(lambda tx: sql_inbox.accept_taken(tx, batch), sinks=True)

    async def amend_inbox(self, entry: InboxEntry, command: Command) -> AmendResult | None:
        return await self._write(lambda tx: sql_inbox.amend_taken(tx, entry, command), sinks=True)

    async def remove_inbox(self, entries: Sequence[InboxEntry]) -> None:
        await self._write(lambda tx: sql_inbox.remove(tx, entries))

    async def store_retry_delays(self, delays_ms: Sequence[int], rules: Sequence[RetryRule] = ()) -> None:
        await self._write(lambda tx: sql_inbox.store_retry_delays(tx, delays_ms, rules))

    def _drop_caches(self) -> int:
        """Forgets everything that may be wrong if the database's history has gone back.

        Returns the highest seq that was cached, or 0.
        """
        self._watermark.clear()
        self._reclaimed_at = 0
        return self._leased_rows.clear()

    # Transactions --------------------------------------------------------------------------------

    async def _check_schema(self, tx: PostgresTransaction) -> None:
        await migrations.check_version(tx, self._address.where)
        await migrations.check_copy_complete(tx, self._address.where)

    async def _write(
        self,
        action: Callable[[PostgresTransaction], Awaitable[R]],
        *,
        timed: bool = True,
        sinks: bool = False,
        beside: str | None = None,
    ) -> R:
        return await self._database.do(action, sinks=sinks, timed=timed, beside=beside)

    async def _write_with_events(self, action: Callable[[PostgresTransaction], Awaitable[R]]) -> R:
        return await self._write(action, sinks=True)

    async def _read(
        self, action: Callable[[PostgresTransaction], Awaitable[R]], tenant: str | None = None
    ) -> R:
        return await self._database.do(action, read_only=True)

    async def _look(self, action: Callable[[PostgresTransaction], Awaitable[R]]) -> R:
        return await self._database.look(action)

    async def _accept_together(
        self, batches: Sequence[Sequence[Submission]], patient: bool
    ) -> Sequence[tuple[Acceptance, ...]]:
        everything = [submission for batch in batches for submission in batch]
        try:
            found = await self._accept(everything, patient, sure=True)
        except DuplicateIds:
            found = await self._accept(everything, patient, sure=False)
        answers = iter(found)
        return [tuple(next(answers) for _ in batch) for batch in batches]

    async def _accept(
        self, batch: Sequence[Submission], patient: bool, *, sure: bool
    ) -> tuple[Acceptance, ...]:
        return await self._database.do(
            lambda tx: accept.accept(tx, batch, sure=sure),
            sinks=True,
            patient=patient,
            numbers=0 if sure else sum(len(submission.notifications) for submission in batch),
        )

    async def _make_queues(self, queues: Collection[QueueKey]) -> None:
        """Creates and commits the missing queues, so that a transaction that is already open can use them."""
        if self._database.queues.unknown(queues):
            await self._write(lambda tx: tx.queues.find(tx, queues))

    async def _read_queues_again(self, queues: Collection[QueueKey]) -> None:
        """Reads the numbers of these queues after the caller's transaction did not find them.

        Either the cache of this process was wrong, or the transaction sees the database as it was before the
        queues were created, which is possible in all isolation levels but READ COMMITTED.
        """
        cached = self._database.queues
        before = {queue: cached.number(queue) for queue in queues if queue not in cached.unknown([queue])}
        cached.clear()
        found = await self._write(lambda tx: tx.queues.find(tx, queues))
        if any(found[queue] != number for queue, number in before.items()):
            await self._database.note_loss()
            await self._make_queues(queues)

    async def _join(self, tx: Any, action: Callable[[SqlConnection], Coroutine[Any, Any, R]]) -> R:
        return await caller_transactions.run_in_callers_transaction(tx, action, self._address.where)

    async def _accept_joined(
        self, speaks: SqlConnection, batch: Sequence[Submission], *, trusted: bool = False
    ) -> tuple[Acceptance, ...]:
        """Accepts in the caller's transaction.

        If `trusted`, the numbers of the queues were read just now, on a connection of Homing's own. They are
        not compared again, because the transaction may not see them. It must be on the same server, though.
        """
        tx = self._joined(speaks)
        [(tx.now, started_at, book)] = await tx.rows(f"SELECT homing.now_ms(), {STARTED_AT}, ({SINKS})")
        if trusted and not self._database.history.is_current(started_at):
            raise StoreUnavailable(f"This connection goes to another server than {self._address.where}.")
        tx.checks_queues = not trusted
        # The caller's transaction may have begun long ago.
        tx.now = self._database.clock_guard.correct(tx.now)
        tx.sinks = read_sink_book(book)
        return await accept.accept(tx, batch)

    def _joined(self, speaks: SqlConnection) -> PostgresTransaction:
        return PostgresTransaction(speaks, 0, self._address.schema, self._database.queues)
