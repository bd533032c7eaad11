"""claim: what is due where, and who gets it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from homing.core.model import Claim, ClaimBatch, ClaimRequest
from homing.core.outlets import OutletRoom
from homing.core.rows import claims_of
from homing.stores.deal import Deal, Due, DueQueue
from homing.stores.held import Found
from homing.stores.postgres.codec import CLAIMED, decode_messages, rows_to_claim, selected_for_claim
from homing.stores.postgres.columns import STATE
from homing.stores.postgres.connection import NOW
from homing.stores.postgres.leases import lease_rows
from homing.stores.postgres.lookout import Lookout
from homing.stores.postgres.queues import Queue
from homing.stores.postgres.statements import Record, Tx

_QUEUES_PER_LANE = 2000
"""Due queues that one claim looks at in a lane, those of the tenants served longest ago first."""

_AHEAD = 8
"""Rows that a sweep takes along from each due queue, where there was little of late: that spares a fetch."""
_FEW = 16
"""Queues, of which it is worth while."""
_FIRST_AFTER_NOW = """(
    SELECT l.due_at FROM homing.live AS l WHERE l.queue = w.queue AND l.due_at > {now}
    ORDER BY l.due_at LIMIT 1)"""
_SWEEP = f"""
WITH RECURSIVE w(queue, due_at) AS (
  (SELECT queue, due_at FROM homing.live WHERE due_at IS NOT NULL ORDER BY queue, due_at LIMIT 1)
  UNION ALL
  SELECT n.queue, n.due_at FROM w CROSS JOIN LATERAL (
    SELECT l.queue, l.due_at FROM homing.live AS l WHERE l.due_at IS NOT NULL AND l.queue > w.queue
    ORDER BY l.queue, l.due_at LIMIT 1) AS n)
SELECT c.now, w.queue, w.due_at, {_FIRST_AFTER_NOW.format(now="c.now")}, coalesce(t.served, 0){{more}}
FROM (SELECT homing.now_ms() AS now OFFSET 0) AS c
LEFT JOIN w ON true LEFT JOIN homing.turns AS t ON t.queue = w.queue{{joined}}
"""  # noqa: S608
_PLACE = 5
"""So many columns of a sweep are about the queue."""
SWEEP = _SWEEP.format(more="", joined="")
LOOK = f"""
SELECT w.queue, (
    SELECT l.due_at FROM homing.live AS l WHERE l.queue = w.queue AND l.due_at >= w.mark
    ORDER BY l.due_at LIMIT 1),
  {_FIRST_AFTER_NOW.format(now="$3::bigint")}, coalesce(t.served, 0)
FROM unnest($1::integer[], $2::bigint[]) AS w(queue, mark)
LEFT JOIN homing.turns AS t ON t.queue = w.queue
"""  # noqa: S608
_CLAIMED_COLUMNS = ", ".join(f"l.{name}" for name in STATE if name in {*CLAIMED, "seq", "queue", "holds"})
SWEEP_AND_TAKE = _SWEEP.format(
    more=", r.*",
    joined=f"""
LEFT JOIN LATERAL (
  SELECT {selected_for_claim("m", "s")}
  FROM (
    SELECT {_CLAIMED_COLUMNS} FROM homing.live AS l WHERE l.queue = w.queue AND l.due_at <= c.now
    ORDER BY l.due_at, l.seq LIMIT {_AHEAD}
    FOR UPDATE SKIP LOCKED) AS s
  JOIN homing.messages AS m ON m.seq = s.seq) AS r ON w.due_at <= c.now""",  # noqa: S608
)
DUE_ROWS = f"""
SELECT {selected_for_claim("m", "s")}
FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) AS w(queue, due_at, seq)
CROSS JOIN LATERAL (
  SELECT {_CLAIMED_COLUMNS} FROM homing.live AS l
  WHERE l.queue = w.queue AND (l.due_at, l.seq) > (w.due_at, w.seq) AND l.due_at <= $4::bigint
  ORDER BY l.due_at, l.seq LIMIT $5
  FOR UPDATE SKIP LOCKED) AS s
