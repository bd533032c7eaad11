"""Claims due rows: finds the queues with due rows, shares the capacity fairly and leases the chosen rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import json

from homing.core.lifecycle.claims import ClaimBatch, ClaimRequest
from homing.core.notifications import Mode, mode_of
from homing.core.routing.fair_share import (
    ClaimCapacity,
    DueQueue,
    DueRow,
    FairShare,
    TenantPlace,
    TenantTurns,
)
from homing.stores.common.codec import encode
from homing.stores.common.leased_rows import SeqAndRow
from homing.stores.sqlite.change_recorder import NEXT_DUE_SUBQUERY
from homing.stores.sqlite.leases import lease_rows
from homing.stores.sqlite.statements import MultiRowStatement, SqliteTransaction, build_insert

_QUEUES_PER_LANE = 2000
"""Maximum number of due queues that one claim considers per lane.

Queues of the least recently served tenants go first.
"""


_IS_OPEN = """
         AND q.outlet NOT IN (SELECT value FROM json_each(?3))
         AND substr(q.outlet, 1, instr(q.outlet || '@', '@') - 1)
           NOT IN (SELECT value FROM json_each(lanes.value, '$[1]'))
         AND substr(q.outlet, 1, instr(q.outlet || '@', '@') - 1) || '@' || q.tenant
           NOT IN (SELECT value FROM json_each(lanes.value, '$[2]'))
         AND q.tenant NOT IN (SELECT value FROM json_each(lanes.value, '$[3]'))
         AND (instr(q.outlet, '@') = 0 OR q.outlet IN (SELECT value FROM json_each(?4))
           OR substr(q.outlet, 1, instr(q.outlet, '@') - 1) || '@' || q.tenant
             NOT IN (SELECT value FROM json_each(lanes.value, '$[4]')))
         AND (?5 IS NULL OR substr(q.outlet, 1, instr(q.outlet || '@', '@') - 1)
           IN (SELECT value FROM json_each(?5)))
         AND (?6 IS NULL OR q.tenant = ?6)"""

DUE_QUEUES = f"""
SELECT json_array(
  coalesce((SELECT value FROM homing_counters WHERE name = 'served'), 0),
  (SELECT json_group_array(json_array(json_extract(lanes.value, '$[0]'), (
     SELECT json_group_array(json_array(tenant, outlet, served)) FROM (
       SELECT q.tenant, q.outlet, coalesce(t.served, 0) AS turn, q.served
       FROM homing_queues AS q INDEXED BY homing_queue_due
       LEFT JOIN homing_turns AS t ON t.lane = q.lane AND t.tenant = q.tenant
       WHERE q.lane = json_extract(lanes.value, '$[0]') AND q.next_due_at <= ?2{_IS_OPEN}
       ORDER BY turn, q.served LIMIT ?7))))
   FROM json_each(?1) AS lanes),
  (SELECT json_group_array(DISTINCT substr(q.outlet, 1, instr(q.outlet || '@', '@') - 1))
   FROM json_each(?1) AS lanes CROSS JOIN homing_queues AS q INDEXED BY homing_queue_due
   WHERE q.lane = json_extract(lanes.value, '$[0]') AND q.next_due_at <= ?2
     AND ?5 IS NOT NULL AND substr(q.outlet, 1, instr(q.outlet || '@', '@') - 1)
       NOT IN (SELECT value FROM json_each(?5))
     AND (?6 IS NULL OR q.tenant = ?6)))
"""  # noqa: S608

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


NEXT_DUE_AT = f"""
SELECT min((
  SELECT min(q.next_due_at) FROM homing_queues AS q INDEXED BY homing_queue_due
  WHERE q.lane = json_extract(lanes.value, '$[0]') AND q.next_due_at > ?2{_IS_OPEN}))
FROM json_each(?1) AS lanes
"""  # noqa: S608

CHOSEN_ROWS = """
SELECT json_group_array(json_array(due_at, id, seq, lane, tenant, outlet)) FROM (
  SELECT n.due_at, n.id, n.seq, n.lane, n.tenant, n.outlet
  FROM json_each(?1) AS j CROSS JOIN homing_notifications AS n ON n.id = j.value
  WHERE n.due_at <= ?2 AND (?3 IS NULL OR n.tenant = ?3)
  ORDER BY n.due_at, n.id)
