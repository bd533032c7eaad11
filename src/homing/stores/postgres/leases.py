"""claim, reclaim and extend: who works on what, and until when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from homing.core.model import Claim, ClaimBatch, ClaimRequest, Lease
from homing.core.outlets import OutletRoom
from homing.core.rows import Row, claim_of, extend, lease, reclaim
from homing.stores.deal import Deal, Due, DueQueue
from homing.stores.postgres.changes import Book
from homing.stores.postgres.codec import STATE, decode_message, rows_from, selected
from homing.stores.postgres.lookout import Lookout
from homing.stores.postgres.queues import Queue
from homing.stores.postgres.rows import leased_by_id, queue_of
from homing.stores.postgres.statements import Batch, Record, Tx

_QUEUES_PER_LANE = 2000
"""Due queues that one claim looks at in a lane, those of the tenants served longest ago first."""

_FIRST_AFTER_NOW = """(
    SELECT l.due_at FROM homing.live AS l WHERE l.queue = w.queue AND l.due_at > {now}
    ORDER BY l.due_at LIMIT 1)"""
SWEEP = f"""
WITH RECURSIVE w(queue, due_at) AS (
  (SELECT queue, due_at FROM homing.live WHERE due_at IS NOT NULL ORDER BY queue, due_at LIMIT 1)
  UNION ALL
  SELECT n.queue, n.due_at FROM w CROSS JOIN LATERAL (
    SELECT l.queue, l.due_at FROM homing.live AS l WHERE l.due_at IS NOT NULL AND l.queue > w.queue
    ORDER BY l.queue, l.due_at LIMIT 1) AS n)
SELECT w.queue, w.due_at, {_FIRST_AFTER_NOW.format(now="$1::bigint")}, coalesce(t.served, 0)
FROM w LEFT JOIN homing.turns AS t ON t.queue = w.queue
"""  # noqa: S608
LOOK = f"""
SELECT w.queue, (
    SELECT l.due_at FROM homing.live AS l WHERE l.queue = w.queue AND l.due_at >= w.mark
    ORDER BY l.due_at LIMIT 1),
  {_FIRST_AFTER_NOW.format(now="$3::bigint")}, coalesce(t.served, 0)
FROM unnest($1::integer[], $2::bigint[]) AS w(queue, mark)
LEFT JOIN homing.turns AS t ON t.queue = w.queue
"""  # noqa: S608
_STATE_COLUMNS = ", ".join(f"l.{name}" for name in STATE)
DUE_ROWS = f"""
SELECT {selected("m", "s", "q")}, m.message, w.place
FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS w(queue, due_at, seq, place)
CROSS JOIN LATERAL (
  SELECT {_STATE_COLUMNS} FROM homing.live AS l
  WHERE l.queue = w.queue AND (l.due_at, l.seq) > (w.due_at, w.seq) AND l.due_at <= $4::bigint
  ORDER BY l.due_at, l.seq LIMIT $5
  FOR UPDATE SKIP LOCKED) AS s
JOIN homing.messages AS m ON m.seq = s.seq
JOIN homing.queues AS q ON q.id = w.queue
"""  # noqa: S608
# The columns come from the locked rows themselves: joined, `live` would be read as it was before the lock.
PASSED = f"""
WITH lost AS (
  SELECT l.lease_until AS at, {_STATE_COLUMNS} FROM homing.live AS l
  WHERE l.lease_until <= $1::bigint AND l.lease_until > $3::bigint
  ORDER BY l.lease_until LIMIT $2 FOR UPDATE SKIP LOCKED),
late AS (
  SELECT l.deadline_at AS at, {_STATE_COLUMNS} FROM homing.live AS l
  WHERE l.deadline_at <= $1::bigint AND l.deadline_at > $3::bigint AND NOT l.unhurried
  ORDER BY l.deadline_at LIMIT $2 FOR UPDATE SKIP LOCKED)
SELECT {selected("m", "s", "q")}, m.message
FROM (SELECT * FROM lost UNION ALL SELECT * FROM late ORDER BY at, seq LIMIT $2) AS s
JOIN homing.messages AS m ON m.seq = s.seq
JOIN homing.queues AS q ON q.id = s.queue
ORDER BY s.at, s.seq
"""  # noqa: S608
_LEASED = {
    "seq": "bigint",
    "attempts": "integer",
    "token": "integer",
    "changes": "integer",
    "started_at": "bigint",
    "overdue": "boolean",
    "worker": "text",
}
LEASE = Batch(
    f"""
UPDATE homing.live AS s SET status = 'sending', due_at = NULL, deadline_at = NULL,
  updated_at = $8::bigint, lease_until = $9::bigint,
  {", ".join(f"{name} = u.{name}" for name in _LEASED if name != "seq")}
