"""Leases: writes the leases of claimed rows, takes over expired leases and extends current ones."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from homing.core.lifecycle.claims import Claim, ClaimBatch, Lease
from homing.core.lifecycle.rows import Row, claim_of, extend, lease, reclaim
from homing.stores.common.clock_guard import reclaim_bounds
from homing.stores.common.codec import decode_message
from homing.stores.common.leased_rows import SeqAndRow
from homing.stores.postgres.change_recorder import PostgresChangeRecorder
from homing.stores.postgres.columns import LEASED, STARTED_LEASE, STATE, leased_columns
from homing.stores.postgres.rows import leased_by_id, queue_of, rows_from, selected
from homing.stores.postgres.statements import BatchStatement, PostgresTransaction

_STATE_COLUMNS = ", ".join(f"l.{name}" for name in STATE)
# The columns come from the locked rows. A join with `live` would return them as they were before the lock.
EXPIRED_ROWS = f"""
WITH lost AS (
  SELECT l.lease_until AS at, {_STATE_COLUMNS} FROM homing.live AS l
  WHERE l.lease_until <= $4::bigint AND l.lease_until > $3::bigint
  ORDER BY l.lease_until LIMIT $2 FOR UPDATE SKIP LOCKED),
ahead AS (
  SELECT l.lease_until AS at, {_STATE_COLUMNS} FROM homing.live AS l
  WHERE l.lease_until > $5::bigint AND l.updated_at > $6::bigint
  ORDER BY l.lease_until LIMIT $2 FOR UPDATE SKIP LOCKED),
late AS (
  SELECT l.deadline_at AS at, {_STATE_COLUMNS} FROM homing.live AS l
  WHERE l.deadline_at <= $1::bigint AND l.deadline_at > $3::bigint AND NOT l.unhurried
  ORDER BY l.deadline_at LIMIT $2 FOR UPDATE SKIP LOCKED)
SELECT {selected("m", "s", "q")}, m.message
FROM (
  SELECT * FROM lost UNION ALL SELECT * FROM ahead UNION ALL SELECT * FROM late
  ORDER BY at, seq LIMIT $2) AS s
JOIN homing.messages AS m ON m.seq = s.seq
JOIN homing.queues AS q ON q.id = s.queue
ORDER BY s.at, s.seq
"""  # noqa: S608
_LEASE_VALUES = {**STARTED_LEASE, **{name: f"u.{name}" for name in LEASED if name != "seq"}}
LEASE = BatchStatement(
    f"""
UPDATE homing.live AS s SET {", ".join(f"{name} = {value}" for name, value in _LEASE_VALUES.items())},
  queue = {{queue_of_row}}
FROM {{rows}} WHERE s.seq = u.seq
""",  # noqa: S608
    LEASED,
)
_EXTENDED = {
    "seq": "bigint",
    "lease_until": "bigint",
    "provider": "text",
    "queue": "integer",
    "failures_here": "integer",
    "started_at": "bigint",
    "updated_at": "bigint",
}
EXTEND = BatchStatement(
    f"""
UPDATE homing.live AS s SET {", ".join(f"{name} = u.{name}" for name in _EXTENDED if name != "seq")}
FROM {{rows}} WHERE s.seq = u.seq
""",  # noqa: S608
    _EXTENDED,
)


_in_common = attrgetter("tenant", "channel", "provider", "status", "attempts", "token", "changes")
"""Waiting rows with equal values of these fields get the same `LEASED` values, and are counted together."""


async def lease_rows(tx: PostgresTransaction, rows: Sequence[SeqAndRow], worker: str, lease_ms: int) -> None:
    """Leases waiting rows and writes the leases."""
    alike: dict[tuple[object, ...], list[SeqAndRow]] = {}
    for found in rows:
        alike.setdefault(_in_common(found[1]), []).append(found)
    recorder, written = PostgresChangeRecorder(tx), list[tuple[Any, ...]]()
    for group in alike.values():
        changes = [(seq, lease(row, worker, lease_ms, tx.now)) for seq, row in group]
        recorder.record_all(changes[:1], number=len(group))
        shared = leased_columns(group[0][1])
        written += [(seq, *shared) for seq, _ in group]
    await recorder.write((LEASE, written))


async def reclaim_expired(
    tx: PostgresTransaction, worker: str, limit: int, lease_ms: int, since: int, leased: list[SeqAndRow]
) -> ClaimBatch:
    """Leases rows whose lease has expired and waiting rows whose deadline has passed, the earliest first.

    Considers only leases and deadlines that ended after `since`. `leased` is filled with the leased rows.
    """
    records = await tx.rows(EXPIRED_ROWS, tx.now, max(0, limit), since, *reclaim_bounds(tx.now, tx.settling))
    if not records:
        return ClaimBatch(claims=(), now=tx.now, next_due_at=None)
    recorder, claims, written = PostgresChangeRecorder(tx), list[Claim](), list[tuple[Any, ...]]()
    rows = rows_from(records)
    for (seq, row), record in zip(rows, records, strict=True):
        due_at = row.started_at if row.due_at is None else row.due_at
        recorder.record(seq, reclaim(row, worker, lease_ms, tx.now))
        claims.append(claim_of(row, decode_message(record[-1]), due_at))
        written.append((seq, *leased_columns(row)))
    await recorder.write((LEASE, written))
    leased[:] = rows
    return ClaimBatch(claims=tuple(claims), now=tx.now, next_due_at=None)


async def extend_leases(tx: PostgresTransaction, leases: Sequence[Lease], lease_ms: int) -> frozenset[str]:
    """Extends the leases whose token still matches and returns their ids."""
    found = await leased_by_id(tx, [lease.id for lease in leases])
    held: dict[str, tuple[int, Row]] = {}
    for one in leases:
        if one.id not in found:
            continue
        seq, row = found[one.id]
        if extend(row, one, lease_ms, tx.now):
            held[one.id] = (seq, row)
    if held:
        queues = await tx.queues.find(tx, {queue_of(row) for _, row in held.values()})
        rows = [
            (
                seq,
                row.lease_until,
                row.provider,
                queues[queue_of(row)],
                row.failures_here,
                row.started_at,
                row.updated_at,
            )
            for seq, row in held.values()
        ]
        await EXTEND.run(tx, rows)
    return frozenset(held)
