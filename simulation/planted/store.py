"""Planted bugs in the store: keys, schedule, counts, events, reads and receipts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from msgspec.structs import replace

from homing.core.lifecycle.events import Event
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.notifications import OutcomeKind, Status
from homing.stores import memory, memory_keys, memory_ledger, memory_reads, memory_receipts, memory_schedule
from simulation.planted import bugs

BUGS = bugs.BugList()


_STORE = memory.MemoryStore

_KEYS = memory_keys.MemoryKeys

_SCHEDULE = memory_schedule.Schedule

_READS = memory_reads.MemoryReads

_RECEIPTS = memory_receipts.Receipts

_DECIDE_RECEIPT = (memory_receipts, "decide_receipt")


@BUGS.plant("rows are claimed before they are due", "8", on=(_SCHEDULE, "deal"), plan=bugs.rough)
def claimed_early(real: Any) -> Any:
    return lambda self, request, now, take: real(self, request, now + 2_000, take)


@BUGS.plant("leases are reclaimed before they expire", "4", "7", on=(_SCHEDULE, "overdue"), plan=bugs.rough)
def reclaimed_early(real: Any) -> Any:
    return lambda self, now: real(self, now + 3_000)


@BUGS.plant(
    "rows are purged before their retention ends", "2", on=(_SCHEDULE, "past_retention"), plan=bugs.quiet
)
def purged_early(real: Any) -> Any:
    return lambda self, retention, now: real(self, retention, now + 30 * 24 * 3_600_000)


@BUGS.plant("idempotency keys are ignored", "3", on=(_KEYS, "answer"), plan=bugs.rough)
def keys_forgotten(real: Any) -> Any:
    return lambda self, submission: None


@BUGS.plant("a different body with the same key is accepted", "3", on=(_KEYS, "answer"), plan=bugs.rough)
def no_conflict(real: Any) -> Any:
    def answer(self: Any, submission: Any) -> Any:
        fingerprint, _ = self._answers.get((submission.tenant, submission.idempotency_key), ("", None))
        return real(self, replace(submission, fingerprint=fingerprint))

    return answer


@BUGS.plant("the dedup window is ignored", "3", on=(_KEYS, "double"), plan=bugs.quiet)
def dedup_ignored(real: Any) -> Any:
    return lambda self, new, tenant, now: None


@BUGS.plant("an accepted row is not stored", "1", "2", "12", on=(_STORE, "_accept"), plan=bugs.quiet)
def row_lost(real: Any) -> Any:
    def accept(self: Any, submission: Any, messages: Any, now: int) -> Any:
        answer = real(self, submission, messages, now)
        if now % 10 == 0 and not answer.duplicates and not answer.claims:
            for id in answer.ids:
                self._kept.pop(id, None)
        return answer

    return accept


@BUGS.plant("a stale settlement publishes an event", "4", on=(_STORE, "_settle"), plan=bugs.contested)
def event_of_a_stale_one(real: Any) -> Any:
    numbers = count()

    def settle(self: Any, kept: Any, settlement: Any, now: int) -> bool:
        applied = bool(real(self, kept, settlement, now))
        if not applied:
            event = Event(
                id=f"{kept.row.id}:x{next(numbers)}",
                name="NotificationFailed",
                tenant=kept.row.tenant,
                at=now,
                notification_id=kept.row.id,
            )
            self._outbox.add("sink", memory_ledger.encode_events([event]))
        return applied

    return settle


@BUGS.plant(
    "an event that one sink has published leaves the outbox of all sinks",
    "17",
    on=(_STORE, "published"),
    plan=bugs.steady,
)
def event_leaves_every_outbox(real: Any) -> Any:
    async def published(self: Any, sink: str, ids: Any) -> None:
        for name in self._sinks:
            await real(self, name, ids)

    return published


@BUGS.plant(
    "events are written only for the sink that registered first",
    "17",
    on=(_STORE, "_publish"),
    plan=bugs.steady,
)
def event_of_one_sink(real: Any) -> Any:
    def publish(self: Any, events: Any) -> None:
        everything, self._sinks = self._sinks, dict([*self._sinks.items()][:1])
        real(self, events)
        self._sinks = everything

    return publish


@BUGS.plant(
    "the newest events of a sink are published first",
    "17",
    on=(memory_ledger.Outbox, "next"),
    plan=bugs.steady,
)
def newest_event_first(real: Any) -> Any:
    return lambda self, sink, limit: tuple(reversed(real(self, sink, limit)))


@BUGS.plant(
    "counts ignore an attempt that is given back",
    "1",
    "12",
    on=(memory_ledger.Ledger, "record"),
    plan=bugs.rough,
)
def tally_of_a_postponement(real: Any) -> Any:
    def record(self: Any, change: Any) -> None:
        if change.before is Status.SENDING and change.attempts_before > change.row.attempts:
            change = replace(change, row=replace(change.row, attempts=change.attempts_before))
        real(self, change)

    return record


@BUGS.plant("a list shows all tenants", "15", on=(_READS, "list"), plan=bugs.quiet)
def list_of_everybody(real: Any) -> Any:
    async def list(self: Any, tenant: str, filter: Any, *, limit: int = 50, cursor: str | None = None) -> Any:
        mine, self._ids = self._ids, {tenant: sorted(id for ids in self._ids.values() for id in ids)}
        try:
            return await real(self, tenant, filter, limit=limit, cursor=cursor)
        finally:
            self._ids = mine

    return list


@BUGS.plant("any tenant can read a row by its id", "15", on=(_READS, "_find"), plan=bugs.quiet)
def found_by_everybody(real: Any) -> Any:
    return lambda self, tenant, id: self._kept.get(id)


@BUGS.plant("a late failure undoes a delivery", "11", on=_DECIDE_RECEIPT, plan=bugs.quiet)
def rank_falls(real: Any) -> Any:
    def decide_receipt(standing: Any, receipt: Any) -> Any:
        if standing.status is Status.DELIVERED and receipt.event is ReceiptEvent.FAILED:
            standing = replace(standing, rank=0, status=Status.SENT)
        return real(standing, receipt)

    return decide_receipt


def _change_receipt_input(change: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[[Any], Any]:
    """Returns a factory of `decide_receipt` with a changed context or receipt."""
    return lambda real: lambda standing, receipt: real(*change(standing, receipt))


@BUGS.plant("a reported failure is retried at once", "8", on=_DECIDE_RECEIPT, plan=bugs.quiet)
def bounce_without_backoff(real: Any) -> Any:
    def decide_receipt(standing: Any, receipt: Any) -> Any:
        verdict = real(standing, receipt)
        return replace(verdict, delay_ms=0) if verdict is not None and verdict.reopened else verdict

    return decide_receipt


@BUGS.plant("a reported failure forgets its provider's hold", "8", on=_DECIDE_RECEIPT, plan=bugs.quiet)
def bounce_without_hold(real: Any) -> Any:
    def decide_receipt(standing: Any, receipt: Any) -> Any:
        verdict = real(standing, receipt)
        return None if verdict is None else replace(verdict, hold_ms=0)

    return decide_receipt


@BUGS.plant("the error table's wait is ignored", "8", on=_DECIDE_RECEIPT, plan=bugs.quiet)
def table_wait_ignored(real: Any) -> Any:
    return _change_receipt_input(lambda standing, receipt: (standing, replace(receipt, retry_after_ms=None)))(
        real
    )


@BUGS.plant("content that a receipt refused is retried", "9", on=_DECIDE_RECEIPT, plan=bugs.quiet)
def bad_content_is_resent(real: Any) -> Any:
    def change(standing: Any, receipt: Any) -> tuple[Any, Any]:
        if receipt.outcome is OutcomeKind.BAD_CONTENT:
            receipt = replace(receipt, outcome=OutcomeKind.TRANSIENT)
        return standing, receipt

    return _change_receipt_input(change)(real)


@BUGS.plant("a reported provider fault counts as transient", "9", on=_DECIDE_RECEIPT, plan=bugs.quiet)
def reported_fault_goes_back(real: Any) -> Any:
    def change(standing: Any, receipt: Any) -> tuple[Any, Any]:
        if receipt.outcome is OutcomeKind.PROVIDER_FAULT:
            receipt = replace(receipt, outcome=OutcomeKind.TRANSIENT)
        return standing, receipt

    return _change_receipt_input(change)(real)


@BUGS.plant("an unknown failure is retried every time", "9", on=_DECIDE_RECEIPT, plan=bugs.quiet)
def unknown_without_end(real: Any) -> Any:
    return _change_receipt_input(
        lambda standing, receipt: (replace(standing, unknown_before=False), receipt)
    )(real)


@BUGS.plant("the rule's bounce_failover is ignored", "9", on=_DECIDE_RECEIPT, plan=bugs.quiet)
def bounce_rule_ignored(real: Any) -> Any:
    return _change_receipt_input(lambda standing, receipt: (replace(standing, bounce_always=None), receipt))(
        real
    )


@BUGS.plant("a repeated receipt counts again", "11", "12", on=(_RECEIPTS, "store_event"), plan=bugs.quiet)
def heard_twice(real: Any) -> Any:
    def store_event(self: Any, receipt: Any, now: int) -> bool:
        real(self, receipt, now)
        return True

    return store_event


@BUGS.plant("only a message id finds an attempt", "11", on=(memory, "attempt_of"), plan=bugs.rough)
def named_in_vain(real: Any) -> Any:
    def attempt_of(receipt: Any, attempts: Any) -> Any:
        return real(replace(receipt, notification_id=None, attempt=0), attempts)

    return attempt_of


@BUGS.plant("early receipts are dropped", "11", on=(_RECEIPTS, "keep"), plan=bugs.quiet)
def early_receipt_dropped(real: Any) -> Any:
    return lambda self, receipt: None
