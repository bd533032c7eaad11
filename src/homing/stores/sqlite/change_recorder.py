"""Records the effects of changes to rows: tallies, sums by time, attempts, causes, queues and events.

The records of one call are collected and written together, in the transaction that changes the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec.json import decode

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
    encode,
    to_column,
)
from homing.stores.common.sinks import SINK_EVENT_FIELDS, sink_event_rows
from homing.stores.sqlite.rows import messages_in
from homing.stores.sqlite.statements import JsonInsert, MultiRowStatement, SqliteTransaction, build_insert

QueueKey = tuple[str, str, str]
"""Key of a queue: (lane, tenant, outlet)."""

_FAILED = Status.FAILED

_UPSERT_TALLIES = build_insert(
    "homing_tallies",
    ("tenant", "status", "attempts", "count"),
    " ON CONFLICT DO UPDATE SET count = count + excluded.count",
)


_UPSERT_GOALS = build_insert(
    "homing_goals",
    (*GOAL_KEY, *GOAL_SUMS),
    f" ON CONFLICT DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in GOAL_SUMS)}",
)


class _RollUps:
    """Adds to the sums of an hour and of a minute, which are in the same row of `homing_roll_ups`.

    The row has the sums of the newest minute only. The first change in another minute moves them to
    `homing_minute_roll_ups`.
    """

    def __init__(self) -> None:
        self._statements: dict[frozenset[str], tuple[tuple[str, ...], MultiRowStatement]] = {}
        """Names of the numbers that are not 0 → those of the minute, and the statement that adds to them."""

    def run(self, tx: SqliteTransaction, totals: Mapping[tuple[str, str, str], Mapping[str, int]]) -> None:
        """Adds the numbers to the sums of each (tenant, channel, provider). A 0 may be missing.

        Hot path: called for each transaction that changes rows.
        """
        given = frozenset([name for total in totals.values() for name in total if total[name]])
        if not given:
            return
        try:
            names, statement = self._statements[given]
        except KeyError:
            names, statement = self._statements[given] = self._build(given)
        hour_at, minute_at = tx.now - tx.now % HOUR_MS, tx.now - tx.now % MINUTE_MS
        rows: list[tuple[Column, ...]] = [
            (hour_at, *key, minute_at, *[total.get(name, 0) for name in names])
            for key, total in totals.items()
        ]
        if statement.run(tx, rows) == len(rows):
            return
        # Rows with the sums of another minute are unchanged, and those that were changed have this minute.
        stale = tx.one(STALE_MINUTES, hour_at, minute_at, encode(list(totals)))
        tx.run(KEEP_MINUTES, hour_at, minute_at, stale)
        tx.run(BEGIN_MINUTES, hour_at, minute_at, stale)
        left = {tuple(key) for key in decode(stale)}
        statement.run(tx, [row for key, row in zip(totals, rows, strict=True) if key in left])

    def _build(self, given: frozenset[str]) -> tuple[tuple[str, ...], MultiRowStatement]:
        """Returns the names of the numbers in a row of the statement, and the statement."""
        hours = tuple(name for name in SUMS if name in given)
        minutes = tuple(name for name in MINUTE_SUMS if name in given)
        columns = (*hours, *map(minute_column, minutes))
        added = ", ".join(f"{name} = {name} + excluded.{name}" for name in columns)
        tail = f" ON CONFLICT DO UPDATE SET {added} WHERE minute_at = excluded.minute_at"
        statement = build_insert("homing_roll_ups", (*ROLL_UP_KEY, "minute_at", *columns), tail)
        return (*hours, *minutes), statement


def minute_column(name: str) -> str:
    """Returns the column of `homing_roll_ups` that has this sum for the newest minute alone."""
    return f"minute_{name}"


_ROLL_UPS = _RollUps()

_NEWEST_MINUTES = """homing_roll_ups AS r
  ON r.hour_at = ?1 AND r.tenant = json_extract(j.value, '$[0]')
  AND r.channel = json_extract(j.value, '$[1]') AND r.provider = json_extract(j.value, '$[2]')
  AND r.minute_at <> ?2"""

STALE_MINUTES = f"""
SELECT json_group_array(json_array(r.tenant, r.channel, r.provider))
FROM json_each(?3) AS j CROSS JOIN {_NEWEST_MINUTES}
"""  # noqa: S608

KEEP_MINUTES = f"""
INSERT INTO homing_minute_roll_ups ({", ".join((*MINUTE_KEY, *MINUTE_SUMS))})
SELECT {", ".join(f"r.{name}" for name in (*MINUTE_KEY, *map(minute_column, MINUTE_SUMS)))}
FROM json_each(?3) AS j CROSS JOIN {_NEWEST_MINUTES} WHERE r.minute_at > 0
ON CONFLICT DO UPDATE SET {", ".join(f"{name} = {name} + excluded.{name}" for name in MINUTE_SUMS)}
"""  # noqa: S608
"""Copies the sums of minutes that have ended to rows of their own.

A minute is there already if the clock was set back, or if the previous release has counted in it.
"""

BEGIN_MINUTES = f"""
INSERT INTO homing_roll_ups ({", ".join(ROLL_UP_KEY)}, minute_at)
SELECT ?1, json_extract(j.value, '$[0]'), json_extract(j.value, '$[1]'), json_extract(j.value, '$[2]'), ?2
FROM json_each(?3) AS j WHERE true
ON CONFLICT DO UPDATE SET minute_at = excluded.minute_at,
  {", ".join(f"{minute_column(name)} = 0" for name in MINUTE_SUMS)}
"""  # noqa: S608
"""The rows exist. An UPDATE would examine all rows of the hour instead of finding each by its key."""

ALL_MINUTES = f"""(
  SELECT {", ".join((*MINUTE_KEY, *MINUTE_SUMS))} FROM homing_minute_roll_ups WHERE minute_at > {{after}}
  UNION ALL
  SELECT {", ".join((*MINUTE_KEY, *map(minute_column, MINUTE_SUMS)))} FROM homing_roll_ups
  WHERE hour_at > {{after}} - {HOUR_MS} AND minute_at > {{after}})"""  # noqa: S608
"""SQL for the sums of all minutes after a time. The same minute may occur more than once."""

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
        totals: dict[tuple[str, str, str], dict[str, int]] = {}
        goals: dict[tuple[str, ...], dict[str, int]] = {}
        for (tenant, channel, provider, *_), kind in self._counts.kinds.items():
            if not kind.sums:
                continue
            total = totals.setdefault((tenant, channel.value, provider), {})
            for name, number in kind.sums.items():
                total[name] = total.get(name, 0) + number * kind.number
            if kind.attempt_ms:
                total["attempt_ms"] = total.get("attempt_ms", 0) + kind.attempt_ms
            if kind.goal is not None:
                mode, met, bucket = kind.goal
                late = LATENESS_SUMS[bucket]
                total[late] = total.get(late, 0) + kind.number
                goal, result = goals.setdefault((tenant, mode), {}), "met" if met else "missed"
                goal[result] = goal.get(result, 0) + kind.number
        _ROLL_UPS.run(self._tx, totals)
        if goals:
            hour_at = self._tx.now - self._tx.now % HOUR_MS
            numbers: list[tuple[Column, ...]] = [
                (hour_at, *key, *[goal.get(name, 0) for name in GOAL_SUMS]) for key, goal in goals.items()
            ]
            _UPSERT_GOALS.run(self._tx, numbers)

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
    messages = messages_in(tx, wanted, tx.one(_MESSAGES_OF, encode(wanted)))
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
