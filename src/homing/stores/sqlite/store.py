"""The SQLite implementation of the store port. Most methods are one call to the writer or reader thread."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from homing.core.errors import ConfigError, StoreError
from homing.core.lifecycle.claims import Acceptance, ClaimBatch, ClaimRequest, Lease, Submission
from homing.core.lifecycle.commands import AmendResult, Command
from homing.core.lifecycle.events import Event
from homing.core.lifecycle.outcomes import Settlement, SettleResult
from homing.core.lifecycle.receipts import Receipt, ReceiptResult
from homing.core.notifications import Filter, History, Page, Status
from homing.core.ports.stores import (
    CallerConnection,
    Entry,
    RegisteredSink,
    Retention,
    SinkRegistration,
    TokenGrant,
    TokenRequest,
)
from homing.core.routing.breaker import Breaker
from homing.core.routing.rate_limits import RateLimit
from homing.core.statistics import ErrorGroup, RollUp, Tally
from homing.stores.common.leased_rows import LeasedRows, SeqAndRow, build_settle_result
from homing.stores.sqlite import (
    accept,
    amend,
    claim,
    leases,
    migrations,
    reads,
    receipts,
    reference_data,
    settle,
    sinks,
    upkeep,
)
from homing.stores.sqlite.caller_transactions import join_transaction
from homing.stores.sqlite.change_recorder import write_events
from homing.stores.sqlite.connection import connect, translate_error
from homing.stores.sqlite.statements import SqliteTransaction
from homing.stores.sqlite.writer_thread import ReaderThread, ThreadCall, WriterThread

R = TypeVar("R")


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class SqliteStore:
    """A `Backend` in one SQLite file.

    `open` connects and creates the file if it does not exist. `migrate` creates the tables. Until then, calls
    that need the tables raise `SchemaError`. Any number of processes may open the same file.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        busy_timeout_ms: int = 5000,
        clock: Callable[[], int] | None = None,
    ) -> None:
        """`clock` returns epoch milliseconds. Processes that share a file must use the same clock."""
        if str(path) == ":memory:":
            raise ConfigError(
                "path", "is :memory:, which connections cannot share; name a file or use the memory store"
            )
        self._path = Path(path)
        self._busy_timeout_ms = busy_timeout_ms
        self._clock = clock or _wall_clock_ms
        self._leased_rows = LeasedRows()
        self._open_lock = threading.Lock()
        self._writer: WriterThread | None = None
        self._reader: ReaderThread | None = None

    async def open(self) -> None:
        """Connects. Raises `SchemaError` if this program is too old for the file's schema."""
        await asyncio.get_running_loop().run_in_executor(None, self._open)

    async def close(self) -> None:
        """Finishes the queued calls and closes the file."""
        threads = [thread for thread in (self._writer, self._reader) if thread is not None]
        self._writer = self._reader = None
        for thread in threads:
            await asyncio.get_running_loop().run_in_executor(None, thread.stop)

    async def migrate(self) -> tuple[str, ...]:
        """Applies the pending migrations and returns their names. Several processes may call it at once."""
        return await self._write(lambda tx: migrations.migrate(tx.cursor, str(self._path), tx.now))

    async def now_ms(self) -> int:
        return self._clock()

    # Delivery path ------------------------------------------------------------------------------

    async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
        """Stores the submissions. `tx` may be the caller's own `sqlite3.Connection` to the same file."""
        if isinstance(tx, CallerConnection):
            accepted: tuple[Acceptance, ...] = await tx.run(lambda: self._accept_joined(batch, tx.connection))
            return accepted
        if tx is not None:
            return self._accept_joined(batch, tx)
        call = ThreadCall(lambda cursor: accept.accept(self._tx(cursor), batch), self._accept_together, batch)
        return await self._open_writer().do(call)

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        leased: list[SeqAndRow] = []
        batch = await self._write(lambda tx: claim.claim(tx, request, leased))
        self._leased_rows.keep(leased)
        return batch

    async def reclaim(self, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        leased: list[SeqAndRow] = []
        batch = await self._write(lambda tx: leases.reclaim_expired(tx, worker, limit, lease_ms, leased))
        self._leased_rows.keep(leased)
        return batch

    async def extend(self, leases_held: Sequence[Lease], lease_ms: int) -> frozenset[str]:
        return await self._write(lambda tx: leases.extend_leases(tx, leases_held, lease_ms))

    async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
        def settle_alone(cursor: sqlite3.Cursor) -> SettleResult:
            return build_settle_result(batch, settle.settle(self._tx(cursor), batch, self._leased_rows))

        return await self._open_writer().do(ThreadCall(settle_alone, self._settle_together, batch))

    async def amend(
        self, tenant: str, target: Sequence[str] | Filter, command: Command, *, limit: int = 1000
    ) -> AmendResult:
        return await self._write(lambda tx: amend.amend(tx, tenant, target, command, limit))

    async def receipt(self, batch: Sequence[Receipt]) -> ReceiptResult:
        return await self._write(lambda tx: receipts.apply_receipts(tx, batch))

    # Events --------------------------------------------------------------------------------------

    async def emit(self, events: Sequence[Event]) -> None:
        await self._write(lambda tx: write_events(tx, events))

    async def register_sink(self, sink: SinkRegistration) -> None:
        await self._write(lambda tx: sinks.register_sink(tx, sink))

    async def sink_seen(self, name: str) -> bool:
        return await self._write(lambda tx: sinks.sink_seen(tx, name))

    async def remove_sink(self, name: str) -> int | None:
        return await self._write(lambda tx: sinks.remove_sink(tx, name))

    async def sinks(self) -> tuple[RegisteredSink, ...]:
        return await self._read(sinks.sinks)

    async def outbox(self, sink: str, worker: str, limit: int, lease_ms: int) -> tuple[Event, ...]:
        return await self._write(lambda tx: sinks.lease_events(tx, sink, worker, limit, lease_ms))

    async def published(self, sink: str, ids: Sequence[str]) -> None:
        await self._write(lambda tx: sinks.remove_events(tx, sink, ids))

    # Reads ---------------------------------------------------------------------------------------

    async def get(self, tenant: str, id: str) -> History | None:
        return await self._read(lambda tx: reads.get(tx, tenant, id))

    async def list(self, tenant: str, filter: Filter, *, limit: int = 50, cursor: str | None = None) -> Page:
        return await self._read(lambda tx: reads.list_page(tx, tenant, filter, limit, cursor))

    async def waiting(self, tenant: str, *, limit: int = 50, ready: bool | None = None) -> Page:
        return await self._read(lambda tx: reads.waiting(tx, tenant, limit, ready))

    async def tallies(self, tenant: str | None) -> tuple[Tally, ...]:
        return await self._read(lambda tx: reads.tallies(tx, tenant))

    async def error_groups(self, tenant: str, *, limit: int = 50) -> tuple[ErrorGroup, ...]:
        return await self._read(lambda tx: reads.error_groups(tx, tenant, limit))

    async def roll_ups(self, tenant: str | None, *, since_ms: int) -> tuple[RollUp, ...]:
        return await self._read(lambda tx: reads.roll_ups(tx, tenant, since_ms))

    async def oldest_retry_at(self, tenant: str | None) -> datetime | None:
        return await self._read(lambda tx: reads.oldest_retry_at(tx, tenant))

    async def silent(
        self, status: Status, providers: Collection[str], *, after: int, until: int, limit: int
    ) -> tuple[tuple[str, str], ...]:
        return await self._read(lambda tx: reads.silent(tx, status, providers, after, until, limit))

    async def tenants(self) -> tuple[str, ...]:
        return await self._read(reads.tenants)

    # Upkeep --------------------------------------------------------------------------------------

    async def prune(self, retention: Retention, limit: int) -> Mapping[str, int]:
        return await self._write(lambda tx: upkeep.prune(tx, retention, limit))

    async def size(self) -> Mapping[str, int]:
        return await self._read(lambda tx: upkeep.size(tx, self._path))

    # Registry ------------------------------------------------------------------------------------

    async def get_many(self, tenant: str, kind: str, keys: Collection[str]) -> dict[str, Entry]:
        return await self._read(lambda tx: reference_data.get_many(tx, tenant, kind, keys), single=True)

    async def list_entries(
        self, tenant: str, kind: str, *, prefix: str = "", after: str = "", limit: int = 100
    ) -> tuple[Entry, ...]:
        return await self._read(
            lambda tx: reference_data.list_entries(tx, tenant, kind, prefix, after, limit)
        )

    async def put(self, entries: Sequence[Entry], *, who: str) -> tuple[Entry, ...] | None:
        return await self._write(lambda tx: reference_data.put(tx, entries, who))

    async def delete(self, tenant: str, kind: str, keys: Sequence[str]) -> int:
        return await self._write(lambda tx: reference_data.delete(tx, tenant, kind, keys))

    # State shared by workers ---------------------------------------------------------------------

    async def breakers(self) -> dict[str, Breaker]:
        return await self._read(reference_data.breakers, single=True)

    async def put_breaker(self, provider: str, breaker: Breaker) -> bool:
        return await self._write(lambda tx: reference_data.put_breaker(tx, provider, breaker))

    async def take(self, key: str, limit: RateLimit, want: int) -> TokenGrant:
        return (await self.take_many({key: TokenRequest(limit, want)}))[key]

    async def take_many(self, wants: Mapping[str, TokenRequest]) -> dict[str, TokenGrant]:
        return await self._write(lambda tx: reference_data.take_tokens(tx, wants))

    async def lead(self, task: str, worker: str, for_ms: int) -> bool:
        return await self._write(lambda tx: reference_data.lead(tx, task, worker, for_ms))

    # Connections and transactions ----------------------------------------------------------------

    def _open(self) -> None:
        with self._open_lock:  # concurrent calls must connect only once
            if self._writer is None:
                self._connect()

    def _connect(self) -> None:
        writing = connect(self._path, self._busy_timeout_ms)
        try:
            migrations.check_version(writing.cursor(), str(self._path))
            reading = connect(self._path, self._busy_timeout_ms)
        except sqlite3.Error as error:
            writing.close()
            raise translate_error(error, self._path) from error
        except BaseException:
            writing.close()
            raise
        self._writer = WriterThread("homing-sqlite-writer", writing, self._path)
        self._reader = ReaderThread("homing-sqlite-reader", reading, self._path)

    def _tx(self, cursor: sqlite3.Cursor) -> SqliteTransaction:
        return SqliteTransaction(cursor, self._clock())

    def _open_writer(self) -> WriterThread:
        if self._writer is None:
            raise StoreError(f"{self._path} is closed; open the store first.")
        return self._writer

    async def _write(self, action: Callable[[SqliteTransaction], R]) -> R:
        return await self._open_writer().do(ThreadCall(lambda cursor: action(self._tx(cursor))))

    async def _read(self, action: Callable[[SqliteTransaction], R], *, single: bool = False) -> R:
        """Runs the action on the reader thread. `single` means that the action is one statement."""
        if self._reader is None:
            raise StoreError(f"{self._path} is closed; open the store first.")
        return await self._reader.do(ThreadCall(lambda cursor: action(self._tx(cursor)), single=single))

    def _accept_joined(self, batch: Sequence[Submission], connection: object) -> tuple[Acceptance, ...]:
        with join_transaction(connection, self._path) as cursor:
            return accept.accept(self._tx(cursor), batch)

    def _accept_together(
        self, cursor: sqlite3.Cursor, batches: Sequence[Sequence[Submission]]
    ) -> Sequence[tuple[Acceptance, ...]]:
        everything = [submission for batch in batches for submission in batch]
        answers = iter(accept.accept(self._tx(cursor), everything))
        return [tuple(next(answers) for _ in batch) for batch in batches]

    def _settle_together(
        self, cursor: sqlite3.Cursor, batches: Sequence[Sequence[Settlement]]
    ) -> Sequence[SettleResult]:
        everything = [settlement for batch in batches for settlement in batch]
        statuses = iter(settle.settle(self._tx(cursor), everything, self._leased_rows))
        return [build_settle_result(batch, [next(statuses) for _ in batch]) for batch in batches]
