"""The in-memory store, for tests, the simulator and experiments.

It fulfills the whole store port, except that the data is lost when the process ends. Its clock is an
argument, so a test can control the time. No method awaits anything, and each checks its input before it
changes anything, so every call is atomic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import asdict, replace

from homing.core.errors import StoreError
from homing.core.lifecycle import rows
from homing.core.lifecycle.claims import (
    Acceptance,
    Claim,
    ClaimBatch,
    ClaimRequest,
    Lease,
    NewNotification,
    Submission,
)
from homing.core.lifecycle.commands import AmendResult, Command, CommandName
from homing.core.lifecycle.effects import has_effects, receipt_effects
from homing.core.lifecycle.events import Event
from homing.core.lifecycle.outcomes import Settlement, SettleResult
from homing.core.lifecycle.receipt_decision import apply_receipt, attempt_of
from homing.core.lifecycle.receipts import Receipt, ReceiptResult
from homing.core.lifecycle.row_commands import apply_command, resent_row
from homing.core.lifecycle.row_events import events_of
from homing.core.lifecycle.rows import Change
from homing.core.lifecycle.states import after_command, may_settle
from homing.core.notifications import Filter, Status
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import RegisteredSink, Retention, SinkRegistration, relay_task
from homing.core.routing.rate_limits import LONGEST_REFILL_MS
from homing.stores.memory_ledger import encode_events
from homing.stores.memory_reads import MemoryReads, decode_message, encode_message, matcher
from homing.stores.memory_registry import MemoryRegistry, check_puts
from homing.stores.memory_schedule import NOWHERE, Kept, Place, place_of


class MemoryStore(MemoryReads, MemoryRegistry):
    """A `Backend` over dicts and heaps."""

    def __init__(self, clock: Clock) -> None:
        MemoryReads.__init__(self, clock)
        MemoryRegistry.__init__(self, clock)
        self._sinks: dict[str, RegisteredSink] = {}

    async def open(self) -> None:
        """Does nothing: there is no connection."""

    async def close(self) -> None:
        """Does nothing: the data exists as long as the object."""

    async def migrate(self) -> tuple[str, ...]:
        return ()

    async def now_ms(self) -> int:
        return self._clock.now_ms()

    # Delivery path ------------------------------------------------------------------------------

    async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
        if tx is not None:
            raise StoreError("The memory store has no transactions to join; send without a connection.")
        now = self._clock.now_ms()
        encoded = [[encode_message(new.message) for new in submission.notifications] for submission in batch]
        for submission in batch:
            self._check_ids(submission)
        return tuple(
            self._accept(submission, messages, now)
            for submission, messages in zip(batch, encoded, strict=True)
        )

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        now = self._clock.now_ms()
        claims: list[Claim] = []

        def take(id: str) -> None:
            kept = self._kept[id]
            due_at, was = kept.row.due_at, place_of(kept.row)
            assert due_at is not None, "a claim takes only waiting rows"
            self._commit(kept, rows.lease(kept.row, request.worker, request.lease_ms, now), was)
            claims.append(_claim_of(kept, due_at))

        next_due_at = self._schedule.deal(request, now, take)
        return ClaimBatch(claims=tuple(claims), now=now, next_due_at=next_due_at)

    async def reclaim(self, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        now = self._clock.now_ms()
        claims: list[Claim] = []
        while len(claims) < limit and (id := self._schedule.overdue(now)) is not None:
            kept = self._kept[id]
            row, was = kept.row, place_of(kept.row)
            due_at = row.started_at if row.due_at is None else row.due_at
            self._commit(kept, rows.reclaim(row, worker, lease_ms, now), was)
            claims.append(_claim_of(kept, due_at))
        return ClaimBatch(claims=tuple(claims), now=now, next_due_at=None)

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> frozenset[str]:
        now = self._clock.now_ms()
        held: set[str] = set()
        for lease in leases:
            kept = self._kept.get(lease.id)
            if kept is None:
                continue
            was = place_of(kept.row)
            if rows.extend(kept.row, lease.token, lease_ms, now, lease.provider, lease.outlet):
                self._schedule.moved(kept.row, was)
                held.add(lease.id)
        return frozenset(held)

    async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
        now = self._clock.now_ms()
        for settlement in batch:
            assert may_settle(Status.SENDING, settlement.status), (
                f"{settlement.status} cannot be the status of a settlement"
            )
            check_puts(settlement.puts)
        applied: list[str] = []
        stale: list[str] = []
        missing: list[str] = []
        for settlement in batch:
            kept = self._kept.get(settlement.id)
            if kept is None:
                missing.append(settlement.id)
            elif self._settle(kept, settlement, now):
                applied.append(settlement.id)
            else:
                stale.append(settlement.id)
        return SettleResult(tuple(applied), tuple(stale), tuple(missing))

    async def amend(
        self, tenant: str, target: Sequence[str] | Filter, command: Command, *, limit: int = 1000
    ) -> AmendResult:
        now = self._clock.now_ms()
        missing: list[str] = []
        refused: dict[str, Status] = {}
        possible: list[Kept] = []
        if isinstance(target, Filter):
            matches = matcher(target)
            found = (kept for kept in self._of(tenant) if matches(kept.row) and _allows(kept, command))
            possible.extend(islice(found, max(0, limit)))
        else:
            for id in dict.fromkeys(target):
                kept = self._find(tenant, id)
                if kept is None:
                    missing.append(id)
                elif _allows(kept, command):
                    possible.append(kept)
                else:
                    refused[id] = kept.row.status
        if command.name is CommandName.RESEND:
            _check_new_ids(possible, command)
        requested = [kept.row.id for kept in possible if self._amend(kept, command, now)]
        waits = frozenset(requested)
        return AmendResult(
            applied=tuple(kept.row.id for kept in possible if kept.row.id not in waits),
            requested=tuple(requested),
            refused=refused,
            missing=tuple(missing),
            resent={kept.row.id: command.new_ids[kept.row.id] for kept in possible}
            if command.name is CommandName.RESEND
            else {},
        )

    async def receipt(self, batch: Sequence[Receipt]) -> ReceiptResult:
        now = self._clock.now_ms()
        applied: list[str] = []
        unchanged: list[str] = []
        orphaned: list[str] = []
        for receipt in batch:
            if not self._receipts.store_event(receipt, now):
                unchanged.append(receipt.event_id)
                continue
            kept = self._kept.get(self._receipts.owner(receipt) or "")
            index = attempt_of(receipt, kept.attempts) if kept is not None else None
            if kept is None or index is None or kept.row.status is Status.SENDING:
                self._receipts.keep(receipt)
                orphaned.append(receipt.event_id)
            elif self._receive(kept, receipt, index, now):
                applied.append(receipt.event_id)
            else:
                unchanged.append(receipt.event_id)
        return ReceiptResult(tuple(applied), tuple(unchanged), tuple(orphaned))

    # Events --------------------------------------------------------------------------------------

    async def emit(self, events: Sequence[Event]) -> None:
        self._publish(events)

    async def register_sink(self, sink: SinkRegistration) -> None:
        now, known = self._clock.now_ms(), self._sinks.get(sink.name)
        self._sinks[sink.name] = RegisteredSink(
            **asdict(sink), registered_at=known.registered_at if known else now, last_seen_at=now, waiting=0
        )

    async def sink_seen(self, name: str) -> bool:
        if name in self._sinks:
            self._sinks[name] = replace(self._sinks[name], last_seen_at=self._clock.now_ms())
        return name in self._sinks

    async def remove_sink(self, name: str) -> int | None:
        return None if self._sinks.pop(name, None) is None else self._outbox.drop(name)

    async def sinks(self) -> tuple[RegisteredSink, ...]:
        return tuple(
            replace(sink, waiting=self._outbox.count(name)) for name, sink in sorted(self._sinks.items())
        )

    async def outbox(self, sink: str, worker: str, limit: int, lease_ms: int) -> tuple[Event, ...]:
        events = self._outbox.next(sink, limit)
        return events if events and await self.lead(relay_task(sink), worker, lease_ms) else ()

    async def published(self, sink: str, ids: Sequence[str]) -> None:
        self._outbox.remove(sink, ids)

    def _publish(self, events: Sequence[Event]) -> None:
        wanted = {name: [e for e in events if e.name in sink.events] for name, sink in self._sinks.items()}
        for name, encoded in {name: encode_events(found) for name, found in wanted.items()}.items():
            self._outbox.add(name, encoded)

    # Upkeep --------------------------------------------------------------------------------------

    async def prune(self, retention: Retention, limit: int) -> Mapping[str, int]:
        now = self._clock.now_ms()
        notifications = 0
        for id in islice(self._schedule.past_retention(retention, now), limit):
            self._remove(self._kept[id])
            notifications += 1
        self._forget_full(now - LONGEST_REFILL_MS, limit)
        keys_until = now - retention.keys_ms
        return {
            "notifications": notifications,
            "keys": self._keys.prune(keys_until, limit),
            "receipts": self._receipts.prune(keys_until, limit),
            "outbox": self._outbox.prune(now - retention.outbox_ms, limit),
        }

    # Steps ---------------------------------------------------------------------------------------

    def _accept(self, submission: Submission, messages: Sequence[bytes], now: int) -> Acceptance:
        earlier = self._keys.answer(submission)
        if earlier is not None:
            return earlier
        ids: list[str] = []
        duplicates: set[str] = set()
        claims: list[Claim] = []
        for new, message in zip(submission.notifications, messages, strict=True):
            known = new.id if new.id in self._kept else self._keys.double(new, submission.tenant, now)
            if known is not None:
                ids.append(known)
                duplicates.add(known)
                continue
            ids.append(new.id)
            kept = self._store(new, submission, message, now)
            if submission.lease_to is not None:
                claims.append(_claim_of(kept, kept.row.aged_from))
        self._keys.answered(submission, tuple(ids), now)
        return Acceptance(
            batch_id=submission.batch_id,
            ids=tuple(ids),
            duplicates=frozenset(duplicates),
            claims=tuple(claims),
        )

    def _check_ids(self, submission: Submission) -> None:
        for new in submission.notifications:
            kept = self._kept.get(new.id)
            if kept is not None and kept.row.batch_id != submission.batch_id:
                raise StoreError(f"The id {new.id} already belongs to another request; ids must be new.")

    def _store(self, new: NewNotification, submission: Submission, message: bytes, now: int) -> Kept:
        change = rows.new_row(new, submission, now)
        kept = Kept(change.row, message)
        self._enroll(kept)
        self._commit(kept, change, NOWHERE)
        self._keys.stored(new, submission.tenant, now)
        return kept

    def _settle(self, kept: Kept, settlement: Settlement, now: int) -> bool:
        was = place_of(kept.row)
        change = rows.settle(kept.row, settlement, now)
        if change is None:
            return False
        self._commit(kept, change, was)
        self._write(settlement.puts)
        if settlement.attempt is not None:
            kept.ranks += (0,)
            self._receipts.link(kept, len(kept.attempts) - 1)
        self._receive_early(kept, now)
        return True

    def _amend(self, kept: Kept, command: Command, now: int) -> bool:
        """Applies an allowed command. Returns True if it takes effect only after the current attempt."""
        was = place_of(kept.row)
        change = apply_command(kept.row, command, now)
        assert change is not None, "commands that the status does not permit were sorted out before"
        self._commit(kept, change, was)
        if command.name is CommandName.RESEND:
            fresh = resent_row(kept.row, command, now)
            successor = Kept(fresh.row, kept.message)
            self._enroll(successor)
            self._commit(successor, fresh, NOWHERE)
        return command.name is CommandName.CANCEL and kept.row.status is Status.SENDING

    def _receive(self, kept: Kept, receipt: Receipt, index: int, now: int) -> bool:
        """Applies a receipt to the attempt at this index. Returns False if it changes nothing."""
        learned = self._receipts.learn(kept, receipt, index)
        decision = self._receipts.decision(kept, receipt, index, now)
        if decision is not None:
            was = place_of(kept.row)
            self._commit(kept, apply_receipt(kept.row, decision, receipt, now), was)
            if has_effects(receipt):
                recipient = decode_message(kept.message).recipient
                self._write(receipt_effects(kept.row, recipient, receipt))
        if learned:
            self._receive_early(kept, now)
        return decision is not None

    def _receive_early(self, kept: Kept, now: int) -> None:
        """Applies the kept receipts of this notification whose attempt is now known."""
        for receipt in self._receipts.early(kept):
            index = attempt_of(receipt, kept.attempts)
            if index is None:
                self._receipts.keep(receipt)
            else:
                self._receive(kept, receipt, index, now)

    def _commit(self, kept: Kept, change: Change, was: Place) -> None:
        """Records a change in the notification, the schedule, the counts and the outbox."""
        if change.attempt is not None:
            kept.attempts += (change.attempt,)
        if change.cause is not None:
            kept.causes += (change.cause,)
        self._schedule.moved(kept.row, was)
        self._ledger.record(change)
        if self._sinks:
            wanted = frozenset().union(*(sink.events for sink in self._sinks.values()))
            self._publish(events_of(change, wanted, decode_message(kept.message), kept.attempts))

    def _remove(self, kept: Kept) -> None:
        self._strike(kept)
        self._schedule.removed(place_of(kept.row))
        self._ledger.purge(kept.row)
        self._receipts.forget(kept)


def _claim_of(kept: Kept, due_at: int) -> Claim:
    return rows.claim_of(kept.row, decode_message(kept.message), due_at)


def _allows(kept: Kept, command: Command) -> bool:
    row = kept.row
    return after_command(command, row.status, mode=row.mode, resent=row.resent_as is not None) is not None


def _check_new_ids(possible: Sequence[Kept], command: Command) -> None:
    for kept in possible:
        if kept.row.id not in command.new_ids:
            raise ValueError(f"a resend of {kept.row.id} needs an id for the new notification")