"""

_UPDATE_LEFT_QUEUES = MultiRowStatement(
    f"UPDATE homing_queues SET next_due_at = {NEXT_DUE_SUBQUERY} FROM (VALUES ",  # noqa: S608
    3,
    ") AS q WHERE lane = q.column1 AND tenant = q.column2 AND outlet = q.column3",
)

UPDATE_FETCHED_QUEUES = MultiRowStatement(
    f"UPDATE homing_queues SET served = q.column4, next_due_at = {NEXT_DUE_SUBQUERY} FROM (VALUES ",  # noqa: S608
    4,
    ") AS q WHERE lane = q.column1 AND tenant = q.column2 AND outlet = q.column3",
)

_UPSERT_TURNS = build_insert(
    "homing_turns",
    ("lane", "tenant", "served"),
    " ON CONFLICT DO UPDATE SET served = max(served, excluded.served)",
)

_UPSERT_SERVED = """
INSERT INTO homing_counters (name, value) VALUES ('served', ?)
ON CONFLICT DO UPDATE SET value = excluded.value
"""


_decode_queues = json.Decoder(tuple[int, list[tuple[str, list[tuple[str, str, int]]]], frozenset[str]]).decode

_decode_chosen = json.Decoder(list[tuple[int, str, int, str, str, str]]).decode

_decode_due = json.Decoder(list[list[DueRow]]).decode


def claim(
    tx: SqliteTransaction,
    request: ClaimRequest,
    turns: TenantTurns,
    leased: list[SeqAndRow],
    taken: dict[TenantPlace, int],
) -> ClaimBatch:
    """Leases due rows within the capacity in the request.

    `leased` is filled with the leased rows, and `taken` with the turns that count once this is committed.
    """
    if request.ids is not None:
        return _claim_chosen(tx, request, request.ids, leased)
    capacity = ClaimCapacity(request)
    closed = {mode: _closed_parts(capacity, mode) for mode in dict.fromkeys(map(mode_of, request.lanes))}
    lanes = []
    for lane in request.lanes:
        providers, tenants, new_tenants = closed[mode_of(lane)]
        lanes.append((lane, providers, tenants, capacity.closed_lane_tenants(lane), new_tenants))
    known = capacity.known_outlets() if any(new_tenants for *_, new_tenants in lanes) else ()
    listed = encode(list(request.providers)) if request.only_listed else None
    closed_outlets = encode(capacity.closed_outlets())
    asked = (encode(lanes), tx.now, closed_outlets, encode(known), listed, request.tenant)
    serial, due, unlisted = _decode_queues(tx.one(DUE_QUEUES, *asked, _QUEUES_PER_LANE))
    queues = [
        DueQueue(lane, tenant, outlet, served) for lane, places in due for tenant, outlet, served in places
    ]
    share = FairShare(capacity, queues, turns, serial)
    claims = lease_rows(tx, _run_share(tx, share), request, leased)
    _write_turns(tx, share)
    taken.update(share.taken())
    return ClaimBatch(claims=claims, now=tx.now, next_due_at=tx.one(NEXT_DUE_AT, *asked), unlisted=unlisted)


def _claim_chosen(
    tx: SqliteTransaction, request: ClaimRequest, ids: Collection[str], leased: list[SeqAndRow]
) -> ClaimBatch:
    """Leases those of the chosen rows that are due, within the capacity in the request."""
    capacity = ClaimCapacity(request)
    due: list[DueRow] = []
    left: dict[tuple[str, str, str], None] = {}
    found = _decode_chosen(tx.one(CHOSEN_ROWS, encode(sorted(ids)), tx.now, request.tenant))
    for due_at, id, seq, lane, tenant, outlet in found:
        if capacity.take(DueQueue(lane, tenant, outlet, 0)):
            due.append((due_at, id, seq))
            left[lane, tenant, outlet] = None
    claims = lease_rows(tx, due, request, leased)
    if left:
        _UPDATE_LEFT_QUEUES.run(tx, list(left))
    return ClaimBatch(claims=claims, now=tx.now, next_due_at=None)


def _closed_parts(capacity: ClaimCapacity, mode: Mode) -> tuple[list[str], list[str], list[str]]:
    """Returns what cannot be served in the lanes of a mode: providers, and tenants as `provider@tenant`.

    The last part has the tenants that cannot be served at outlets without an answer yet.
    """
    return (
        capacity.closed_providers(mode),
        [f"{provider}@{tenant}" for provider, tenant in capacity.closed_tenants(mode)],
        [f"{provider}@{tenant}" for provider, tenant in capacity.closed_new_tenants(mode)],
    )


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


def _write_turns(tx: SqliteTransaction, share: FairShare) -> None:
    """Writes the last turn of each served tenant and queue, and the next due time of those queues."""
    looked = share.looked()
    if looked:
        UPDATE_FETCHED_QUEUES.run(
            tx, [(queue.lane, queue.tenant, queue.outlet, queue.served) for queue in looked]
        )
    if share.dealt:
        turns: dict[tuple[str, str], int] = {}
        for queue in looked:
            if queue.took:
                place = (queue.lane, queue.tenant)
                turns[place] = max(queue.served, turns.get(place, 0))
        _UPSERT_TURNS.run(tx, [(lane, tenant, served) for (lane, tenant), served in turns.items()])
        tx.run(_UPSERT_SERVED, share.serial)
