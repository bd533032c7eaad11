"""Claims due rows: finds the queues with due rows, shares the capacity fairly and leases the chosen rows."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import json

from homing.core.lifecycle.claims import ClaimBatch, ClaimRequest
from homing.core.routing.fair_share import DueQueue, DueRow, FairShare, OutletCapacity
from homing.stores.common.codec import encode
from homing.stores.common.leased_rows import SeqAndRow
from homing.stores.sqlite.change_recorder import NEXT_DUE_SUBQUERY
from homing.stores.sqlite.leases import lease_rows
from homing.stores.sqlite.statements import MultiRowStatement, SqliteTransaction, build_insert

_QUEUES_PER_LANE = 2000
"""Maximum number of due queues that one claim considers per lane.

Queues of the least recently served tenants go first.
"""


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


NEXT_DUE_AT = """
SELECT min((
  SELECT min(q.next_due_at) FROM homing_queues AS q INDEXED BY homing_queue_due
  WHERE q.lane = json_extract(lanes.value, '$[0]') AND q.next_due_at > ?2
    AND q.outlet NOT IN (SELECT value FROM json_each(?3))
    AND substr(q.outlet, 1, instr(q.outlet, '@') - 1) NOT IN (SELECT value FROM json_each(?3))
    AND q.tenant NOT IN (SELECT value FROM json_each(lanes.value, '$[1]'))))
FROM json_each(?1) AS lanes
"""

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


_decode_queues = json.Decoder(tuple[int, list[tuple[str, list[tuple[str, str, int, int]]]]]).decode

_decode_due = json.Decoder(list[list[DueRow]]).decode


def claim(tx: SqliteTransaction, request: ClaimRequest, leased: list[SeqAndRow]) -> ClaimBatch:
    """Leases due rows within the capacity in the request. `leased` is filled with the leased rows."""
    outlets = OutletCapacity(request.outlet_capacity, request.outlet_slots, request.limit)
    dealt, shares = _choose_rows(tx, request, outlets)
    claims = lease_rows(tx, dealt, request, leased)
    _write_turns(tx, shares)
    return ClaimBatch(claims=claims, now=tx.now, next_due_at=_next_due_at(tx, request, outlets))


def _choose_rows(
    tx: SqliteTransaction, request: ClaimRequest, outlets: OutletCapacity
) -> tuple[list[DueRow], list[FairShare]]:
    lanes = [lane for lane, capacity in request.lanes.items() if capacity.slots > 0]
    found = tx.one(DUE_QUEUES, encode(lanes), tx.now, encode(outlets.closed), _QUEUES_PER_LANE)
    serial, due = _decode_queues(found)
    dealt: list[DueRow] = []
    shares: list[FairShare] = []
    for lane, places in due:
        if not places:
            continue
        queues = [DueQueue(lane, tenant, outlet, served) for tenant, outlet, _, served in places]
        turns = {tenant: turn for tenant, _, turn, _ in places}
        share = FairShare(request.lanes[lane], outlets, queues, turns, serial)
        dealt += _run_share(tx, share)
        shares.append(share)
        serial = share.serial
    return dealt, shares


def _run_share(tx: SqliteTransaction, share: FairShare) -> list[DueRow]:
    fetches = share.run()
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


def _write_turns(tx: SqliteTransaction, shares: Sequence[FairShare]) -> None:
    """Writes the last turn of each served tenant and queue, and the next due time of those queues."""
    looked = [queue for share in shares for queue in share.looked()]
    if looked:
        UPDATE_FETCHED_QUEUES.run(
            tx, [(queue.lane, queue.tenant, queue.outlet, queue.served) for queue in looked]
        )
    lanes = {share: queue.lane for share in shares for queue in share.looked()}
    turns = [(lanes[share], tenant, served) for share in shares for tenant, served in share.served()]
    if turns:
        _UPSERT_TURNS.run(tx, turns)
        tx.run(_UPSERT_SERVED, shares[-1].serial)


def _next_due_at(tx: SqliteTransaction, request: ClaimRequest, outlets: OutletCapacity) -> int | None:
    """Returns the earliest due time after now among the queues for which the request has capacity."""
    lanes = [
        (lane, [tenant for tenant, left in capacity.tenant_capacity.items() if left <= 0])
        for lane, capacity in request.lanes.items()
        if capacity.slots > 0
    ]
    found: int | None = tx.one(NEXT_DUE_AT, encode(lanes), tx.now, encode(outlets.closed))
    return found
