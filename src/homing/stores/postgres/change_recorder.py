"""Records the effects of changes to rows: counts, sums by time, attempts, causes and events.

The records of one call are collected and written together, in the transaction that changes the rows. Counts
and sums are first appended to the ledger and later folded into the tallies and roll-ups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from copy import copy
from typing import Any

import msgspec
from msgspec.structs import replace

from homing.core.lifecycle.events import NOTIFICATION_FAILED, Event
from homing.core.lifecycle.outcomes import AttemptRecord, RegistryPut
from homing.core.lifecycle.row_events import events_of, has_events
from homing.core.lifecycle.rows import Change
from homing.core.notifications import Message, Status
from homing.stores.common.change_effects import (
    EMPTY_MESSAGE,
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
    CAUSE_FIELDS,
    StoredAttempt,
    cause_columns,
    decode_message,
)
from homing.stores.common.sinks import SINK_EVENT_FIELDS, sink_event_rows
from homing.stores.postgres.columns import clean
from homing.stores.postgres.statements import (
    BatchWrite,
    PostgresTransaction,
    Record,
    build_insert,
    run_in_one_round_trip,
)

_LEDGER = {
    "hour_at": "bigint",
    "tenant": "text",
    "channel": "text",
    "provider": "text",
    "before": "text",
    "attempts_before": "integer",
    "after": "text",
    "attempts_after": "integer",
    "number": "integer",
    **dict.fromkeys(SUMS, "integer"),
    "mode": "text",
    **dict.fromkeys(GOAL_SUMS, "integer"),
    "minute_at": "bigint",
    "late": "integer",
    "attempt_ms": "bigint",
}

ATTEMPTS = {
    "seq": "bigint",
    "change": "integer",
    "number": "integer",
    "provider": "text",
    "outcome": "text",
    "started_at": "bigint",
    "latency_ms": "bigint",
    "worker": "text",
    "error_code": "text",
    "error": "text",
    "provider_message_id": "text",
}

_CAUSES = {"seq": "bigint", "change": "integer", **dict.fromkeys(CAUSE_FIELDS, "text"), "at": "bigint"}

_EVENTS = {**dict.fromkeys(SINK_EVENT_FIELDS, "text"), "at": "bigint"}

_PUTS = {
    "tenant": "text",
    "kind": "text",
    "key": "text",
    "value": "text",
    "version": "integer",
    "updated_at": "bigint",
    "updated_by": "text",
}


WRITE_LEDGER = build_insert("ledger", _LEDGER)

WRITE_ATTEMPTS = build_insert("attempts", ATTEMPTS)

_WRITE_CAUSES = build_insert("causes", _CAUSES)

_WRITE_EVENTS = build_insert("sink_events", _EVENTS, "ON CONFLICT (sink, id) DO NOTHING")

_WRITE_PUTS = build_insert(
    "registry AS r",
    _PUTS,
    "ON CONFLICT (tenant, kind, key) DO UPDATE SET value = (r.value::jsonb || excluded.value::jsonb)::text,"
    " version = r.version + excluded.version, updated_at = excluded.updated_at,"
    " updated_by = excluded.updated_by",
)

_ATTEMPTS_OF = f"""
SELECT a.seq, {", ".join(f"a.{f}" for f in ATTEMPT_FIELDS)} FROM homing.attempts AS a
WHERE a.seq = ANY($1::bigint[]) ORDER BY a.seq, a.change
"""  # noqa: S608

_MESSAGES_OF = "SELECT seq, message FROM homing.messages WHERE seq = ANY($1::bigint[])"


_KEY = ", ".join(ROLL_UP_KEY)

_SUMMED = ", ".join(f"sum({name}) AS {name}" for name in SUMS)


def _added(sums: Iterable[str]) -> str:
    return ", ".join(f"{name} = r.{name} + excluded.{name}" for name in sums)


_MINUTE = ", ".join(MINUTE_KEY)

LATENESS_OF_LEDGER = ", ".join(
    f"CASE WHEN late = {bucket} THEN met + missed ELSE 0 END AS {name}"
    for bucket, name in enumerate(LATENESS_SUMS)
)
"""SQL for the sums by lateness of one row of the ledger."""

_MINUTE_SUMMED = ", ".join(
    (
        *(f"sum({name})" for name in (*SUMS, "attempt_ms")),
        *(
            f"coalesce(sum(met + missed) FILTER (WHERE late = {bucket}), 0)"
            for bucket in range(len(LATENESS_SUMS))
        ),
    )
)

_FOLD = f"""
WITH taken AS (
  DELETE FROM homing.ledger WHERE ctid = ANY(ARRAY(SELECT ctid FROM homing.ledger LIMIT $1)) RETURNING *),
