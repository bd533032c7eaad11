"""Grants, takes over and extends leases: claim, reclaim and extend."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from msgspec import json

from homing.core.lifecycle.claims import Claim, ClaimBatch, ClaimRequest, Lease
from homing.core.lifecycle.rows import claim_of, claims_of, extend, lease, reclaim
from homing.core.notifications import Message
from homing.core.routing.fair_share import DueQueue, DueRow, FairShare, OutletCapacity
from homing.stores.common.codec import (
    LEASED_FIELDS,
    Column,
    decode_messages,
    decode_rows_without_seq,
    encode,
    leased_columns,
)
from homing.stores.common.leased_rows import SeqAndRow
from homing.stores.sqlite.change_recorder import NEXT_DUE_SUBQUERY, SqliteChangeRecorder, queue_of
from homing.stores.sqlite.rows import leased_by_id
from homing.stores.sqlite.statements import (
    MultiRowStatement,
    NotificationUpdate,
    SqliteTransaction,
    build_insert,
    json_row_without_seq,
)

_QUEUES_PER_LANE = 2000
"""Limit of due queues that one claim considers per lane.

Queues of the least recently served tenants go first.
"""


LAST_CLAIMED = "holds"
"""The last of `ROW_FIELDS` that a claim and its settlement need from the stored waiting row."""

LAST_RECLAIMED = "overdue"
"""The last of `ROW_FIELDS` that a reclaim and its settlement need from the stored row."""


DUE_QUEUES = """
SELECT json_array(
  coalesce((SELECT value FROM homing_counters WHERE name = 'served'), 0),
  (SELECT json_group_array(json_array(lanes.value, (
     SELECT json_group_array(json_array(tenant, outlet, turn, served)) FROM (
       SELECT q.tenant, q.outlet, coalesce(t.served, 0) AS turn, q.served
       FROM homing_queues AS q INDEXED BY homing_queue_due
       LEFT JOIN homing_turns AS t ON t.lane = q.lane AND t.tenant = q.tenant
       WHERE q.lane = lanes.value AND q.next_due_at <= ?2
         AND q.outlet NOT IN (SELECT value FROM json_each(?3))
         AND substr(q.outlet, 1, instr(q.outlet, '@') - 1) NOT IN (SELECT value FROM json_each(?3))
       ORDER BY turn, q.served LIMIT ?4))))
   FROM json_each(?1) AS lanes))
"""

DUE_ROWS = """
SELECT json_group_array(json((
  SELECT json_group_array(json_array(due_at, id, seq)) FROM (
    SELECT n.due_at, n.id, n.seq FROM homing_notifications AS n INDEXED BY homing_due
    WHERE n.lane = json_extract(q.value, '$[0]')
      AND n.tenant = json_extract(q.value, '$[1]')
      AND n.outlet = json_extract(q.value, '$[2]')
      AND (n.due_at, n.id) > (json_extract(q.value, '$[3]'), json_extract(q.value, '$[4]'))
      AND n.due_at <= ?2
    ORDER BY n.due_at, n.id LIMIT ?3))))
FROM json_each(?1) AS q
"""


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

NEXT_DUE_AT = """
SELECT min((
  SELECT min(q.next_due_at) FROM homing_queues AS q INDEXED BY homing_queue_due
  WHERE q.lane = json_extract(lanes.value, '$[0]') AND q.next_due_at > ?2
    AND q.outlet NOT IN (SELECT value FROM json_each(?3))
    AND substr(q.outlet, 1, instr(q.outlet, '@') - 1) NOT IN (SELECT value FROM json_each(?3))
    AND q.tenant NOT IN (SELECT value FROM json_each(lanes.value, '$[1]'))))
FROM json_each(?1) AS lanes
"""

EXPIRED_SEQS = """
SELECT json_group_array(seq) FROM (
  SELECT * FROM (
    SELECT lease_until AS at, id, seq FROM homing_notifications INDEXED BY homing_lease
    WHERE lease_until <= ?1 ORDER BY lease_until LIMIT ?2)
  UNION ALL
  SELECT * FROM (
    SELECT deadline_at AS at, id, seq FROM homing_notifications INDEXED BY homing_deadline
    WHERE deadline_at <= ?1 AND mode <> 'synchronous' ORDER BY deadline_at LIMIT ?2)
  ORDER BY at, id LIMIT ?2)