FROM {{rows}} WHERE s.seq = u.seq
""",  # noqa: S608
    _LEASED,
)
_EXTENDED = {
    "seq": "bigint",
    "lease_until": "bigint",
    "provider": "text",
    "queue": "integer",
    "failures_here": "integer",
}
EXTEND = Batch(
    f"""
UPDATE homing.live AS s SET {", ".join(f"{name} = u.{name}" for name in _EXTENDED if name != "seq")}
FROM {{rows}} WHERE s.seq = u.seq
""",  # noqa: S608
    _EXTENDED,
)
# Whose turn it is matters little enough that nobody waits for it: who is just being served by another worker
# gets that worker's time.
TURNS = """
WITH u AS (SELECT * FROM unnest($1::integer[], $2::bigint[]) AS u(queue, served)),
free AS (
  SELECT t.queue FROM homing.turns AS t WHERE t.queue = ANY($1::integer[]) ORDER BY t.queue
  FOR UPDATE SKIP LOCKED),
served AS (
  UPDATE homing.turns AS t SET served = u.served FROM u JOIN free ON free.queue = u.queue
  WHERE t.queue = u.queue)
INSERT INTO homing.turns (queue, served)
SELECT u.queue, u.served FROM u WHERE NOT EXISTS (SELECT 1 FROM homing.turns AS t WHERE t.queue = u.queue)
ORDER BY u.queue
ON CONFLICT (queue) DO NOTHING
"""


class _Place(Struct):
    """A queue with waiting rows."""

    queue: int
    first_at: int | None
    next_at: int | None
    """The first due time after now."""
    served: int


class _Claiming:
    """One claim: what is due where, who gets the room, and what was taken."""

    def __init__(self, tx: Tx, request: ClaimRequest, lookout: Lookout) -> None:
        self.tx = tx
        self.request = request
        self.lookout = lookout
        self.outlets = OutletRoom(request.outlet_room, request.outlet_slots)
        self.fetched: dict[int, Record] = {}
        self.served: dict[int, int] = {}

    async def run(self) -> ClaimBatch:
        tx = self.tx
        places = await self._places()
        names = await tx.queues.names(tx, [place.queue for place in places])
        dealt = await self._deal(places, names)
        claims = await self._lease(dealt)
        if self.served:
            await tx.rows(TURNS, list(self.served), list(self.served.values()))
        return ClaimBatch(claims=claims, now=tx.now, next_due_at=self._next_due_at(places, names))

    async def _places(self) -> list[_Place]:
        """Where rows wait, by a look at everything or only where some were known to be."""
        tx, lookout = self.tx, self.lookout
        if lookout.pace.due():
            with lookout.pace.sweep():
                found = [_Place(*record) for record in await tx.rows(SWEEP, tx.now)]
            lookout.swept({place.queue: place.first_at for place in found if place.first_at is not None})
            return found
        known = lookout.begin(tx.now)
        found = [_Place(queue, at, at, 0) for queue, at in lookout.later(tx.now).items()]
        if known:
            for record in await tx.rows(LOOK, list(known), list(known.values()), tx.now):
                place = _Place(*record)
                lookout.mark(place.queue, place.first_at)
                found.append(place)
        return found

    async def _deal(self, places: Sequence[_Place], names: dict[int, Queue]) -> list[Due]:
        lanes: dict[str, list[_Place]] = {}
        for place in places:
            if place.first_at is not None and place.first_at <= self.tx.now and place.queue in names:
                lanes.setdefault(names[place.queue][0], []).append(place)
        serial = max(self.tx.now * 1000, max((place.served for place in places), default=0))
        dealt: list[Due] = []
        for lane, room in self.request.lanes.items():
            if room.slots <= 0 or lane not in lanes:
                continue
            due = sorted(lanes[lane], key=lambda place: place.served)[:_QUEUES_PER_LANE]
            queues, turns, numbers = [], dict[str, int](), dict[tuple[str, str], int]()
            for place in due:
                _, tenant, outlet = names[place.queue]
                first: Due = (place.first_at or 0, "", -1)
                queues.append(DueQueue(lane, tenant, outlet, place.served, first))
                turns[tenant] = max(turns.get(tenant, 0), place.served)
                numbers[tenant, outlet] = place.queue
            deal = Deal(room, self.outlets, queues, turns, serial)
            dealt += await self._run(deal, numbers)
            serial = deal.serial
            if len(due) > 1:  # with one queue alone there are no turns to take
                self.served |= {numbers[q.tenant, q.outlet]: q.served for q in deal.looked()}
        return dealt

    async def _run(self, deal: Deal, numbers: dict[tuple[str, str], int]) -> list[Due]:
        dealing = deal.run()
        while True:
            try:
                queues, limit = next(dealing)
            except StopIteration as end:
                dealt: list[Due] = end.value
                return dealt
            await self._fetch(queues, limit, [numbers[q.tenant, q.outlet] for q in queues])

    async def _fetch(self, queues: Sequence[DueQueue], limit: int, numbers: list[int]) -> None:
        after = [queue.after for queue in queues]
        found: list[list[Due]] = [[] for _ in queues]
        records = await self.tx.rows(
            DUE_ROWS, numbers, [at for at, _, _ in after], [seq for _, _, seq in after], self.tx.now, limit
        )
        for record in records:
            seq, due_at, place = record[0], record[_DUE_AT], record[-1]
            self.fetched[seq] = record
            found[place - 1].append((due_at, "", seq))
        for queue, number, rows in zip(queues, numbers, found, strict=True):
            rows.sort()
            queue.fill(rows, limit)
            if rows:
                self.lookout.mark(number, rows[0][0])

    async def _lease(self, dealt: Sequence[Due]) -> tuple[Claim, ...]:
        if not dealt:
            return ()
        tx, request = self.tx, self.request
        records = [self.fetched[seq] for _, _, seq in dealt]
        book, claims, written = Book(tx), [], []
        for (seq, row), record, (due_at, _, _) in zip(rows_from(records), records, dealt, strict=True):
            book.record(seq, lease(row, request.worker, request.lease_ms, tx.now))
            claims.append(claim_of(row, decode_message(record[-2]), due_at))
            written.append(_leased(seq, row))
        await _write_leases(tx, written, request.lease_ms, book)
        return tuple(claims)

    def _next_due_at(self, places: Iterable[_Place], names: dict[int, Queue]) -> int | None:
        """The earliest time after now at which a row is due where the request gave room."""
        times = []
        for place in places:
            if place.next_at is None or place.queue not in names:
                continue
            lane, tenant, outlet = names[place.queue]
            room = self.request.lanes.get(lane)
            if room is None or room.slots <= 0 or room.tenant_room.get(tenant, 1) <= 0:
                continue
            if self.outlets.open(outlet):
                times.append(place.next_at)
        return min(times, default=None)


async def claim(tx: Tx, request: ClaimRequest, lookout: Lookout) -> ClaimBatch:
    """Leases due rows within the room that the request gives."""
    return await _Claiming(tx, request, lookout).run()


async def reclaim_passed(tx: Tx, worker: str, limit: int, lease_ms: int, since: int) -> ClaimBatch:
    """Takes expired leases, and waiting rows whose deadline passed, whatever passed first, first.

    Only what passed after `since`.
    """
    records = await tx.rows(PASSED, tx.now, max(0, limit), since)
    if not records:
        return ClaimBatch(claims=(), now=tx.now, next_due_at=None)
    book, claims, written = Book(tx), [], []
    for (seq, row), record in zip(rows_from(records), records, strict=True):
        due_at = row.started_at if row.due_at is None else row.due_at
        book.record(seq, reclaim(row, worker, lease_ms, tx.now))
        claims.append(claim_of(row, decode_message(record[-1]), due_at))
        written.append(_leased(seq, row))
    await _write_leases(tx, written, lease_ms, book)
    return ClaimBatch(claims=tuple(claims), now=tx.now, next_due_at=None)


async def extend_leases(tx: Tx, leases: Sequence[Lease], lease_ms: int) -> frozenset[str]:
    """Prolongs leases whose token still matches; the ids still held."""
    found = await leased_by_id(tx, [lease.id for lease in leases])
    held: dict[str, tuple[int, Row]] = {}
    for one in leases:
        if one.id not in found:
            continue
        seq, row = found[one.id]
        if extend(row, one.token, lease_ms, tx.now, one.provider, one.outlet):
            held[one.id] = (seq, row)
    if held:
        queues = await tx.queues.find(tx, {queue_of(row) for _, row in held.values()})
        rows = [
            (seq, row.lease_until, row.provider, queues[queue_of(row)], row.failures_here)
            for seq, row in held.values()
        ]
        await EXTEND.run(tx, rows)
    return frozenset(held)


async def _write_leases(tx: Tx, written: Sequence[tuple[Any, ...]], lease_ms: int, book: Book) -> None:
    await LEASE.run(tx, written, tx.now, tx.now + lease_ms)
    await book.write()


def _leased(seq: int, row: Row) -> tuple[Any, ...]:
    """In the order of `_LEASED`."""
    return seq, row.attempts, row.token, row.changes, row.started_at, row.overdue, row.worker


_DUE_AT = 1 + Row.__struct_fields__.index("due_at")