cells AS (
  INSERT INTO homing.tallies AS t (tenant, status, attempts, count, purged)
  SELECT tenant, status, attempts, sum(count), sum(purged) FROM (
    SELECT tenant, before AS status, attempts_before AS attempts, -number AS count, purged
    FROM taken WHERE before IS NOT NULL
    UNION ALL
    SELECT tenant, after, attempts_after, number, 0 FROM taken WHERE after IS NOT NULL) AS moved
  GROUP BY tenant, status, attempts
  ON CONFLICT (tenant, status, attempts) DO UPDATE
  SET count = t.count + excluded.count, purged = t.purged + excluded.purged),
sums AS (
  INSERT INTO homing.roll_ups AS r ({_KEY}, {", ".join(SUMS)})
  SELECT {_KEY}, {_SUMMED} FROM taken WHERE {" + ".join(SUMS)} > 0 GROUP BY {_KEY}
  ON CONFLICT ({_KEY}) DO UPDATE SET {_added(SUMS)}),
minutes AS (
  INSERT INTO homing.minute_roll_ups AS r ({_MINUTE}, {", ".join(MINUTE_SUMS)})
  SELECT {_MINUTE}, {_MINUTE_SUMMED} FROM taken
  WHERE minute_at IS NOT NULL AND {" + ".join(SUMS)} > 0 GROUP BY {_MINUTE}
  ON CONFLICT ({_MINUTE}) DO UPDATE SET {_added(MINUTE_SUMS)}),
goals AS (
  INSERT INTO homing.goals AS g (hour_at, tenant, mode, met, missed)
  SELECT hour_at, tenant, mode, sum(met), sum(missed) FROM taken WHERE met + missed > 0
  GROUP BY hour_at, tenant, mode
  ON CONFLICT (hour_at, tenant, mode) DO UPDATE
  SET met = g.met + excluded.met, missed = g.missed + excluded.missed)
