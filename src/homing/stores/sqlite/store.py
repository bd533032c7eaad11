"""The SQLite implementation of the store port.

Most methods are one call to the writer or reader thread of a file, or to the database in memory.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from homing.core.clock_steps import ClockStep
from homing.core.errors import StoreError
from homing.core.lifecycle.claims import (
    Acceptance,
    ClaimBatch,
    ClaimRequest,
    RequestKey,
    StoredRequest,
    Submission,
)
from homing.core.lifecycle.outcomes import Settlement, SettleResult
from homing.core.lifecycle.receipts import Receipt, ReceiptResult
from homing.core.ports.stores import CallerConnection, SinkRegistration
from homing.core.routing.fair_share import TenantPlace, TenantTurns
from homing.stores.common.clock_guard import steady_clock_ms
from homing.stores.common.leased_rows import LeasedRows, SeqAndRow, build_settle_result
from homing.stores.common.sinks import REMOVAL_STEP
from homing.stores.common.transactional_store import TransactionalStore
from homing.stores.sqlite import (
    accept,
    amend,
    change_recorder,
    claim,
    leases,
    metadata_indexes,
    migrations,
    reads,
    receipts,
    reference_data,
    settle,
    sinks,
    upkeep,
    workers,
)
from homing.stores.sqlite.caller_transactions import join_transaction
from homing.stores.sqlite.clock import CheckedClock, suspected_step
from homing.stores.sqlite.connection import connect, translate_error
from homing.stores.sqlite.fair_reads import FairReads
from homing.stores.sqlite.history import FileHistory
from homing.stores.sqlite.memory_database import MEMORY, MemoryDatabase
from homing.stores.sqlite.open_file import write_missing_mark
from homing.stores.sqlite.statements import SqliteTransaction
from homing.stores.sqlite.writer_thread import BatchAction, ReaderThread, ThreadCall, WriterThread

R = TypeVar("R")


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class SqliteStore(TransactionalStore):
    """A `Backend` in one SQLite file, or in memory.

    `open` connects and creates the file if it does not exist. `migrate` creates the tables. Until then, calls
    that need the tables raise `SchemaError`. Any number of processes may open the same file.

    The path `:memory:` means a database in memory. It has its tables from the start, exists as long as the
    store object, and performs every call at once, without awaiting anything. `open` and `close` do nothing.
    """

    _amend, _change_recorder, _leases, _reads = amend, change_recorder, leases, reads
    _reference_data, _sinks, _upkeep, _workers = reference_data, sinks, upkeep, workers

    def __init__(
        self,
        path: str | Path | MemoryDatabase,
        *,
        busy_timeout_ms: int = 5000,
        clock: Callable[[], int] | None = None,
        steady_clock: Callable[[], int] | None = None,
    ) -> None:
        """`clock` returns epoch milliseconds. Processes that share a file must use the same clock.

        `steady_clock` returns monotonic milliseconds, with which the clock is compared to detect that it was
        set. Without it, a `clock` that was given is believed whatever it shows.

        Several stores share a database in memory if it is passed to them as `path`.
        """
        if isinstance(path, MemoryDatabase):
            self._memory: MemoryDatabase | None = path
            path = MEMORY
        else:
            self._memory = MemoryDatabase() if str(path) == MEMORY else None
        self._path = Path(path)
        self._busy_timeout_ms = busy_timeout_ms
        self._clock = clock or _wall_clock_ms
        if steady_clock is None and clock is None:
            steady_clock = steady_clock_ms
        self._checked_clock = None if steady_clock is None else CheckedClock(self._clock, steady_clock)
        self._leased_rows = LeasedRows()
        self._turns = TenantTurns()
        self._history = FileHistory()
        self._migrated = False
        self._open_lock = threading.Lock()
        self._writer: WriterThread | None = None
        self._reader: ReaderThread | None = None
        """Runs single statements, such as the checks of API keys, which must not wait for long reads."""
        self._reads_of: FairReads | None = None
        """Runs all other reads."""

    async def open(self) -> None:
        """Connects. Raises `SchemaError` if this program is too old for the file's schema."""
        if self._memory is None:
            await asyncio.get_running_loop().run_in_executor(None, self._open)

    async def close(self) -> None:
        """Finishes the queued calls and closes the file."""
        threads = [thread for thread in (self._writer, self._reader, self._reads_of) if thread is not None]
        self._writer = self._reader = self._reads_of = None
        for thread in threads:
            await asyncio.get_running_loop().run_in_executor(None, thread.stop)

    async def migrate(self, *, create: bool = True) -> tuple[str, ...]:
        """Applies the pending migrations and returns their names. Several processes may call it at once."""

        def migrate(tx: SqliteTransaction) -> tuple[str, ...]:
            names = migrations.migrate(tx.cursor, str(self._path), tx.now, create=create)
            if self._memory is None:
                write_missing_mark(tx.cursor)
            return names

        names = await self._write(migrate)
        self._migrated = True
        return names

    async def now_ms(self) -> int:
        time = None if self._checked_clock is None else self._checked_clock.read()
        if time is not None:
            return time.now
        if self._checked_clock is None or (self._memory is None and self._reader is None):
            return self._clock()
        return await self._look(lambda tx: tx.now)

    @property
    def history(self) -> str:
        return self._history.identity

    async def index_metadata(self, keys: Collection[str]) -> None:
        await self._write(lambda tx: metadata_indexes.index_metadata(tx, keys))

    async def suspected_clock_step(self) -> ClockStep | None:
        return await self._look(lambda tx: suspected_step(tx, self._clock()))

    # Delivery path ------------------------------------------------------------------------------

    async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
        """Stores the submissions. `tx` may be the caller's own `sqlite3.Connection` to the same file."""
        if tx is not None:
            return await self._join(tx, lambda joined: accept.accept(joined, batch))
        return await self._write(
            lambda tx: accept.accept(tx, batch, self._accepted), self._accept_together, batch
        )

    async def known_requests(
        self, keys: Collection[RequestKey], *, tx: Any = None
    ) -> dict[RequestKey, StoredRequest]:
        if tx is not None:
            return await self._join(tx, lambda joined: accept.known_requests(joined, keys))
        return await self._look(lambda reading: accept.known_requests(reading, keys))

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        leased: list[SeqAndRow] = []
        taken: dict[TenantPlace, int] = {}
        batch = await self._write(lambda tx: claim.claim(tx, request, self._turns, leased, taken))
        self._turns.record(taken)
        self._leased_rows.keep(leased)
        return batch

    async def reclaim(self, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        leased: list[SeqAndRow] = []
        batch = await self._write(lambda tx: leases.reclaim_expired(tx, worker, limit, lease_ms, leased))
        self._leased_rows.keep(leased)
        return batch

    async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
        def settle_alone(tx: SqliteTransaction) -> SettleResult:
            statuses = settle.settle(tx, batch, self._leased_rows)
            return build_settle_result(batch, statuses, tx.failures)

        result = await self._write(settle_alone, self._settle_together, batch)
        if result.missing:
            self._went_back()
        return result

    async def receipt(self, batch: Sequence[Receipt]) -> ReceiptResult:
        return await self._write(lambda tx: receipts.apply_receipts(tx, batch))

    # Events --------------------------------------------------------------------------------------

    async def register_sink(self, sink: SinkRegistration) -> None:
        await self._write(lambda tx: sinks.register_sink(tx, sink))

    async def remove_sink(self, name: str) -> int | None:
        if not await self._write(lambda tx: sinks.is_registered(tx, name)):
            return None
        total = removed = await self._write(lambda tx: sinks.remove_sink_step(tx, name))
        while removed == REMOVAL_STEP:
            removed = await self._write(lambda tx: sinks.remove_sink_step(tx, name))
            total += removed
        return total

    # Upkeep --------------------------------------------------------------------------------------

    async def size(self) -> Mapping[str, int]:
        return await self._read(lambda tx: upkeep.size(tx, None if self._memory else self._path))

    # Connections and transactions ----------------------------------------------------------------

    def _open(self) -> None:
        with self._open_lock:  # concurrent calls must connect only once
            if self._writer is None:
                writer = WriterThread("homing-sqlite-writer", self._connect, self._path, self._opened)
                try:
                    reader = ReaderThread("homing-sqlite-reader", self._connect, self._path)
                    try:
                        self._reads_of = FairReads(self._connect, self._path)
                    except BaseException:
                        reader.stop()
                        raise
                except BaseException:
                    writer.stop()
                    raise
                self._reader = reader
                self._writer = writer

    def _opened(self, identity: str) -> None:
        """Drops everything that this store remembers of the file, which may be another one than before."""
        self._history.opened(identity)
        self._forget_rows()

    def _accepted(self, before: int, after: int) -> None:
        if self._history.accepted(before, after):
            self._went_back()

    def _went_back(self) -> None:
        """Drops everything that this store remembers of the file, because a row is gone."""
        self._history.went_back()
        self._forget_rows()

    def _forget_rows(self) -> None:
        self._leased_rows = LeasedRows()
        self._turns = TenantTurns()

    def _connect(self) -> sqlite3.Connection:
        """Opens a connection. Raises `SchemaError` if this program is too old for the file's schema.

        A file that has taken the place of a migrated one is migrated too: it may be an old backup.
        """
        connection = connect(self._path, self._busy_timeout_ms)
        try:
            cursor = connection.cursor()
            migrations.check_version(cursor, str(self._path))
            if self._migrated:
                cursor.execute("BEGIN IMMEDIATE")
                migrations.migrate(cursor, str(self._path), self._clock())
                write_missing_mark(cursor)
                cursor.execute("COMMIT")
        except sqlite3.Error as error:
            connection.close()
            raise translate_error(error, self._path) from error
        except BaseException:
            connection.close()
            raise
        return connection

    async def _look(self, action: Callable[[SqliteTransaction], R]) -> R:
        """Runs the action, which is one quick statement, on a connection of its own."""

        def work(cursor: sqlite3.Cursor) -> R:
            return action(self._tx(cursor, writable=False))

        if self._memory is not None:
            return self._memory.read(work)
        if self._reader is None:
            raise StoreError(f"{self._path} is closed; open the store first.")
        return await self._reader.do(ThreadCall(work, single=True))

    def _tx(self, cursor: sqlite3.Cursor, *, writable: bool = True) -> SqliteTransaction:
        if self._checked_clock is None:
            return SqliteTransaction(cursor, self._clock())
        time = self._checked_clock.read_in(cursor, writable=writable)
        return SqliteTransaction(cursor, time.now, time.settling)

    def _open_writer(self) -> WriterThread:
        if self._writer is None:
            raise StoreError(f"{self._path} is closed; open the store first.")
        return self._writer

    async def _write(
        self,
        action: Callable[[SqliteTransaction], R],
        together: BatchAction | None = None,
        part: object = None,
    ) -> R:
        """Runs the action in a transaction. See `ThreadCall` for `together` and `part`."""

        def work(cursor: sqlite3.Cursor) -> R:
            return action(self._tx(cursor))

        if self._memory is not None:
            if self._memory.history != self._history.file:
                self._opened(self._memory.history)
            return self._memory.write(work)
        return await self._open_writer().do(ThreadCall(work, together, part))

    async def _read(self, action: Callable[[SqliteTransaction], R], tenant: str | None = None) -> R:
        """Runs the action in turn with the reads of other tenants. Ends it if it takes too long."""

        def work(cursor: sqlite3.Cursor) -> R:
            return action(self._tx(cursor, writable=False))

        if self._memory is not None:
            return self._memory.read(work)
        if self._reads_of is None:
            raise StoreError(f"{self._path} is closed; open the store first.")
        return await self._reads_of.do(tenant or "", ThreadCall(work))

    async def _join(self, given: Any, action: Callable[[SqliteTransaction], R]) -> R:
        """Runs the action in the transaction of the caller's connection, on the thread of that connection."""
        if self._memory is not None:
            raise StoreError(
                "A store in memory has no transactions that a caller can join; send without a connection."
            )

        def join(connection: object) -> R:
            with join_transaction(connection, self._path) as cursor:
                return action(self._tx(cursor, writable=False))

        if not isinstance(given, CallerConnection):
            return join(given)
        result: R = await given.run(lambda: join(given.connection))
        return result

    def _accept_together(
        self, cursor: sqlite3.Cursor, batches: Sequence[Sequence[Submission]]
    ) -> Sequence[tuple[Acceptance, ...]]:
        everything = [submission for batch in batches for submission in batch]
        answers = iter(accept.accept(self._tx(cursor), everything, self._accepted))
        return [tuple(next(answers) for _ in batch) for batch in batches]

    def _settle_together(
        self, cursor: sqlite3.Cursor, batches: Sequence[Sequence[Settlement]]
    ) -> Sequence[SettleResult]:
        everything = [settlement for batch in batches for settlement in batch]
        tx = self._tx(cursor)
        statuses = iter(settle.settle(tx, everything, self._leased_rows))
        return [build_settle_result(batch, [next(statuses) for _ in batch], tx.failures) for batch in batches]