"""

UPDATE_LEASED = NotificationUpdate(LEASED_FIELDS)

_UPDATE_EXTENDED = NotificationUpdate(("lease_until", "provider", "outlet", "failures_here"))

UPDATE_FETCHED_QUEUES = MultiRowStatement(
    f"UPDATE homing_queues SET served = q.column4, next_due_at = {NEXT_DUE_SUBQUERY} FROM (VALUES ",  # noqa: S608
    4,
    ") AS q WHERE lane = q.column1 AND tenant = q.column2 AND outlet = q.column3",
)

_UPSERT_TURNS = build_insert(
    "homing_turns", ("lane", "tenant", "served"), " ON CONFLICT DO UPDATE SET served = excluded.served"
)

_UPSERT_SERVED = """
INSERT INTO homing_counters (name, value) VALUES ('served', ?)
ON CONFLICT DO UPDATE SET value = excluded.value
"""


_in_common = attrgetter("tenant", "channel", "provider", "status", "attempts", "token", "changes")
"""Waiting rows with equal values of these fields get the same column values and are counted together."""


_decode_queues = json.Decoder(tuple[int, list[tuple[str, list[tuple[str, str, int, int]]]]]).decode

_decode_due = json.Decoder(list[list[DueRow]]).decode

_decode_seqs = json.Decoder(list[int]).decode


def claim(tx: SqliteTransaction, request: ClaimRequest, leased: list[SeqAndRow]) -> ClaimBatch:
    """Leases due rows within the capacity in the request. `leased` is filled with the leased rows."""
    outlets = OutletCapacity(request.outlet_room, request.outlet_slots)
    dealt, deals = _choose_rows(tx, request, outlets)
    claims = _lease(tx, dealt, request, leased)
    _write_turns(tx, deals)
    return ClaimBatch(claims=claims, now=tx.now, next_due_at=_next_due_at(tx, request, outlets))


def reclaim_expired(
    tx: SqliteTransaction, worker: str, limit: int, lease_ms: int, leased: list[SeqAndRow]
) -> ClaimBatch:
    """Leases rows whose lease has expired and waiting rows whose deadline has passed, the earliest first.

    `leased` is filled with the leased rows.
    """
    seqs = _decode_seqs(tx.one(EXPIRED_SEQS, tx.now, max(0, limit)))
    if not seqs:
        return ClaimBatch(claims=(), now=tx.now, next_due_at=None)
    book, claims, written = SqliteChangeRecorder(tx), [], {}
    rows, messages = _read(tx, EXPIRED_ROWS, seqs)
    for (seq, row), message in zip(rows, messages, strict=True):
        was = queue_of(row)
        due_at = row.started_at if row.due_at is None else row.due_at
        book.record(seq, reclaim(row, worker, lease_ms, tx.now), was)
        claims.append(claim_of(row, message, due_at))
        written[seq] = leased_columns(row)
    UPDATE_LEASED.run(tx, written)
    book.write()
    leased[:] = rows
    return ClaimBatch(claims=tuple(claims), now=tx.now, next_due_at=None)


def extend_leases(tx: SqliteTransaction, leases: Sequence[Lease], lease_ms: int) -> frozenset[str]:
    """Extends the leases whose token still matches and returns their ids."""
    found = leased_by_id(tx, [lease.id for lease in leases])
    held: set[str] = set()
    written: dict[int, tuple[Column, ...]] = {}
    for one in leases:
        if one.id not in found:
            continue
        seq, row = found[one.id]
        if extend(row, one.token, lease_ms, tx.now, one.provider, one.outlet):
            held.add(one.id)
            written[seq] = (row.lease_until, row.provider, row.outlet, row.failures_here)
    _UPDATE_EXTENDED.run(tx, written)
    return frozenset(held)


def _choose_rows(
    tx: SqliteTransaction, request: ClaimRequest, outlets: OutletCapacity
) -> tuple[list[DueRow], list[FairShare]]:
    lanes = [lane for lane, room in request.lanes.items() if room.slots > 0]
    found = tx.one(DUE_QUEUES, encode(lanes), tx.now, encode(outlets.closed), _QUEUES_PER_LANE)
    serial, due = _decode_queues(found)
    dealt: list[DueRow] = []
    deals: list[FairShare] = []
    for lane, places in due:
        if not places:
            continue
        queues = [DueQueue(lane, tenant, outlet, served) for tenant, outlet, _, served in places]
        turns = {tenant: turn for tenant, _, turn, _ in places}
        deal = FairShare(request.lanes[lane], outlets, queues, turns, serial)
        dealt += _run_deal(tx, deal)
        deals.append(deal)
        serial = deal.serial
    return dealt, deals


def _run_deal(tx: SqliteTransaction, deal: FairShare) -> list[DueRow]:
    fetches = deal.run()
    while True:
        try:
            _fetch(tx, *next(fetches))
        except StopIteration as end:
            dealt: list[DueRow] = end.value
            return dealt


def _fetch(tx: SqliteTransaction, queues: Sequence[DueQueue], limit: int) -> None:
    places = [(queue.lane, queue.tenant, queue.outlet, *queue.after[:2]) for queue in queues]
    for queue, rows in zip(queues, _decode_due(tx.one(DUE_ROWS, encode(places), tx.now, limit)), strict=True):
        queue.fill(rows, limit)


def _lease(
    tx: SqliteTransaction, dealt: Sequence[DueRow], request: ClaimRequest, leased: list[SeqAndRow]
) -> tuple[Claim, ...]:
    if not dealt:
        return ()
    rows, messages = _read(tx, WAITING_ROWS, [seq for _, _, seq in dealt])
    alike: dict[tuple[object, ...], list[SeqAndRow]] = {}
    for found in rows:
        alike.setdefault(_in_common(found[1]), []).append(found)
    book = SqliteChangeRecorder(tx)  # `_write_turns` updates the queues that the rows leave
    written: dict[tuple[Column, ...], list[int]] = {}
    for group in alike.values():
        changes = [(seq, lease(row, request.worker, request.lease_ms, tx.now)) for seq, row in group]
        book.record_all(changes[:1], number=len(group))
        written.setdefault(leased_columns(group[0][1]), []).extend([seq for seq, _ in group])
    UPDATE_LEASED.run_grouped(tx, written)
    book.write()
    leased[:] = rows
    return claims_of([row for _, row in rows], messages, [due_at for due_at, _, _ in dealt])


def _read(tx: SqliteTransaction, sql: str, seqs: Sequence[int]) -> tuple[list[SeqAndRow], list[Message]]:
    rows, messages = tx.cursor.execute(sql, (encode(seqs),)).fetchone()
    return list(zip(seqs, decode_rows_without_seq(rows), strict=True)), decode_messages(messages)


def _write_turns(tx: SqliteTransaction, deals: Sequence[FairShare]) -> None:
    """Writes the last turn of each served tenant and queue, and the next due time of those queues."""
    looked = [queue for deal in deals for queue in deal.looked()]
    if looked:
        UPDATE_FETCHED_QUEUES.run(
            tx, [(queue.lane, queue.tenant, queue.outlet, queue.served) for queue in looked]
        )
    lanes = {deal: queue.lane for deal in deals for queue in deal.looked()}
    turns = [(lanes[deal], tenant, served) for deal in deals for tenant, served in deal.served()]
    if turns:
        _UPSERT_TURNS.run(tx, turns)
        tx.run(_UPSERT_SERVED, deals[-1].serial)


def _next_due_at(tx: SqliteTransaction, request: ClaimRequest, outlets: OutletCapacity) -> int | None:
    """Returns the earliest due time after now among the queues for which the request has capacity."""
    lanes = [
        (lane, [tenant for tenant, left in room.tenant_room.items() if left <= 0])
        for lane, room in request.lanes.items()
        if room.slots > 0
    ]
    found: int | None = tx.one(NEXT_DUE_AT, encode(lanes), tx.now, encode(outlets.closed))
    return found
