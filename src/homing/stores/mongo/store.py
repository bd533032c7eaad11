"""The MongoDB implementation of the store port. Most methods are one transaction."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

from msgspec.structs import replace

from homing.core.clock_steps import ClockStep
from homing.core.errors import StoreBusy, StoreError, StoreUnavailable
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
from homing.core.ports.stores import SinkRegistration, StoreCheckResult
from homing.core.routing.fair_share import TenantTurns
from homing.stores.common.group_commit import GroupCommit
from homing.stores.common.leased_rows import build_settle_result
from homing.stores.common.sinks import REMOVAL_STEP
from homing.stores.common.transactional_store import TransactionalStore
from homing.stores.mongo import (
    accept,
    amend,
    change_recorder,
    claim,
    leases,
    reads,
    receipts,
    reference_data,
    schema,
    server_checks,
    settle,
    sinks,
    upkeep,
    workers,
)
from homing.stores.mongo.change_recorder import messages_of
from homing.stores.mongo.claim import ClaimPlan
from homing.stores.mongo.connection import InterruptedWrite, MongoConnection
from homing.stores.mongo.due_marks import DueMarks
from homing.stores.mongo.due_rows import RowsAhead, RowsToReadAhead, read_ahead
from homing.stores.mongo.schema import NOTIFICATIONS
from homing.stores.mongo.transaction import MongoTransaction, SessionDatabase, both
from homing.stores.mongo.wake_ups import WakeUps

R = TypeVar("R")

_CLAIM_TIMEOUT_S = 20.0
"""Longest time for a claim whose rows other workers lease again and again."""

_CLAIM_PAUSE_S = 0.02
"""Longest pause before a claim chooses other rows."""


class MongoStore(TransactionalStore):
    """A `Backend` in one database of a MongoDB replica set or sharded cluster.

    Every write is on the disks of a majority when the call returns. All but the claim are transactions.
    """

    _amend, _change_recorder, _leases, _reads = amend, change_recorder, leases, reads
    _reference_data, _sinks, _upkeep, _workers = reference_data, sinks, upkeep, workers

    def __init__(
        self,
        url: str,
        *,
        steady_clock: Callable[[], int] | None = None,
        adjust_clock: Callable[[int], int] | None = None,
    ) -> None:
        """`url` is `mongodb://HOST/DATABASE` or `mongodb+srv://…`. The other arguments are for tests."""
        self._connection = MongoConnection(
            url, steady_clock=steady_clock, adjust_clock=adjust_clock, on_other_history=self._forget
        )
        self._leased_documents = leases.LeasedDocuments()
        self._turns = TenantTurns()
        self._due_marks = DueMarks()
        self._last_choice: claim.LastChoice | None = None
        self._wake_ups = WakeUps(lambda: self._connection.database)
        self._accepting: GroupCommit[Sequence[Submission], tuple[Acceptance, ...]] = GroupCommit(
            self._accept_together
        )

    async def open(self) -> None:
        """Connects. Raises `SchemaError` if this program is too old for the layout of the database."""
        await self._connection.open(self._check_layout)

    async def _check_layout(self) -> None:
        database, where = self._connection.database, self._connection.where
        await schema.check_version(database, where)
        await schema.check_complete(database, where)

    async def close(self) -> None:
        await self._accepting.finish()
        await self._wake_ups.close()
        await self._connection.close()

    async def migrate(self, *, create: bool = True) -> tuple[str, ...]:
        """Creates what is missing of the collections and indexes. Several processes may call it at once."""
        where = self._connection.where
        migrating = schema.migrate(self._connection.database, where, create=create)
        return await self._connection.outside(migrating, timed=False)

    async def now_ms(self) -> int:
        return await self._connection.now_ms()

    @property
    def history(self) -> str:
        return self._connection.history

    async def suspected_clock_step(self) -> ClockStep | None:
        return await self._connection.suspected_step()

    # Delivery path ------------------------------------------------------------------------------

    async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
        """Stores the submissions. `tx` may be the caller's own session with an open transaction."""
        if tx is not None:
            return await self._connection.join(tx, lambda joined: accept.accept(joined, batch, all_ids=True))
        return await self._accepting.do(batch)

    async def known_requests(
        self, keys: Collection[RequestKey], *, tx: Any = None
    ) -> dict[RequestKey, StoredRequest]:
        if tx is not None:
            return await self._connection.join(tx, lambda joined: accept.known_requests(joined, keys))
        return await self._look(lambda reading: accept.known_requests(reading, keys))

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        until, contested = time.monotonic() + _CLAIM_TIMEOUT_S, leases.ContestedRows()
        marks = self._due_marks.begin()
        while True:
            chosen = await self._choose(request, marks, contested.begin_try())
            if not chosen.due_times:
                if not chosen.marks:
                    return chosen.empty_batch()
                marks = {}  # what is due may have been added below a mark
                continue
            batch = await self._lease(chosen, request, contested)
            if batch.claims:
                return await self._end_claim(batch, chosen, request)
            if time.monotonic() >= until:
                raise StoreBusy(f"{self._connection.where} changed too often during a claim.")
            await asyncio.sleep(random.random() * _CLAIM_PAUSE_S)  # other workers have leased the same rows

    async def _lease(
        self, chosen: ClaimPlan, request: ClaimRequest, contested: leases.ContestedRows
    ) -> ClaimBatch:
        """Leases the chosen rows and returns those that no other worker was quicker to lease.

        Their messages, which do not change, are read at the same time.
        """
        new = chosen.leases(request)
        contested.add(new.ids)
        leased, (messages, _) = await both(
            self._write_leases(new, contested),
            both(self._look(lambda tx: messages_of(tx, new.ids)), self._write_turns(chosen)),
        )
        if unread := leased - messages.keys():
            # A server that was elected meanwhile shows what a majority had before only after its own writes.
            messages |= await self._look(lambda tx: messages_of(tx, unread))
        self._leased_documents.keep(new.rows(leased))
        return replace(chosen.empty_batch(), claims=new.claims(leased, messages, chosen.due_times))

    async def _write_leases(self, new: leases.NewLeases, contested: leases.ContestedRows) -> AbstractSet[str]:
        """Writes the leases and returns the ids of those that took place."""
        written = None
        try:
            written = await self._connection.write_once(new.write)
        except InterruptedWrite as error:
            if error.timed_out:
                contested.leave_out()
                await self._connection.end_abandoned_transactions()
        if written == len(new.ids):
            return new.ids
        if written is not None:
            found = await self._connection.outside(new.find(SessionDatabase(self._connection.database)))
            if len(found) == written:
                return found
        # A lease may be on the primary without being on a majority yet, so that a plain read does not show
        # it. A transaction reads it, and its commit waits for the majority.
        return await self._write(lambda tx: new.find(tx.db))

    async def _write_turns(self, chosen: ClaimPlan) -> None:
        # A single queue has no other to take turns with.
        if (share := chosen.share) is not None and len(chosen.waiting) > 1:
            with suppress(InterruptedWrite):
                await self._connection.write_once(lambda db: claim.write_turns(db, share))

    async def _choose(
        self, request: ClaimRequest, marks: Mapping[str, int], skipped: Collection[str] = ()
    ) -> ClaimPlan:
        ahead = None
        wanted = None
        if self._last_choice is not None and not skipped:
            wanted = self._last_choice.guess(request, self._turns)
        if request.ids is not None:  # a claim that names its rows needs no queues
            tx = await self._connection.look_now(_keep)
        elif wanted is None:
            tx = await self._find_queues(marks)
        else:
            tx, ahead = await both(self._find_queues(marks), self._read_ahead(wanted))
        chosen = await self._connection.outside(claim.plan(tx, request, self._turns, skipped, ahead))
        chosen.marks = marks if request.ids is None else {}
        self._last_choice = claim.LastChoice(chosen)
        return chosen

    async def _find_queues(self, marks: Mapping[str, int]) -> MongoTransaction:
        """Reads the waiting queues, from the marks or, in a sweep, all from the beginning."""
        found = (NOTIFICATIONS, claim.queues_pipeline(marks, serial=True))
        with nullcontext() if marks else self._due_marks.pace.sweep():
            return await self._connection.look_now(_keep, found)

    async def _read_ahead(self, wanted: RowsToReadAhead) -> RowsAhead | None:
        """Reads rows that the claim probably needs. If that fails, the claim reads them itself."""
        with suppress(StoreError):
            return await self._look(lambda tx: read_ahead(tx.db, wanted))
        return None

    async def _end_claim(self, batch: ClaimBatch, chosen: ClaimPlan, request: ClaimRequest) -> ClaimBatch:
        """Completes the batch with the time of the next due row."""
        if chosen.share is None:
            return batch
        self._turns.record(chosen.share.taken())
        if len(batch.claims) < len(chosen.due_times):  # others were quicker, and more rows may be due
            return replace(batch, next_due_at=batch.now)
        self._due_marks.note(chosen.queues, chosen.taken())
        waiting = chosen.waiting
        if chosen.may_empty_queues:
            database, marks = SessionDatabase(self._connection.database), self._due_marks.by_queue
            with suppress(StoreUnavailable):  # the rows are leased, and the worker polls anyway
                waiting = await self._connection.outside(claim.waiting_queues(database, request, marks))
        next_due_at = claim.next_due_at(waiting, batch.now, request)
        if chosen.marks:  # something that is due may have been added below a mark
            sweep_at = self._due_marks.sweep_at(batch.now)
            next_due_at = sweep_at if next_due_at is None else min(next_due_at, sweep_at)
        return replace(batch, next_due_at=next_due_at)

    async def reclaim(self, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        leased: list[leases.LeasedRow] = []
        contested = leases.ContestedRows()
        batch = await self._write(
            lambda tx: leases.reclaim_expired(tx, worker, limit, lease_ms, leased, contested)
        )
        self._leased_documents.keep(leased)
        return batch

    async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
        self._connection.note_primary()  # first, because it may empty the cache
        cached = self._leased_documents.take(batch)

        async def settle_in(tx: MongoTransaction) -> SettleResult:
            usable = cached.copy()
            cached.clear()  # settling changes the rows, so a repetition reads them
            statuses = await settle.settle(tx, batch, usable)
            return build_settle_result(batch, statuses, tx.failures)

        return await self._connection.write(settle_in, beside=receipts.ANY_KEPT, on_thread=True)

    async def receipt(self, batch: Sequence[Receipt]) -> ReceiptResult:
        """Applies receipts.

        Receipts that had to be kept are tried again in a second transaction (see `receipts`).
        """
        result, kept = await self._write(lambda tx: receipts.apply_receipts(tx, batch))
        if not kept:
            return result
        await self._connection.wait_for_open_transactions(of_callers=False)
        return await self._write(lambda tx: receipts.apply_kept_receipts(tx, kept, result))

    # Reads --------------------------------------------------------------------------------------

    async def find_missing(self, ids: Collection[str]) -> frozenset[str]:
        """Returns those of the ids under which no notification is stored.

        It is asked after an election. The new primary shows what a majority had before only after its own
        first write, for which the commit of a transaction waits.
        """
        return await self._write(lambda tx: reads.find_missing(tx, ids))

    # Wake-ups ------------------------------------------------------------------------------------

    @property
    def hears(self) -> bool:
        return self._wake_ups.hears

    async def listen(self, wake: Callable[[], None], wake_inbox: Callable[[], None]) -> None:
        await self._wake_ups.listen(wake)

    # Events --------------------------------------------------------------------------------------

    async def register_sink(self, sink: SinkRegistration) -> None:
        if await self._write(lambda tx: sinks.register_sink(tx, sink)):
            await self._connection.wait_for_open_transactions()

    async def remove_sink(self, name: str) -> int | None:
        if not await self._read(lambda tx: sinks.is_registered(tx, name)):
            return None
        total = removed = await self._write(lambda tx: sinks.remove_sink_step(tx, name))
        while removed == REMOVAL_STEP:
            removed = await self._write(lambda tx: sinks.remove_sink_step(tx, name))
            total += removed
        return total

    # Checks --------------------------------------------------------------------------------------

    async def examine(self, *, now_ms: int) -> tuple[StoreCheckResult, ...]:
        return await self._connection.outside(server_checks.examine(self._connection.database, now_ms))

    # Upkeep --------------------------------------------------------------------------------------

    async def size(self) -> Mapping[str, int]:
        counts = await self._read(upkeep.size)
        stats = await self._connection.outside(self._connection.database.command("dbStats"))
        version = await self._connection.outside(schema.read_version(self._connection.database))
        size = int(stats.get("storageSize", 0)) + int(stats.get("indexSize", 0))
        return {**counts, "bytes": size, "schema_version": version or 0}

    # Transactions --------------------------------------------------------------------------------

    async def _write(self, action: Callable[[MongoTransaction], Awaitable[R]]) -> R:
        return await self._connection.write(action)

    async def _read(self, action: Callable[[MongoTransaction], Awaitable[R]], tenant: str | None = None) -> R:
        return await self._connection.read(action)

    async def _look(self, action: Callable[[MongoTransaction], Awaitable[R]]) -> R:
        return await self._connection.look(action)

    async def _accept_together(
        self, batches: Sequence[Sequence[Submission]], may_wait: bool
    ) -> Sequence[tuple[Acceptance, ...]]:
        everything = [submission for batch in batches for submission in batch]
        all_ids = False

        async def accept_in(tx: MongoTransaction) -> tuple[Acceptance, ...]:
            nonlocal all_ids
            try:
                return await accept.accept(tx, everything, all_ids=all_ids)
            except accept.IdsStoredAlready:
                all_ids = True
                raise

        answers = iter(await self._write(accept_in))
        self._wake_ups.announce()
        return [tuple(next(answers) for _ in batch) for batch in batches]

    def _forget(self) -> None:
        """Drops everything that this store remembers, because another primary may lack commits."""
        self._leased_documents = leases.LeasedDocuments()
        self._turns = TenantTurns()
        self._due_marks = DueMarks()
        self._last_choice = None


async def _keep(tx: MongoTransaction) -> MongoTransaction:
    return tx
