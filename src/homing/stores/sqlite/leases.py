"""Leases: writes the leases of claimed rows, takes over expired leases and extends current ones."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from msgspec import json

from homing.core.lifecycle.claims import Claim, ClaimBatch, ClaimRequest, Lease
from homing.core.lifecycle.rows import claim_of, claims_of, extend, lease, reclaim
from homing.core.notifications import Message
from homing.core.routing.fair_share import DueRow
from homing.stores.common.clock_guard import reclaim_bounds
from homing.stores.common.codec import (
    Column,
    decode_rows_without_seq,
    encode,
)
from homing.stores.common.leased_rows import SeqAndRow
from homing.stores.common.row_columns import LAST_CLAIMED, LAST_RECLAIMED
from homing.stores.sqlite.change_recorder import SqliteChangeRecorder, queue_of
from homing.stores.sqlite.columns import LEASED_FIELDS, leased_columns
from homing.stores.sqlite.rows import messages_in, rows_by_id
from homing.stores.sqlite.statements import (
    NotificationUpdate,
    SqliteTransaction,
    json_row_without_seq,
)


def _rows_and_messages(last: str) -> str:
    return f"""
SELECT
  json_group_array({json_row_without_seq("n", last)}),
  '[' || coalesce(group_concat(m.message), '') || ']'
FROM json_each(?1) AS j
CROSS JOIN homing_notifications AS n ON n.seq = j.value
CROSS JOIN homing_messages AS m ON m.seq = n.seq
"""  # noqa: S608


WAITING_ROWS = _rows_and_messages(LAST_CLAIMED)

EXPIRED_ROWS = _rows_and_messages(LAST_RECLAIMED)

EXPIRED_SEQS = """
SELECT json_group_array(seq) FROM (
  SELECT * FROM (
    SELECT lease_until AS at, id, seq FROM homing_notifications INDEXED BY homing_lease
    WHERE lease_until <= ?3 ORDER BY lease_until LIMIT ?2)
  UNION ALL
  SELECT * FROM (
    SELECT lease_until AS at, id, seq FROM homing_notifications INDEXED BY homing_lease
    WHERE lease_until > ?4 AND updated_at > ?5 ORDER BY lease_until LIMIT ?2)
  UNION ALL
  SELECT * FROM (
    SELECT deadline_at AS at, id, seq FROM homing_notifications INDEXED BY homing_deadline
    WHERE deadline_at <= ?1 AND mode <> 'synchronous' ORDER BY deadline_at LIMIT ?2)
  ORDER BY at, id LIMIT ?2)
"""

UPDATE_LEASED = NotificationUpdate(LEASED_FIELDS)

_EXTENDED_FIELDS = ("lease_until", "provider", "outlet", "failures_here", "started_at", "updated_at")

_extended_columns = attrgetter(*_EXTENDED_FIELDS)

_UPDATE_EXTENDED = NotificationUpdate(_EXTENDED_FIELDS)

_in_common = attrgetter("tenant", "channel", "provider", "status", "attempts", "token", "changes")
"""Waiting rows with equal values of these fields get the same `LEASED_FIELDS` and are counted together."""


_decode_seqs = json.Decoder(list[int]).decode


def lease_rows(
    tx: SqliteTransaction, due: Sequence[DueRow], request: ClaimRequest, leased: list[SeqAndRow]
) -> tuple[Claim, ...]:
    """Leases the chosen due rows and writes the leases. `leased` is filled with the leased rows."""
    if not due:
        return ()
    rows, messages = _read(tx, WAITING_ROWS, [seq for _, _, seq in due])
    alike: dict[tuple[object, ...], list[SeqAndRow]] = {}
    for found in rows:
        alike.setdefault(_in_common(found[1]), []).append(found)
    recorder = SqliteChangeRecorder(tx)  # the claim itself updates the queues that the rows leave
    written: dict[tuple[Column, ...], list[int]] = {}
    for group in alike.values():
        changes = [(seq, lease(row, request.worker, request.lease_ms, tx.now)) for seq, row in group]
        recorder.record_all(changes[:1], number=len(group))
        written.setdefault(leased_columns(group[0][1]), []).extend([seq for seq, _ in group])
    UPDATE_LEASED.run_grouped(tx, written)
    recorder.write()
    leased[:] = rows
    return claims_of([row for _, row in rows], messages, [due_at for due_at, _, _ in due])


def reclaim_expired(
    tx: SqliteTransaction, worker: str, limit: int, lease_ms: int, leased: list[SeqAndRow]
) -> ClaimBatch:
    """Leases rows whose lease has expired and waiting rows whose deadline has passed, the earliest first.

    `leased` is filled with the leased rows.
    """
    expired, after, leased_after = reclaim_bounds(tx.now, tx.settling)
    seqs = _decode_seqs(tx.one(EXPIRED_SEQS, tx.now, max(0, limit), expired, after, leased_after))
    if not seqs:
        return ClaimBatch(claims=(), now=tx.now, next_due_at=None)
    recorder, claims, written = SqliteChangeRecorder(tx), [], {}
    rows, messages = _read(tx, EXPIRED_ROWS, seqs)
    for (seq, row), message in zip(rows, messages, strict=True):
        was = queue_of(row)
        due_at = row.started_at if row.due_at is None else row.due_at
        recorder.record(seq, reclaim(row, worker, lease_ms, tx.now), was)
        claims.append(claim_of(row, message, due_at))
        written[seq] = leased_columns(row)
    UPDATE_LEASED.run(tx, written)
    recorder.write()
    leased[:] = rows
    return ClaimBatch(claims=tuple(claims), now=tx.now, next_due_at=None)


def extend_leases(tx: SqliteTransaction, leases: Sequence[Lease], lease_ms: int) -> frozenset[str]:
    """Extends the leases whose token still matches and returns their ids."""
    found = rows_by_id(tx, [lease.id for lease in leases])
    held: set[str] = set()
    written: dict[int, tuple[Column, ...]] = {}
    for one in leases:
        if one.id not in found:
            continue
        seq, row = found[one.id]
        if extend(row, one, lease_ms, tx.now):
            held.add(one.id)
            written[seq] = _extended_columns(row)
    _UPDATE_EXTENDED.run(tx, written)
    return frozenset(held)


def _read(tx: SqliteTransaction, sql: str, seqs: Sequence[int]) -> tuple[list[SeqAndRow], list[Message]]:
    rows, messages = tx.cursor.execute(sql, (encode(seqs),)).fetchone()
    return list(zip(seqs, decode_rows_without_seq(rows), strict=True)), messages_in(tx, seqs, messages)
