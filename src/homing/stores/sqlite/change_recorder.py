"""Records the effects of changes to rows: tallies, sums by time, attempts, causes, queues and events.

The records of one call are collected and written together, in the transaction that changes the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from homing.core.lifecycle.events import NOTIFICATION_FAILED, Event
from homing.core.lifecycle.outcomes import AttemptRecord, RegistryPut
from homing.core.lifecycle.row_events import events_of, has_events
from homing.core.lifecycle.rows import Change, Row
from homing.core.lifecycle.states import WAITING
from homing.core.notifications import Message, Status
from homing.stores.common.change_effects import (
    EMPTY_MESSAGE,
    GOAL_KEY,
    GOAL_SUMS,
    HOUR_MS,
    LATENESS_SUMS,
    MINUTE_KEY,
    MINUTE_MS,
    MINUTE_SUMS,
    ROLL_UP_KEY,
    SUMS,
    ChangeCounts,
    registry_rows,
)
from homing.stores.common.codec import (
    ATTEMPT_FIELDS,
    ATTEMPT_OWN_FIELDS,
    ATTEMPT_SHARED_FIELDS,
    CAUSE_FIELDS,
    Column,
    attempt_own_values,
    attempt_shared_values,
    cause_columns,
    decode_attempts,
    decode_messages,
    encode,
    to_column,
)
from homing.stores.common.sinks import SINK_EVENT_FIELDS, sink_event_rows
from homing.stores.sqlite.statements import JsonInsert, MultiRowStatement, SqliteTransaction, build_insert

QueueKey = tuple[str, str, str]
"""Key of a queue: (lane, tenant, outlet)."""

_FAILED = Status.FAILED

_UPSERT_TALLIES = build_insert(
    "homing_tallies",
    ("tenant", "status", "attempts", "count"),
    " ON CONFLICT DO UPDATE SET count = count + excluded.count",
)


class _Addition:
    """Adds to the sums of a table, by key. A statement names only the sums that change, which are few."""

    def __init__(self, table: str, key: Sequence[str], sums: Sequence[str]) -> None:
        self._table = table
        self._key = key
        self._sums = sums
        self._statements: dict[frozenset[str], tuple[tuple[str, ...], MultiRowStatement] | None] = {}
        """Names of the numbers that are not 0 → the sums among them, and the statement that adds to these."""

    def run(
        self, tx: SqliteTransaction, at: int, totals: Mapping[tuple[str, ...], Mapping[str, int]]
    ) -> None:
        """Adds the numbers to the sums of each key, at this time. A number may be missing if it is 0.

        Hot path: called for each transaction that changes rows.
        """
        if not totals:
            return
        given = frozenset([name for total in totals.values() for name in total if total[name]])
        try:
            found = self._statements[given]
        except KeyError:
            found = self._statements[given] = self._build(given)
        if found is None:
            return
        names, statement = found
        rows: list[tuple[Column, ...]] = [
            (at, *key, *[total.get(name, 0) for name in names]) for key, total in totals.items()
        ]
        statement.run(tx, rows)

    def _build(self, given: frozenset[str]) -> tuple[tuple[str, ...], MultiRowStatement] | None:
        """Returns the sums with these names and the statement that adds to them. None if there are none."""
        names = tuple(name for name in self._sums if name in given)
        if not names:
            return None
        added = ", ".join(f"{name} = {name} + excluded.{name}" for name in names)
        tail = f" ON CONFLICT DO UPDATE SET {added}"
        return names, build_insert(self._table, (*self._key, *names), tail)


_HOURS = _Addition("homing_roll_ups", ROLL_UP_KEY, SUMS)

_MINUTES = _Addition("homing_minute_roll_ups", MINUTE_KEY, MINUTE_SUMS)

_GOALS = _Addition("homing_goals", GOAL_KEY, GOAL_SUMS)

_INSERT_ATTEMPTS = JsonInsert(
    "homing_attempts", ("seq", *ATTEMPT_OWN_FIELDS), ("change", *ATTEMPT_SHARED_FIELDS)
)

_INSERT_CAUSES = build_insert("homing_causes", ("seq", "change", *CAUSE_FIELDS))

_INSERT_EVENTS = build_insert(
    "homing_sink_events",
    SINK_EVENT_FIELDS,
    " ON CONFLICT DO NOTHING",
)

_UPSERT_ENTERED_QUEUES = build_insert(
    "homing_queues",
    ("lane", "tenant", "outlet", "next_due_at"),
    " ON CONFLICT DO UPDATE SET next_due_at = excluded.next_due_at"
    " WHERE next_due_at IS NULL OR next_due_at > excluded.next_due_at",
)

NEXT_DUE_SUBQUERY = """(
    SELECT n.due_at FROM homing_notifications AS n INDEXED BY homing_due
    WHERE n.lane = homing_queues.lane AND n.tenant = homing_queues.tenant
      AND n.outlet = homing_queues.outlet AND n.due_at IS NOT NULL
    ORDER BY n.due_at LIMIT 1)"""

UPDATE_LEFT_QUEUES = MultiRowStatement(
    f"UPDATE homing_queues SET next_due_at = {NEXT_DUE_SUBQUERY} FROM (VALUES ",  # noqa: S608
    3,
    ") AS q WHERE lane = q.column1 AND tenant = q.column2 AND outlet = q.column3",
)

_UPSERT_REGISTRY = build_insert(
    "homing_registry",
    ("tenant", "kind", "key", "value", "version", "updated_at", "updated_by"),
    " ON CONFLICT DO UPDATE SET value = json_patch(value, excluded.value),"
    " version = version + excluded.version,"
    " updated_at = excluded.updated_at, updated_by = excluded.updated_by",
)


def queue_of(row: Row) -> QueueKey | None:
    """Returns the queue that the row waits in, or None if it is not waiting."""
    return (row.lane, row.tenant, row.outlet) if row.status in WAITING else None


class SqliteChangeRecorder:
    """Collects the changes of one call. Call `write` last, after the rows themselves are written."""

    def __init__(self, tx: SqliteTransaction) -> None:
        self._tx = tx
        self._counts = ChangeCounts()
        self._attempts: dict[tuple[int, tuple[Any, ...]], list[tuple[Column, ...]]] = {}
        """Maps (change number, shared values) to the own values of each attempt."""
        self._causes: list[tuple[Column, ...]] = []
        self._entered: dict[QueueKey, int] = {}
        self._left: dict[QueueKey, None] = {}
        self._events: list[Event] = []
        self._details: dict[int, tuple[Message, list[AttemptRecord]]] = {}
        """Messages and attempts of failed notifications by seq, for the event `NotificationFailed`."""

    def record(self, seq: int, change: Change, was: QueueKey | None = None) -> None:
        """Records one change. Must be called before the same row is changed again.

        `was` is the queue that the row waited in before the change, or None if it was not waiting.
        """
        if was is not None:
            self._left[was] = None
        self.record_all(((seq, change),))

    def record_all(self, changes: Iterable[tuple[int, Change]], number: int = 1) -> None:
        """Records changes of different rows. Does not update the queues that the rows leave.

        Each change stands for `number` changes with the same effect on counts and queues. If `number` is not
        1, the changes must have no attempt, cause or event.
        """
        count, attempts, entered = self._counts.add, self._attempts, self._entered
        subscribed = self._tx.subscribed
        for seq, change in changes:
            count(change, number)
            row, attempt, cause = change.row, change.attempt, change.cause
            if attempt is not None:
                shared = (row.changes, attempt_shared_values(attempt))
                attempts.setdefault(shared, []).append((seq, *attempt_own_values(attempt)))
            if cause is not None:
                self._causes.append((seq, row.changes, *cause_columns(cause)))
            due_at = row.due_at
            if due_at is not None:
                queue = (row.lane, row.tenant, row.outlet)
                if entered.get(queue, due_at) >= due_at:
                    entered[queue] = due_at
            if subscribed and has_events(change, subscribed):
                self._events += self._events_of(seq, change)

    def prefetch_failure_details(self, seqs: Collection[int]) -> None:
        """Reads the event details of rows that are about to fail, with one query for all of them."""
        if seqs and NOTIFICATION_FAILED in self._tx.subscribed:
            self._details.update(_read_details(self._tx, seqs))

    def add_failure_details(self, seq: int, message: Message) -> None:
        """Passes the event details of a new row that is a dead letter from the start and not yet written."""
        self._details[seq] = (message, [])

    def write(self) -> None:
        """Writes everything that was recorded."""
        tx = self._tx
        alike = {(change, *map(to_column, shared)): owns for (change, shared), owns in self._attempts.items()}
        _INSERT_ATTEMPTS.run(tx, alike)
        _INSERT_CAUSES.run(tx, self._causes)
        UPDATE_LEFT_QUEUES.run(tx, list(self._left))
        _UPSERT_ENTERED_QUEUES.run(tx, [(*queue, due_at) for queue, due_at in self._entered.items()])
        self._write_tallies()
        self._write_sums()
        write_events(tx, self._events)

    def _write_tallies(self) -> None:
        """Moves the counts from the tallies of the old status and attempts to those of the new ones."""
        cells: dict[tuple[str, str, int], int] = {}
        for (tenant, _, _, before, attempts_before, after, attempts, *_), kind in self._counts.kinds.items():
            if before is not None:
                left = (tenant, before.value, attempts_before)
                cells[left] = cells.get(left, 0) - kind.number
            entered = (tenant, after.value, attempts)
            cells[entered] = cells.get(entered, 0) + kind.number
        _UPSERT_TALLIES.run(self._tx, [(*cell, number) for cell, number in cells.items() if number])

    def _write_sums(self) -> None:
        now = self._tx.now
        hour_at, minute_at = now - now % HOUR_MS, now - now % MINUTE_MS
        totals: dict[tuple[str, ...], dict[str, int]] = {}
        goals: dict[tuple[str, ...], dict[str, int]] = {}
        for (tenant, channel, provider, *_), kind in self._counts.kinds.items():
            if not kind.sums:
                continue
            total = totals.setdefault((tenant, channel.value, provider), {})
            for name, number in kind.sums.items():
                total[name] = total.get(name, 0) + number * kind.number
            total["attempt_ms"] = total.get("attempt_ms", 0) + kind.attempt_ms
            if kind.goal is not None:
                mode, met, bucket = kind.goal
                late = LATENESS_SUMS[bucket]
                total[late] = total.get(late, 0) + kind.number
                goal, result = goals.setdefault((tenant, mode), {}), "met" if met else "missed"
                goal[result] = goal.get(result, 0) + kind.number
        _HOURS.run(self._tx, hour_at, totals)
        _MINUTES.run(self._tx, minute_at, totals)
        _GOALS.run(self._tx, hour_at, goals)

    def _events_of(self, seq: int, change: Change) -> list[Event]:
        if change.row.status is not _FAILED or NOTIFICATION_FAILED not in self._tx.subscribed:
            return events_of(change, self._tx.subscribed, EMPTY_MESSAGE, ())
        if seq not in self._details:
            self._details.update(_read_details(self._tx, (seq,)))
        message, attempts = self._details[seq]
        if change.attempt is not None:
            attempts.append(change.attempt)
        return events_of(change, self._tx.subscribed, message, attempts)


def write_events(tx: SqliteTransaction, events: Collection[Event]) -> None:
    """Writes events to the outbox of each sink that gets them.

    An event whose id is already there is a repetition and is skipped.
    """
    if events:
        _INSERT_EVENTS.run(tx, list(sink_event_rows(tx.sinks, events)))


def write_registry_puts(tx: SqliteTransaction, puts: Iterable[RegistryPut], who: str = "homing") -> None:
    """Merges the registry entries of settlements or receipts into the stored ones. New fields win."""
    _UPSERT_REGISTRY.run(tx, registry_rows(puts, tx.now, who))


def attempts_of(tx: SqliteTransaction, seqs: Collection[int]) -> dict[int, list[AttemptRecord]]:
    """Returns the attempts of each row, the oldest first, by seq."""
    found: dict[int, list[AttemptRecord]] = {seq: [] for seq in seqs}
    for seq, attempt in decode_attempts(tx.one(_ATTEMPTS_OF, encode(list(seqs)))):
        found[seq].append(attempt)
    return found


def messages_of(tx: SqliteTransaction, seqs: Collection[int]) -> dict[int, Message]:
    """Returns the messages of these rows, by seq."""
    wanted = list(seqs)
    messages = decode_messages(tx.one(_MESSAGES_OF, encode(wanted)))
    return dict(zip(wanted, messages, strict=True))


def _read_details(
    tx: SqliteTransaction, seqs: Collection[int]
) -> dict[int, tuple[Message, list[AttemptRecord]]]:
    attempts, messages = attempts_of(tx, seqs), messages_of(tx, seqs)
    return {seq: (messages[seq], attempts[seq]) for seq in seqs}


_ATTEMPTS_OF = f"""
SELECT json_group_array(json_array(a.seq, json_array({", ".join(f"a.{f}" for f in ATTEMPT_FIELDS)})))
FROM json_each(?1) AS j CROSS JOIN homing_attempts AS a ON a.seq = j.value
"""  # noqa: S608

_MESSAGES_OF = """
SELECT '[' || coalesce(group_concat(m.message), '') || ']'
FROM json_each(?1) AS j CROSS JOIN homing_messages AS m ON m.seq = j.value
"""