SELECT count(*) FROM taken
"""  # noqa: S608


class PostgresChangeRecorder:
    """Collects the changes of one call. Call `write` last, after or together with the writing of the rows."""

    def __init__(self, tx: PostgresTransaction) -> None:
        self._tx = tx
        self._counts = ChangeCounts()
        self._attempts: list[tuple[Any, ...]] = []
        self._causes: list[tuple[Any, ...]] = []
        self._with_events: list[tuple[int, Change]] = []
        """Changes that publish events, each as (seq, change)."""

    def record(self, seq: int, change: Change, number: int = 1) -> None:
        """Records one change. Must be called before the same row is changed again.

        The change stands for `number` changes with the same effect on the counts. If `number` is not 1, the
        changes must have no attempt, cause or event.
        """
        self.record_all(((seq, change),), number)

    def record_all(self, changes: Iterable[tuple[int, Change]], number: int = 1) -> None:
        """Records changes of different rows. Each stands for `number` changes, see `record`."""
        count, attempts, subscribed = self._counts.add, self._attempts, self._tx.subscribed
        for seq, change in changes:
            count(change, number)
            row, attempt, cause = change.row, change.attempt, change.cause
            if attempt is not None:
                attempts.append(_attempt_columns(seq, row.changes, attempt))
            if cause is not None:
                self._causes.append((seq, row.changes, *map(_clean, cause_columns(cause))))
            if subscribed and has_events(change, subscribed):
                self._with_events.append((seq, replace(change, row=copy(row))))

    async def write(self, *others: BatchWrite, last: str = "") -> Sequence[Record]:
        """Writes everything that was recorded, together with `others`, in one round trip.

        Returns the result of the query `last`.
        """
        tx = self._tx
        events = await self._events() if self._with_events else []
        writes = [
            *others,
            (WRITE_ATTEMPTS, self._attempts),
            (_WRITE_CAUSES, self._causes),
            (WRITE_LEDGER, list(self.ledger())),
            (_WRITE_EVENTS, list(sink_event_rows(tx.sinks, events))),
        ]
        return await run_in_one_round_trip(tx, writes, last)

    def ledger(self) -> Iterable[tuple[Any, ...]]:
        """Yields the rows for `WRITE_LEDGER`."""
        now = self._tx.now
        hour_at, minute_at = now - now % HOUR_MS, now - now % MINUTE_MS
        for signature, kind in self._counts.kinds.items():
            tenant, channel, provider, before, attempts_before, after, attempts_after, _ = signature
            mode, met, late = kind.goal or ("", None, None)
            yield (
                hour_at,
                tenant,
                channel.value,
                provider,
                before.value if before is not None else None,
                attempts_before,
                after.value,
                attempts_after,
                kind.number,
                *(kind.sums.get(name, 0) * kind.number for name in SUMS),
                mode,
                kind.number if met else 0,
                kind.number if met is False else 0,
                minute_at,
                late,
                kind.attempt_ms,
            )

    async def _events(self) -> list[Event]:
        tx, details = self._tx, dict[int, tuple[Message, list[AttemptRecord]]]()
        if NOTIFICATION_FAILED in tx.subscribed:
            failed = {seq for seq, change in self._with_events if change.row.status is Status.FAILED}
            if failed:
                attempts, messages = await attempts_of(tx, failed), await messages_of(tx, failed)
                details = {seq: (messages[seq], attempts[seq]) for seq in failed}
        events: list[Event] = []
        for seq, change in self._with_events:
            message, made = details.get(seq, (EMPTY_MESSAGE, []))
            if change.attempt is not None:
                made.append(change.attempt)
            events += events_of(change, tx.subscribed, message, made)
        return events


async def write_events(tx: PostgresTransaction, events: Iterable[Event]) -> None:
    """Writes events to the outbox of each sink that gets them.

    An event whose id is already there is a repetition and is skipped.
    """
    rows = list(sink_event_rows(tx.sinks, events))
    if rows:
        await _WRITE_EVENTS.run(tx, rows)


async def write_registry_puts(
    tx: PostgresTransaction, puts: Iterable[RegistryPut], who: str = "homing"
) -> None:
    """Merges the registry entries of settlements or receipts into the stored ones. New fields win."""
    rows = registry_rows(puts, tx.now, who)
    if rows:
        await _WRITE_PUTS.run(tx, rows)


async def attempts_of(tx: PostgresTransaction, seqs: Collection[int]) -> dict[int, list[AttemptRecord]]:
    """Returns the attempts of each row, the oldest first, by seq."""
    found: dict[int, list[AttemptRecord]] = {seq: [] for seq in seqs}
    for seq, *fields in await tx.rows(_ATTEMPTS_OF, list(seqs)):
        found[seq].append(msgspec.convert(fields, StoredAttempt))
    return found


async def messages_of(tx: PostgresTransaction, seqs: Collection[int]) -> dict[int, Message]:
    """Returns the messages of these rows, by seq."""
    return {seq: decode_message(text) for seq, text in await tx.rows(_MESSAGES_OF, list(seqs))}


async def fold_ledger(tx: PostgresTransaction, limit: int = 50_000) -> int:
    """Moves at most `limit` ledger rows into the tallies and roll-ups and returns their number.

    Returns 0 without waiting if another process is folding.
    """
    if not await tx.one(
        "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))", f"homing fold {tx.schema}"
    ):
        return 0
    folded: int = await tx.one(_FOLD, limit)
    return folded


def _attempt_columns(seq: int, change: int, attempt: AttemptRecord) -> tuple[Any, ...]:
    """Returns the values of `ATTEMPTS`."""
    return (
        seq,
        change,
        attempt.number,
        attempt.provider,
        attempt.outcome._value_,
        attempt.started_at,
        attempt.latency_ms,
        attempt.worker,
        attempt.error_code and clean(attempt.error_code),
        attempt.error and clean(attempt.error),
        attempt.provider_message_id and clean(attempt.provider_message_id),
    )


def _clean(value: Any) -> Any:
    return clean(value) if isinstance(value, str) else value
