"""Planted bugs in the code of the SQLite store and in what the stores share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from typing import Any

from msgspec.structs import replace

from homing.core.clock_offset import measure_offset
from homing.core.clock_steps import ClockStep
from homing.core.lifecycle import rows as core_rows
from homing.core.lifecycle.claims import StoredRequest
from homing.core.lifecycle.events import Event
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.notifications import OutcomeKind, Status
from homing.core.ports.stores import TokenGrant
from homing.stores.common import change_effects, receipt_applier
from homing.stores.common.clock_guard import ClockGuard
from homing.stores.common.codec import Column
from homing.stores.common.leased_rows import MISSING, STALE
from homing.stores.common.row_columns import UNCHANGED_IF_NULL_FIELDS
from homing.stores.sqlite import (
    accept,
    amend,
    change_recorder,
    claim,
    leases,
    reads,
    receipts,
    reference_data,
    settle,
    sinks,
    store,
    upkeep,
    workers,
)
from homing.stores.sqlite.change_recorder import write_events
from homing.stores.sqlite.clock import CheckedClock
from homing.stores.sqlite.columns import LEASED_FIELDS, MUTABLE_FIELDS, SETTLED_FIELDS
from homing.stores.sqlite.statements import MultiRowStatement, NotificationUpdate, SqliteTransaction
from simulation.planted import bugs

BUGS = bugs.BugList()


_RECORDER = change_recorder.SqliteChangeRecorder

_HAS_STEPPED = (ClockGuard, "_has_stepped")

_DECIDE_RECEIPT = (receipt_applier, "decide_receipt")


class _NothingWritten:
    """Stands in for a statement that was forgotten."""

    def run(self, tx: Any, rows: Any, *rest: Any) -> int:
        return 0


class _IncompleteUpdate(NotificationUpdate):
    """An UPDATE of notifications that leaves out one column."""

    def __init__(
        self, fields: Sequence[str], lost: str, kept: Collection[str] = (), *, versioned: bool = False
    ) -> None:
        super().__init__([name for name in fields if name != lost], kept, versioned=versioned)
        self._lost = fields.index(lost)

    def run_grouped(self, tx: SqliteTransaction, groups: Mapping[tuple[Column, ...], list[Any]]) -> int:
        shorter: dict[tuple[Column, ...], list[Any]] = {}
        for columns, rows in groups.items():
            rest = columns[: self._lost] + columns[self._lost + 1 :]
            shorter.setdefault(rest, []).extend(rows)
        return super().run_grouped(tx, shorter)


class _ByNumberUpdate(NotificationUpdate):
    """An UPDATE of notifications that compares no more than their seqs, although it is given versions."""

    def run_grouped(self, tx: SqliteTransaction, groups: Mapping[tuple[Column, ...], list[Any]]) -> int:
        return super().run_grouped(
            tx, {columns: [version[0] for version in rows] for columns, rows in groups.items()}
        )


class _ByChangesUpdate(_ByNumberUpdate):
    """An UPDATE of notifications that compares their seqs and their numbers of changes, but not their ids."""

    def run_grouped(self, tx: SqliteTransaction, groups: Mapping[tuple[Column, ...], list[Any]]) -> int:
        same = {
            columns: [version for version in rows if tx.one(_CHANGES, version[0]) == version[2]]
            for columns, rows in groups.items()
        }
        return super().run_grouped(tx, {columns: rows for columns, rows in same.items() if rows})


_CHANGES = "SELECT changes FROM homing_notifications WHERE seq = ?"


class _KnownQueues:
    """Creates each queue once. From then on, only updates it, because it is known to exist."""

    def __init__(self, create: MultiRowStatement) -> None:
        self._create = create
        self._known: set[tuple[Any, ...]] = set()

    def run(self, tx: SqliteTransaction, rows: Sequence[tuple[Any, ...]]) -> int:
        for row in rows:
            if row[:3] in self._known:
                tx.run(_ENTER_QUEUE, *row)
            else:
                self._create.run(tx, [row])
                self._known.add(row[:3])
        return len(rows)


_ENTER_QUEUE = """
UPDATE homing_queues SET next_due_at = min(coalesce(next_due_at, ?4), ?4)
WHERE lane = ?1 AND tenant = ?2 AND outlet = ?3
"""


def _later(tx: SqliteTransaction, by_ms: int) -> SqliteTransaction:
    return SqliteTransaction(tx.cursor, tx.now + by_ms)


# The clock ----------------------------------------------------------------------------------------------


@BUGS.plant(
    "a jump of the clock is believed at once", "21", on=_HAS_STEPPED, plan=bugs.clock_jumps, seed=1_003
)
def jump_believed(real: Any) -> Any:
    return lambda self, measured: False


@BUGS.plant(
    "a jump of the clock is never believed",
    "21",
    on=(ClockStep, "is_pending"),
    plan=bugs.clock_jumps,
    seed=1_002,
)
def jump_never_believed(real: Any) -> Any:
    return lambda self, clock_now: True


def _second_record_lost(real: Any) -> Any:
    """Makes the transaction that records a second jump fail, as far as the record is concerned."""

    def resolve(self: Any, *times: Any, **options: Any) -> Any:
        resolved, stored = real(self, *times, **options), times[3]
        is_second = stored is not None and resolved.record is not None
        if is_second and resolved.record.suspected_at > stored.suspected_at:
            return replace(resolved, record=None)
        return resolved

    return resolve


@BUGS.plant(
    "a second jump is believed if its record was rolled back and that of the first remains",
    "21",
    on=(ClockGuard, "_is_unrecorded"),
    also=(ClockGuard, "resolve", _second_record_lost),
    plan=bugs.clock_jumps,
    seed=1_006,
)
def second_jump_believed(real: Any) -> Any:
    return lambda self, stored, clock_now, answered_ms: False


@BUGS.plant(
    "leadership from the future is kept",
    "21",
    on=(reference_data, "VOID_TERM_MS"),
    plan=bugs.restarted,
    seed=1_001,
)
def future_leader(real: Any) -> Any:
    return 10**12


@BUGS.plant(
    "leases from the future are kept", "21", on=(leases, "reclaim_bounds"), plan=bugs.restarted, seed=1_001
)
def future_lease(real: Any) -> Any:
    return lambda now, settling: (now, 2**62, 2**62)


@BUGS.plant(
    "leases are taken over as soon as a new time is accepted",
    "21",
    on=(leases, "reclaim_bounds"),
    plan=bugs.accepted_jumps,
    seed=1_220,
)
def taken_over_at_acceptance(real: Any) -> Any:
    return lambda now, settling: real(now, False)


@BUGS.plant(
    "a start after a day takes the day for a step of the clock",
    "21",
    on=(CheckedClock, "read_in"),
    plan=bugs.overnight,
    seed=1_003,
)
def night_is_a_step(real: Any) -> Any:
    def read_in(self: Any, cursor: Any, *, writable: bool) -> Any:
        guard, (_, asked_ms, answered_ms) = self._guard, self._measure()
        if guard._bounds is None:
            (last,) = cursor.execute("SELECT max(updated_at) FROM homing_notifications").fetchone()
            if last is not None:
                guard._bounds = measure_offset(last, asked_ms, answered_ms)
                guard._checked_ms = answered_ms
        return real(self, cursor, writable=writable)

    return read_in


class _WallClock:
    """What the clock shows, for bugs that ignore its correction."""

    ahead_ms = 0


def _read_and_remember(real: Any) -> Any:
    def read_in(self: Any, cursor: Any, *, writable: bool) -> Any:
        time = real(self, cursor, writable=writable)
        _WallClock.ahead_ms = self._clock() - time.now
        return time

    return read_in


@BUGS.plant(
    "a reclaim uses the clock without its correction",
    "4",
    "21",
    on=(leases, "reclaim_bounds"),
    also=(CheckedClock, "read_in", _read_and_remember),
    plan=bugs.clock_jumps,
    seed=1_003,
)
def reclaim_by_wall_clock(real: Any) -> Any:
    return lambda now, settling: real(now + _WallClock.ahead_ms, settling)


# Claims and leases ------------------------------------------------------------------------------------


def _due_early(real: Any) -> Any:
    return real.replace("_due_at <= ?2", "_due_at <= ?2 + 2000")


@BUGS.plant(
    "rows are claimed before they are due",
    "8",
    on=(claim, "DUE_ROWS"),
    also=(claim, "DUE_QUEUES", _due_early),
    plan=bugs.rough,
    seed=1_003,
)
def claimed_early(real: Any) -> Any:
    return real.replace("n.due_at <= ?2", "n.due_at <= ?2 + 2000")


@BUGS.plant(
    "a claim takes the newest rows of a queue first",
    "16",
    on=(claim, "DUE_ROWS"),
    plan=bugs.crowded,
    seed=1_003,
)
def newest_first(real: Any) -> Any:
    return real.replace("ORDER BY n.due_at, n.id LIMIT", "ORDER BY n.due_at DESC, n.id LIMIT").replace(
        "(n.due_at, n.id) > (json_extract(q.value, '$[3]'), json_extract(q.value, '$[4]'))",
        "(json_extract(q.value, '$[4]') = '' OR n.due_at < json_extract(q.value, '$[3]'))",
    )


@BUGS.plant(
    "a claim serves only the first tenant", "16", on=(claim, "DUE_QUEUES"), plan=bugs.crowded, seed=1_001
)
def others_not_served(real: Any) -> Any:
    return real.replace("LIMIT ?7", "LIMIT min(1, ?7)")


@BUGS.plant(
    "a served queue is forgotten",
    "14",
    "16",
    on=(claim, "UPDATE_FETCHED_QUEUES"),
    plan=bugs.crowded,
    seed=1_003,
)
def queue_forgotten(real: Any) -> Any:
    class Forgetful:
        def run(self, tx: Any, rows: Any) -> int:
            changed = int(real.run(tx, rows))
            tx.run("UPDATE homing_queues SET next_due_at = NULL WHERE next_due_at <= ?", tx.now)
            return changed

    return Forgetful()


@BUGS.plant(
    "a row enters its queue without a due time",
    "14",
    "16",
    on=(change_recorder, "_UPSERT_ENTERED_QUEUES"),
    plan=bugs.quiet,
    seed=1_003,
)
def never_due(real: Any) -> Any:
    class Incomplete:
        def run(self, tx: Any, rows: Any) -> int:
            return int(real.run(tx, [row for row in rows if row[3] % 5]))

    return Incomplete()


@BUGS.plant(
    "leases are reclaimed before they expire",
    "4",
    "7",
    on=(leases, "EXPIRED_SEQS"),
    plan=bugs.rough,
    seed=1_001,
)
def reclaimed_early(real: Any) -> Any:
    return real.replace("<= ?1", "<= ?1 + 3000")


@BUGS.plant("a lost lease is extended", "4", on=(leases, "extend"), plan=bugs.contested, seed=1_003)
def extended_for_anybody(real: Any) -> Any:
    return lambda row, held, *rest: real(row, replace(held, token=row.token, worker=None), *rest)


@BUGS.plant(
    "leases are cached although the claim failed",
    "4",
    on=(store.SqliteStore, "claim"),
    plan=bugs.flaky,
    seed=1_003,
)
def cached_before_commit(real: Any) -> Any:
    async def claim_rows(self: Any, request: Any) -> Any:
        leased: list[Any] = []
        try:
            return await self._write(lambda tx: claim.claim(tx, request, self._turns, leased, {}))
        finally:
            self._leased_rows.keep(leased)

    return claim_rows


@BUGS.plant(
    "a run for chosen notifications claims others",
    "16",
    on=(claim, "CHOSEN_ROWS"),
    plan=bugs.by_hand,
    seed=1_001,
)
def others_than_the_chosen(real: Any) -> Any:
    return real.replace("ON n.id = j.value", "ON j.key = 0")


@BUGS.plant(
    "a run for one tenant claims others", "16", on=(claim, "DUE_QUEUES"), plan=bugs.by_hand, seed=1_001
)
def other_tenants_than_the_chosen(real: Any) -> Any:
    return real.replace("AND (?6 IS NULL OR q.tenant = ?6)", "")


# Columns ----------------------------------------------------------------------------------------------


@BUGS.plant(
    "an accepted row loses a column", "12", on=(accept, "shared_columns"), plan=bugs.quiet, seed=1_003
)
def accepted_without_send_at(real: Any) -> Any:
    return lambda row: real(replace(row, send_at=None))


@BUGS.plant(
    "a claim does not store a column", "12", on=(leases, "UPDATE_LEASED"), plan=bugs.quiet, seed=1_003
)
def claimed_without_start(real: Any) -> Any:
    return _IncompleteUpdate(LEASED_FIELDS, "started_at")


@BUGS.plant(
    "a settlement does not store a column", "12", on=(settle, "UPDATE_SETTLED"), plan=bugs.steady, seed=1_003
)
def settled_without_attempt_time(real: Any) -> Any:
    return _IncompleteUpdate(SETTLED_FIELDS, "last_attempt_at", UNCHANGED_IF_NULL_FIELDS, versioned=True)


@BUGS.plant(
    "a command does not store a column", "12", on=(amend, "UPDATE_MUTABLE"), plan=bugs.quiet, seed=1_002
)
def commanded_without_link(real: Any) -> Any:
    return _IncompleteUpdate(MUTABLE_FIELDS, "resent_as")


@BUGS.plant("a resent row loses a column", "12", on=(amend, "shared_columns"), plan=bugs.quiet, seed=1_002)
def resent_without_link(real: Any) -> Any:
    return lambda row: real(replace(row, resend_of=None))


@BUGS.plant(
    "a late notification is counted as sent in time",
    "1",
    on=(change_effects, "_GOALS_MS"),
    plan=bugs.steady,
    seed=1_003,
)
def late_is_in_time(real: Any) -> Any:
    return {mode: 10 * goal_ms for mode, goal_ms in real.items()}


# Settlements ------------------------------------------------------------------------------------------


@BUGS.plant(
    "a cached row overwrites newer data",
    "1",
    "4",
    "7",
    on=(settle, "UPDATE_SETTLED"),
    plan=bugs.contested,
    seed=1_002,
)
def cache_wins(real: Any) -> Any:
    return _ByNumberUpdate(SETTLED_FIELDS, UNCHANGED_IF_NULL_FIELDS)


@BUGS.plant(
    "a cached row is found by its number, which another notification has after commits were lost",
    "26",
    on=(settle, "UPDATE_SETTLED"),
    plan=bugs.lost_commits,
)
def settled_by_number(real: Any) -> Any:
    return _ByChangesUpdate(SETTLED_FIELDS, UNCHANGED_IF_NULL_FIELDS)


@BUGS.plant(
    "an attempt settles the lease of another process, which has the token of a lost lease",
    "26",
    on=(core_rows, "_belongs_to_lease"),
    plan=bugs.lost_commits,
    seed=1_001,
)
def settles_for_another_process(real: Any) -> Any:
    def belongs_to_lease(settlement: Any, row: Any) -> bool:
        same = settlement.attempt is None or settlement.attempt.number == row.attempts
        return (same and settlement.worker != row.worker) or bool(real(settlement, row))

    return belongs_to_lease


@BUGS.plant(
    "an attempt under a lost lease settles the next lease of the same process, which has its token",
    "26",
    on=(core_rows, "_belongs_to_lease"),
    plan=bugs.lost_commits,
    seed=1_003,
)
def settles_the_next_lease(real: Any) -> Any:
    def belongs_to_lease(settlement: Any, row: Any) -> bool:
        same = settlement.attempt is None or settlement.attempt.number == row.attempts
        return same and bool(settlement.worker == row.worker)

    return belongs_to_lease


@BUGS.plant(
    "a process extends the lease of another one, which has the token of a lost lease",
    "26",
    on=(leases, "extend"),
    plan=bugs.lost_short_leases,
)
def extends_for_another_process(real: Any) -> Any:
    return lambda row, held, *rest: real(row, replace(held, worker=None), *rest)


@BUGS.plant(
    "a queue that was created once is not created again after commits were lost",
    "14",
    "16",
    "26",
    on=(change_recorder, "_UPSERT_ENTERED_QUEUES"),
    plan=bugs.lost_commits,
    also=(upkeep, "_delete_unused", lambda real: lambda tx, limit: None),
)
def known_queues(real: Any) -> Any:
    return _KnownQueues(real)


@BUGS.plant(
    "a stale settlement publishes an event", "4", on=(settle, "settle"), plan=bugs.contested, seed=1_003
)
def event_of_a_stale_one(real: Any) -> Any:
    numbers = count()

    def settle_all(tx: Any, batch: Any, held: Any) -> Any:
        statuses = real(tx, batch, held)
        for settlement, status in zip(batch, statuses, strict=True):
            if status is STALE:
                event = Event(
                    id=f"{settlement.id}:x{next(numbers)}",
                    name="NotificationFailed",
                    tenant=tx.one("SELECT tenant FROM homing_notifications WHERE id = ?", settlement.id),
                    at=tx.now,
                    notification_id=settlement.id,
                )
                write_events(tx, [event])
        return statuses

    return settle_all


@BUGS.plant(
    "a settlement is committed before its early receipts",
    "2",
    on=(settle, "apply_early_receipts"),
    plan=bugs.flaky,
    seed=1_003,
)
def two_transactions(real: Any) -> Any:
    def apply_later(tx: Any, seqs: Any) -> None:
        tx.cursor.execute("COMMIT")
        tx.cursor.execute("BEGIN IMMEDIATE")
        real(tx, seqs)

    return apply_later


# Acceptance -------------------------------------------------------------------------------------------


@BUGS.plant(
    "idempotency keys are not stored", "3", on=(accept, "_INSERT_REQUESTS"), plan=bugs.rough, seed=1_003
)
def keys_forgotten(real: Any) -> Any:
    return _NothingWritten()


@BUGS.plant(
    "another body with the same key is accepted",
    "3",
    on=(StoredRequest, "answer"),
    plan=bugs.rough,
    seed=1_001,
)
def no_conflict(real: Any) -> Any:
    return lambda request, fingerprint: real(request, request.fingerprint)


@BUGS.plant("the dedup window is ignored", "3", on=(accept, "_known_dedups"), plan=bugs.quiet, seed=1_003)
def dedup_ignored(real: Any) -> Any:
    return lambda tx, batch: {}


@BUGS.plant(
    "a cancelled message counts for its dedup window",
    "25",
    on=(accept, "_KNOWN_DEDUPS"),
    plan=bugs.cancelling,
    seed=1_017,
)
def cancelled_counts(real: str) -> str:
    return real.partition("WHERE NOT EXISTS")[0]


@BUGS.plant(
    "a message that was cancelled after a provider took it does not count for its dedup window",
    "3",
    on=(accept, "_KNOWN_DEDUPS"),
    plan=bugs.repeating,
    seed=1_012,
)
def taken_does_not_count(real: str) -> str:
    return real.replace("a.outcome IN (", "a.outcome IN ('no outcome') AND a.outcome IN (")


@BUGS.plant(
    "a cancelled message whose failure was reported counts for its dedup window",
    "25",
    on=(accept, "_KNOWN_DEDUPS"),
    plan=bugs.repeating,
    seed=1_013,
)
def failed_counts(real: str) -> str:
    return real.replace("f.receipt_rank IN (", "f.receipt_rank > 100 AND f.receipt_rank IN (")


@BUGS.plant(
    "an accepted row is not stored", "1", "2", "12", on=(accept, "accept"), plan=bugs.quiet, seed=1_003
)
def row_lost(real: Any) -> Any:
    def accept_all(tx: Any, batch: Any, *rest: Any) -> Any:
        answers = real(tx, batch, *rest)
        for answer in answers:
            if tx.now % 10 == 0 and not answer.duplicates and not answer.claims:
                for id in answer.ids:
                    tx.run("DELETE FROM homing_notifications WHERE id = ?", id)
        return answers

    return accept_all


# Counts, events, reads and upkeep ---------------------------------------------------------------------


@BUGS.plant(
    "counts ignore an attempt that is given back",
    "1",
    "12",
    on=(_RECORDER, "record_all"),
    plan=bugs.rough,
    seed=1_003,
)
def tally_of_a_postponement(real: Any) -> Any:
    def counted(change: Any) -> Any:
        if change.before is Status.SENDING and change.attempts_before > change.row.attempts:
            return replace(change, row=replace(change.row, attempts=change.attempts_before))
        return change

    def record_all(self: Any, changes: Any, number: int = 1) -> None:
        real(self, [(seq, counted(change)) for seq, change in changes], number)

    return record_all


@BUGS.plant(
    "the sums of the minutes are not written",
    "1",
    on=(change_recorder, "KEEP_MINUTES"),
    plan=bugs.quiet,
    seed=1_003,
)
def minutes_not_written(real: Any) -> Any:
    return "SELECT ?1, ?2, ?3"


@BUGS.plant(
    "a purge does not change the counts", "1", on=(upkeep, "_RECORD_PURGED"), plan=bugs.quiet, seed=1_005
)
def purge_not_counted(real: Any) -> Any:
    return _NothingWritten()


@BUGS.plant(
    "rows are purged before their retention ends", "2", on=(upkeep, "_purge"), plan=bugs.quiet, seed=1_003
)
def purged_early(real: Any) -> Any:
    return lambda tx, retention, limit: real(_later(tx, 30 * 24 * 3_600_000), retention, limit)


@BUGS.plant(
    "dedup keys are purged before their window ends",
    "3",
    on=(upkeep, "_DELETE_OLD_DEDUPS"),
    plan=bugs.short_keys,
)
def window_cut_short(real: Any) -> Any:
    return real.replace("kept_until <= ?2", "?2 > 0")


@BUGS.plant(
    "published events take others with them",
    "2",
    "17",
    on=(sinks, "remove_events"),
    plan=bugs.rough,
    seed=1_003,
)
def outbox_emptied(real: Any) -> Any:
    return lambda tx, sink, ids: tx.run("DELETE FROM homing_sink_events")


@BUGS.plant(
    "an event that one sink has published leaves the outbox of all sinks",
    "17",
    on=(sinks, "remove_events"),
    plan=bugs.steady,
    seed=2,
)
def event_leaves_every_outbox(real: Any) -> Any:
    def remove_events(tx: Any, sink: str, ids: Any) -> None:
        for name, _ in tx.sinks.sinks:
            real(tx, name, ids)

    return remove_events


@BUGS.plant(
    "events are written only for the first sink",
    "17",
    on=(change_recorder, "sink_event_rows"),
    plan=bugs.steady,
    seed=1_003,
)
def event_of_one_sink(real: Any) -> Any:
    return lambda book, events: real(replace(book, sinks=book.sinks[:1]), events)


@BUGS.plant(
    "the newest events of a sink are published first",
    "17",
    on=(sinks, "NEXT_EVENTS"),
    plan=bugs.steady,
    seed=1_003,
)
def newest_event_first(real: Any) -> Any:
    return real.replace("ORDER BY number", "ORDER BY number DESC")


@BUGS.plant("a list shows another tenant's rows", "15", on=(reads, "list_page"), plan=bugs.quiet, seed=1_003)
def list_of_another(real: Any) -> Any:
    return lambda tx, tenant, *rest: real(tx, "t0", *rest)


@BUGS.plant("any tenant can read a row by its id", "15", on=(reads, "get"), plan=bugs.quiet, seed=1_001)
def found_by_everybody(real: Any) -> Any:
    def get(tx: Any, tenant: str, id: str) -> Any:
        owner = tx.one("SELECT tenant FROM homing_notifications WHERE id = ?", id)
        return real(tx, owner or tenant, id)

    return get


@BUGS.plant(
    "rate limits grant every token", "13", on=(reference_data, "take_tokens"), plan=bugs.limited, seed=1_003
)
def tokens_for_all(real: Any) -> Any:
    return lambda tx, wants: {key: TokenGrant(want.tokens, 0) for key, want in wants.items()}


# Workers ----------------------------------------------------------------------------------------------


@BUGS.plant("a heartbeat revives all workers", "20", on=(workers, "worker_seen"), plan=bugs.rough, seed=1_003)
def everybody_seen(real: Any) -> Any:
    def worker_seen(tx: Any, beat: Any) -> None:
        real(tx, beat)
        tx.run("UPDATE homing_workers SET seen_at = ?", tx.now)

    return worker_seen


@BUGS.plant("pruning forgets live workers", "20", on=(upkeep, "forget_workers"), plan=bugs.quiet, seed=1_003)
def live_worker_forgotten(real: Any) -> Any:
    return lambda tx: tx.run("DELETE FROM homing_workers")


# Commands ---------------------------------------------------------------------------------------------


@BUGS.plant("a command leaves no record", "12", on=(amend, "commanded"), plan=bugs.quiet, seed=1_003)
def command_unrecorded(real: Any) -> Any:
    def apply(row: Any, command: Any, now: int) -> Any:
        change = real(row, command, now)
        return None if change is None else replace(change, cause=None)

    return apply


@BUGS.plant("a resend copies no message", "10", on=(amend, "_COPY_MESSAGES"), plan=bugs.quiet, seed=1_002)
def resent_without_message(real: Any) -> Any:
    return _NothingWritten()


# Receipts ---------------------------------------------------------------------------------------------


@BUGS.plant("a late failure undoes a delivery", "11", on=_DECIDE_RECEIPT, plan=bugs.quiet, seed=1_003)
def rank_falls(real: Any) -> Any:
    def decide_receipt(standing: Any, receipt: Any) -> Any:
        if standing.status is Status.DELIVERED and receipt.event is ReceiptEvent.FAILED:
            standing = replace(standing, rank=0, status=Status.SENT)
        return real(standing, receipt)

    return decide_receipt


def _change_receipt_input(change: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[[Any], Any]:
    """Returns a factory of `decide_receipt` with a changed context or receipt."""
    return lambda real: lambda standing, receipt: real(*change(standing, receipt))


@BUGS.plant("a reported failure is retried at once", "8", on=_DECIDE_RECEIPT, plan=bugs.quiet, seed=1_003)
def bounce_without_backoff(real: Any) -> Any:
    def decide_receipt(standing: Any, receipt: Any) -> Any:
        verdict = real(standing, receipt)
        return replace(verdict, delay_ms=0) if verdict is not None and verdict.reopened else verdict

    return decide_receipt


@BUGS.plant(
    "a reported failure forgets its provider's hold", "8", on=_DECIDE_RECEIPT, plan=bugs.quiet, seed=1_003
)
def bounce_without_hold(real: Any) -> Any:
    def decide_receipt(standing: Any, receipt: Any) -> Any:
        verdict = real(standing, receipt)
        return None if verdict is None else replace(verdict, hold_ms=0)

    return decide_receipt


@BUGS.plant("the error table's wait is ignored", "8", on=_DECIDE_RECEIPT, plan=bugs.quiet, seed=1_003)
def table_wait_ignored(real: Any) -> Any:
    return _change_receipt_input(lambda standing, receipt: (standing, replace(receipt, retry_after_ms=None)))(
        real
    )


@BUGS.plant(
    "a reported failure reopens a cancelled notification",
    "7",
    "12",
    on=_DECIDE_RECEIPT,
    plan=bugs.cancelling,
)
def bounce_after_cancel(real: Any) -> Any:
    return _change_receipt_input(
        lambda standing, receipt: (replace(standing, cancel_requested=False), receipt)
    )(real)


@BUGS.plant("content that a receipt refused is retried", "9", on=_DECIDE_RECEIPT, plan=bugs.quiet, seed=1_003)
def bad_content_is_resent(real: Any) -> Any:
    def change(standing: Any, receipt: Any) -> tuple[Any, Any]:
        if receipt.outcome is OutcomeKind.BAD_CONTENT:
            receipt = replace(receipt, outcome=OutcomeKind.TRANSIENT)
        return standing, receipt

    return _change_receipt_input(change)(real)


@BUGS.plant(
    "a reported provider fault counts as transient", "9", on=_DECIDE_RECEIPT, plan=bugs.quiet, seed=1_008
)
def reported_fault_goes_back(real: Any) -> Any:
    def change(standing: Any, receipt: Any) -> tuple[Any, Any]:
        if receipt.outcome is OutcomeKind.PROVIDER_FAULT:
            receipt = replace(receipt, outcome=OutcomeKind.TRANSIENT)
        return standing, receipt

    return _change_receipt_input(change)(real)


@BUGS.plant(
    "an unknown failure is retried every time", "9", on=_DECIDE_RECEIPT, plan=bugs.bounced, seed=1_014
)
def unknown_without_end(real: Any) -> Any:
    return _change_receipt_input(
        lambda standing, receipt: (replace(standing, unknown_before=False), receipt)
    )(real)


@BUGS.plant(
    "a taken message does not end its waiting retry", "24", on=_DECIDE_RECEIPT, plan=bugs.unsure, seed=1_003
)
def taken_ignored(real: Any) -> Any:
    def decide_receipt(standing: Any, receipt: Any) -> Any:
        taken = receipt.event in (ReceiptEvent.QUEUED, ReceiptEvent.SENT)
        return None if taken and standing.status is Status.RETRYING else real(standing, receipt)

    return decide_receipt


@BUGS.plant(
    "a taken message does not count beside a failed one",
    "24",
    on=_DECIDE_RECEIPT,
    plan=bugs.doubtful,
    seed=1_003,
)
def others_ignored(real: Any) -> Any:
    return _change_receipt_input(lambda standing, receipt: (replace(standing, others_taken=False), receipt))(
        real
    )


@BUGS.plant("the rule's bounce_failover is ignored", "9", on=_DECIDE_RECEIPT, plan=bugs.quiet, seed=1_001)
def bounce_rule_ignored(real: Any) -> Any:
    return _change_receipt_input(lambda standing, receipt: (replace(standing, bounce_always=None), receipt))(
        real
    )


@BUGS.plant(
    "a repeated receipt counts again",
    "11",
    "12",
    on=(receipts, "_decode_known_events"),
    plan=bugs.quiet,
    seed=1_003,
    also=(receipts, "_INSERT_RECEIPTS", lambda real: _InsertOrIgnore()),
)
def heard_twice(real: Any) -> Any:
    return lambda text: []


class _InsertOrIgnore:
    def run(self, tx: Any, rows: Any) -> int:
        for row in rows:
            tx.cursor.execute(
                "INSERT OR IGNORE INTO homing_receipts (provider, event_id, provider_message_id,"
                " notification_id, received_at, kept) VALUES (?, ?, ?, ?, ?, ?)",
                row,
            )
        return len(rows)


@BUGS.plant(
    "only a message id finds an attempt",
    "11",
    on=(receipt_applier, "attempt_of"),
    plan=bugs.rough,
    seed=1_003,
)
def named_in_vain(real: Any) -> Any:
    def attempt_of(receipt: Any, attempts: Any) -> Any:
        return real(replace(receipt, notification_id=None, attempt=0), attempts)

    return attempt_of


@BUGS.plant(
    "early receipts are dropped", "11", on=(settle, "apply_early_receipts"), plan=bugs.quiet, seed=1_003
)
def early_receipt_dropped(real: Any) -> Any:
    return lambda tx, seqs: None


@BUGS.plant(
    "reported failures are not returned", "12", on=(receipt_applier, "_FAILURES"), plan=bugs.quiet, seed=1_003
)
def failures_unreturned(real: Any) -> Any:
    return frozenset()


@BUGS.plant(
    "failures reported before their settlement are not returned",
    "12",
    on=(store, "build_settle_result"),
    plan=bugs.quiet,
    seed=1_003,
)
def early_failures_unreturned(real: Any) -> Any:
    return lambda batch, statuses, failures: real(batch, statuses, ())


@BUGS.plant(
    "settled rows are reported as missing",
    "4",
    on=(store, "build_settle_result"),
    plan=bugs.quiet,
    seed=1_003,
)
def settled_rows_missing(real: Any) -> Any:
    return lambda batch, statuses, failures: real(batch, [MISSING] * len(statuses), failures)