JOIN homing.messages AS m ON m.seq = s.seq
"""  # noqa: S608
_DUE_AT = 2 + CLAIMED.index("due_at")
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

    def __init__(self, tx: Tx, request: ClaimRequest, lookout: Lookout, leased: list[Found]) -> None:
        self.tx = tx
        self.request = request
        self.lookout = lookout
        self.leased = leased
        self.outlets = OutletRoom(request.outlet_room, request.outlet_slots)
        self.fetched: dict[int, Record] = {}
        self.ahead: dict[int, list[Record]] = {}
        """Queue → the due rows that a sweep took along: all of them, where they are fewer than it may."""
        self.served: dict[int, int] = {}

    async def run(self) -> ClaimBatch:
        tx = self.tx
        places = await self._places()
        names = await tx.queues.names(tx, [place.queue for place in places])
        dealt = await self._deal(places, names)
        self.lookout.quiet = len(dealt) < _AHEAD and len(places) <= _FEW
        claims = await self._lease(dealt, names)
        if self.served:
            await tx.rows(TURNS, list(self.served), list(self.served.values()))
        return ClaimBatch(claims=claims, now=tx.now, next_due_at=self._next_due_at(places, names))

    async def _places(self) -> list[_Place]:
        """Where rows wait, by a look at everything or only where some were known to be; and the time."""
        tx, lookout = self.tx, self.lookout
        if lookout.pace.due():
            takes = lookout.quiet
            with lookout.pace.sweep():
                records = await tx.rows(SWEEP_AND_TAKE if takes else SWEEP)
            tx.now = records[0][0]
            if takes:
                records = self._put_aside(records)
            found = [_Place(*place) for _, *place in records if place[0] is not None]
            lookout.swept({place.queue: place.first_at for place in found if place.first_at is not None})
            return found
        tx.now = await tx.one(NOW)
        known = lookout.begin(tx.now)
        found = [_Place(queue, at, at, 0) for queue, at in lookout.later(tx.now).items()]
        if known:
            for record in await tx.rows(LOOK, list(known), list(known.values()), tx.now):
                place = _Place(*record)
                lookout.mark(place.queue, place.first_at)
                found.append(place)
        return found

    def _put_aside(self, records: Sequence[Record]) -> list[Record]:
        """The rows that came along with a sweep; what is left is one record for each queue."""
        swept: dict[int, Record] = {}
        for record in records:
            place, row = record[:_PLACE], record[_PLACE:]
            queue = place[1]
            swept[queue] = place
            rows = self.ahead.setdefault(queue, [])
            if row[0] is not None:
                rows.append(row)
        return list(swept.values())

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
        found: dict[int, list[Due]] = {number: [] for number in numbers}
        records = self._taken_along(numbers, limit)
        if records is None:
            after = [queue.after for queue in queues]
            records = await self.tx.rows(
                DUE_ROWS,
                numbers,
                [at for at, _, _ in after],
                [seq for _, _, seq in after],
                self.tx.now,
                limit,
            )
        for record in records:
            self.fetched[record[0]] = record
            found[record[1]].append((record[_DUE_AT], "", record[0]))
        for queue, number in zip(queues, numbers, strict=True):
            rows = sorted(found[number])
            queue.fill(rows, limit)
            if rows:
                self.lookout.mark(number, rows[0][0])

    def _taken_along(self, numbers: list[int], limit: int) -> Sequence[Record] | None:
        """The first due rows of these queues, if a sweep has brought enough of each; None: fetch them."""
        ahead = [self.ahead.pop(number, None) for number in numbers]
        if any(rows is None or limit > len(rows) == _AHEAD for rows in ahead):
            return None
        return [row for rows in ahead if rows is not None for row in rows[:limit]]

    async def _lease(self, dealt: Sequence[Due], names: Mapping[int, Queue]) -> tuple[Claim, ...]:
        if not dealt:
            return ()
        records = [self.fetched[seq] for _, _, seq in dealt]
        rows = rows_to_claim(records, names)
        await lease_rows(self.tx, rows, self.request.worker, self.request.lease_ms)
        self.leased[:] = rows
        messages = decode_messages([record[-1] for record in records])
        return claims_of([row for _, row in rows], messages, [due_at for due_at, _, _ in dealt])

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


async def claim(tx: Tx, request: ClaimRequest, lookout: Lookout, leased: list[Found]) -> ClaimBatch:
    """Leases due rows within the room that the request gives; `leased` are the rows themselves."""
    return await _Claiming(tx, request, lookout, leased).run()
