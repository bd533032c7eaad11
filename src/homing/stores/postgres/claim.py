"""Claims due rows: finds the queues with due rows, shares the capacity fairly and leases the chosen rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from homing.core.lifecycle.claims import Claim, ClaimBatch, ClaimRequest
from homing.core.lifecycle.rows import claims_of
from homing.core.notifications import mode_of
from homing.core.routing.fair_share import (
    ClaimCapacity,
    DueQueue,
    DueRow,
    FairShare,
    TenantPlace,
    TenantTurns,
)
from homing.stores.common.leased_rows import SeqAndRow
from homing.stores.postgres.clock import ClockUnresolvedError
from homing.stores.postgres.columns import STATE, is_id
from homing.stores.postgres.connection import NOW
from homing.stores.postgres.due_watermark import DueWatermark
from homing.stores.postgres.leases import lease_rows
from homing.stores.postgres.queues import QueueKey
from homing.stores.postgres.rows import CLAIMED, decode_messages, rows_to_claim, selected_for_claim
from homing.stores.postgres.statements import PostgresTransaction, Record

_QUEUES_PER_LANE = 2000
"""Maximum number of due queues that one claim considers per lane.

Queues of the least recently served tenants go first.
"""


_PREFETCHED_ROWS = 8
"""Number of rows that a sweep fetches from each due queue, if the last claim found few. Saves a query."""

_MAX_PREFETCH_QUEUES = 16
"""If the last claim found more queues with waiting rows than this, the next sweep fetches no rows."""

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
SELECT c.now, q.lane, q.tenant, q.outlet,
  w.queue, w.due_at, {_FIRST_AFTER_NOW.format(now="c.now")}, coalesce(t.served, 0){{more}}
FROM (SELECT homing.now_ms() AS now OFFSET 0) AS c
LEFT JOIN w ON true LEFT JOIN homing.turns AS t ON t.queue = w.queue
LEFT JOIN homing.queues AS q ON q.id = w.queue{{joined}}
"""  # noqa: S608

_QUEUE_COLUMNS = 8
"""Number of columns in a sweep's result that describe the queue. The columns of the row follow."""

SWEEP = _SWEEP.format(more="", joined="")

FIRST_DUE = f"""
SELECT w.queue, (
    SELECT l.due_at FROM homing.live AS l WHERE l.queue = w.queue AND l.due_at >= w.mark
    ORDER BY l.due_at LIMIT 1),
  {_FIRST_AFTER_NOW.format(now="$3::bigint")}, coalesce(t.served, 0)
FROM unnest($1::integer[], $2::bigint[]) AS w(queue, mark)
LEFT JOIN homing.turns AS t ON t.queue = w.queue
"""  # noqa: S608

_CLAIMED_COLUMNS = ", ".join(
    f"l.{name}" for name in STATE if name in {*CLAIMED, "seq", "queue", "spent", "holds"}
)

SWEEP_AND_TAKE = _SWEEP.format(
    more=", r.*",
    joined=f"""
LEFT JOIN LATERAL (
  SELECT {selected_for_claim("m", "s")}
  FROM (
    SELECT {_CLAIMED_COLUMNS} FROM homing.live AS l WHERE l.queue = w.queue AND l.due_at <= c.now
    ORDER BY l.due_at, l.seq LIMIT {_PREFETCHED_ROWS}
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

CHOSEN_ROWS = f"""
SELECT {selected_for_claim("m", "s")}
FROM (
  SELECT {_CLAIMED_COLUMNS} FROM homing.live AS l
  WHERE l.seq = ANY(ARRAY(SELECT seq FROM homing.messages WHERE id = ANY($1::text[]::uuid[])))
    AND l.due_at <= $2::bigint
  ORDER BY l.due_at, l.seq
  FOR UPDATE SKIP LOCKED) AS s
JOIN homing.messages AS m ON m.seq = s.seq
ORDER BY s.due_at, s.seq
"""  # noqa: S608

_DUE_AT = 2 + CLAIMED.index("due_at")

# A turn is not important enough to wait for its lock. If another worker serves a queue at the same time, the
# queue keeps that worker's value.
TURNS = """
WITH u AS (SELECT * FROM unnest($1::integer[], $2::bigint[]) AS u(queue, served)),
free AS (
  SELECT t.queue FROM homing.turns AS t WHERE t.queue = ANY($1::integer[]) ORDER BY t.queue
  FOR UPDATE SKIP LOCKED),
served AS (
  UPDATE homing.turns AS t SET served = greatest(t.served, u.served) FROM u JOIN free ON free.queue = u.queue
  WHERE t.queue = u.queue)
INSERT INTO homing.turns (queue, served)
SELECT u.queue, u.served FROM u WHERE NOT EXISTS (SELECT 1 FROM homing.turns AS t WHERE t.queue = u.queue)
ORDER BY u.queue
ON CONFLICT (queue) DO NOTHING
"""


class _WaitingQueue(Struct):
    """A queue with waiting rows."""

    queue: int
    """Number of the queue."""
    first_at: int | None
    """Due time of the queue's first row. None if no waiting row was found."""
    next_at: int | None
    """The first due time after now in the queue. None if no row is due later."""
    served: int
    """Serial number of the queue's last turn. Higher means more recent."""


class _Claiming:
    """State of one claim."""

    def __init__(
        self,
        tx: PostgresTransaction,
        request: ClaimRequest,
        watermark: DueWatermark,
        turns: TenantTurns,
        leased: list[SeqAndRow],
        taken: dict[TenantPlace, int],
    ) -> None:
        self.tx = tx
        self.request = request
        self.watermark = watermark
        self.turns = turns
        self.leased = leased
        self.taken = taken
        self.capacity = ClaimCapacity(request)
        self.fetched: dict[int, Record] = {}
        """Fetched and locked rows by seq."""
        self.ahead: dict[int, list[Record]] = {}
        """Due rows that a sweep has fetched, by queue.

        If a queue has fewer than `_PREFETCHED_ROWS`, the sweep has fetched all of its due rows.
        """
        self.served: dict[int, int] = {}
        """New serial numbers of the queues' last turns, by queue."""

    async def run(self) -> ClaimBatch:
        """Finds, chooses and leases due rows."""
        tx = self.tx
        if self.request.ids is not None:
            return await self._run_chosen(self.request.ids)
        places = await self._find_queues()
        names = await tx.queues.names(tx, [place.queue for place in places])
        if self.request.tenant is not None:
            owned = {queue for queue, (_, tenant, _) in names.items() if tenant == self.request.tenant}
            places = [place for place in places if place.queue in owned]
        next_due_at = self._next_due_at(places, names)
        dealt = await self._choose_rows(places, names)
        self.watermark.quiet = len(dealt) < _PREFETCHED_ROWS and len(places) <= _MAX_PREFETCH_QUEUES
        claims = await self._lease(dealt, names)
        if self.served:
            await tx.rows(TURNS, list(self.served), list(self.served.values()))
        return ClaimBatch(
            claims=claims, now=tx.now, next_due_at=next_due_at, unlisted=self._unlisted(places, names)
        )

    async def _run_chosen(self, ids: Collection[str]) -> ClaimBatch:
        """Leases those of the chosen rows that are due."""
        tx = self.tx
        tx.set_time(await tx.one(NOW))
        records = await tx.rows(CHOSEN_ROWS, [id for id in ids if is_id(id)], tx.now)
        names = await tx.queues.names(tx, list({record[1] for record in records}))
        dealt: list[DueRow] = []
        for record in records:
            lane, tenant, outlet = names[record[1]]
            wanted = self.request.tenant in (None, tenant)
            if wanted and self.capacity.take(DueQueue(lane, tenant, outlet, 0)):
                self.fetched[record[0]] = record
                dealt.append((record[_DUE_AT], "", record[0]))
        claims = await self._lease(dealt, names)
        return ClaimBatch(claims=claims, now=tx.now, next_due_at=None)

    async def _find_queues(self) -> list[_WaitingQueue]:
        """Returns the queues with waiting rows and sets the transaction's time.

        Sweeps all queues, or reads only those with a low-water mark if a sweep is not due. A sweep also reads
        the names of the queues: if the database's history has gone back, a queue may have the number of
        another one, which is perhaps paused.
        """
        tx, watermark = self.tx, self.watermark
        if watermark.pace.due():
            prefetch = watermark.quiet
            with watermark.pace.sweep():
                records = await self._sweep(SWEEP_AND_TAKE if prefetch else SWEEP)
            if prefetch:
                records = self._split_off_rows(records)
            records = [record for record in records if record[4] is not None]
            for _, lane, tenant, outlet, queue, *_ in records:
                if lane is not None:
                    tx.queues.learn(queue, (lane, tenant, outlet))
            found = [_WaitingQueue(*record[4:]) for record in records]
            watermark.replace_marks(
                {place.queue: place.first_at for place in found if place.first_at is not None}
            )
            return found
        tx.set_time(await tx.one(NOW))
        known = watermark.begin(tx.now)
        found = [_WaitingQueue(queue, at, at, 0) for queue, at in watermark.later(tx.now).items()]
        if known:
            for record in await tx.rows(FIRST_DUE, list(known), list(known.values()), tx.now):
                place = _WaitingQueue(*record)
                watermark.mark(place.queue, place.first_at)
                found.append(place)
        return found

    async def _sweep(self, sql: str) -> Sequence[Record]:
        """Runs a sweep, sets the transaction's time and returns the records."""
        correction_ms = self.tx.correction_ms
        if correction_ms:
            sql = sql.replace("homing.now_ms()", f"(homing.now_ms() + {correction_ms}::bigint)")
        records = await self.tx.rows(sql)
        self.tx.set_time(records[0][0] - correction_ms)
        if self.tx.now != records[0][0]:  # a step was accepted just now
            raise ClockUnresolvedError
        return records

    def _split_off_rows(self, records: Sequence[Record]) -> list[Record]:
        """Moves the rows in a sweep's result to `ahead` and returns one record per queue."""
        queues: dict[int, Record] = {}
        for record in records:
            place, row = record[:_QUEUE_COLUMNS], record[_QUEUE_COLUMNS:]
            queue = place[4]
            queues[queue] = place
            rows = self.ahead.setdefault(queue, [])
            if row[0] is not None:
                rows.append(row)
        return list(queues.values())

    async def _choose_rows(self, places: Sequence[_WaitingQueue], names: dict[int, QueueKey]) -> list[DueRow]:
        lanes: dict[str, list[_WaitingQueue]] = {}
        for place in places:
            if place.first_at is not None and place.first_at <= self.tx.now and place.queue in names:
                lane, tenant, outlet = names[place.queue]
                if self.capacity.is_open(DueQueue(lane, tenant, outlet, 0)):
                    lanes.setdefault(lane, []).append(place)
        serial = max(self.tx.now * 1000, max((place.served for place in places), default=0))
        queues, numbers = [], dict[QueueKey, int]()
        for lane, due in lanes.items():
            for place in self._least_recently_served(lane, due, names):
                _, tenant, outlet = key = names[place.queue]
                queues.append(DueQueue(lane, tenant, outlet, place.served, (place.first_at or 0, "", -1)))
                numbers[key] = place.queue
        share = FairShare(self.capacity, queues, self.turns, serial)
        dealt = await self._run_share(share, numbers)
        self.taken.update(share.taken())
        self.served = {numbers[q.lane, q.tenant, q.outlet]: q.served for q in share.took_turns()}
        return dealt

    def _least_recently_served(
        self, lane: str, due: list[_WaitingQueue], names: Mapping[int, QueueKey]
    ) -> list[_WaitingQueue]:
        """Returns at most `_QUEUES_PER_LANE` due queues, those of the least recently served tenants first."""
        if len(due) <= _QUEUES_PER_LANE:
            return due
        mode, provider = mode_of(lane), self.capacity.provider

        def last_turn(place: _WaitingQueue) -> tuple[int, int]:
            _, tenant, outlet = names[place.queue]
            return self.turns.get(mode, provider(outlet), tenant), place.served

        return sorted(due, key=last_turn)[:_QUEUES_PER_LANE]

    async def _run_share(self, share: FairShare, numbers: Mapping[QueueKey, int]) -> list[DueRow]:
        fetches = share.run()
        while True:
            try:
                queues, limit = next(fetches)
            except StopIteration as end:
                dealt: list[DueRow] = end.value
                return dealt
            await self._fetch(queues, limit, [numbers[q.lane, q.tenant, q.outlet] for q in queues])

    async def _fetch(self, queues: Sequence[DueQueue], limit: int, numbers: list[int]) -> None:
        found: dict[int, list[DueRow]] = {number: [] for number in numbers}
        records = self._take_prefetched(numbers, limit)
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
                self.watermark.mark(number, rows[0][0])

    def _take_prefetched(self, numbers: list[int], limit: int) -> Sequence[Record] | None:
        """Returns the first due rows of these queues, or None if the sweep has not fetched enough of each."""
        ahead = [self.ahead.pop(number, None) for number in numbers]
        if any(rows is None or limit > len(rows) == _PREFETCHED_ROWS for rows in ahead):
            return None
        return [row for rows in ahead if rows is not None for row in rows[:limit]]

    async def _lease(self, dealt: Sequence[DueRow], names: Mapping[int, QueueKey]) -> tuple[Claim, ...]:
        if not dealt:
            return ()
        records = [self.fetched[seq] for _, _, seq in dealt]
        rows = rows_to_claim(records, names)
        self.tx.used_queues = {record[1]: names[record[1]] for record in records}
        await lease_rows(self.tx, rows, self.request.worker, self.request.lease_ms)
        self.leased[:] = rows
        messages = decode_messages([record[-1] for record in records])
        return claims_of([row for _, row in rows], messages, [due_at for due_at, _, _ in dealt])

    def _unlisted(self, places: Iterable[_WaitingQueue], names: Mapping[int, QueueKey]) -> frozenset[str]:
        """Returns the providers with due rows that the request leaves out because it does not list them."""
        request = self.request
        if not request.only_listed:
            return frozenset()
        lanes = request.lanes
        due = {
            key[2].partition("@")[0]
            for place in places
            if place.first_at is not None
            and place.first_at <= self.tx.now
            and (key := names.get(place.queue)) is not None
            and key[0] in lanes
        }
        return frozenset(due - request.providers.keys())

    def _next_due_at(self, places: Iterable[_WaitingQueue], names: dict[int, QueueKey]) -> int | None:
        """Returns the earliest due time after now among the queues for which the request has capacity."""
        waiting = [
            (place.next_at, place.queue)
            for place in places
            if place.next_at is not None and place.queue in names
        ]
        waiting.sort()
        return next((at for at, queue in waiting if self.capacity.is_open(DueQueue(*names[queue], 0))), None)


async def claim(
    tx: PostgresTransaction,
    request: ClaimRequest,
    watermark: DueWatermark,
    turns: TenantTurns,
    leased: list[SeqAndRow],
    taken: dict[TenantPlace, int],
) -> ClaimBatch:
    """Leases due rows within the capacity in the request.

    `leased` is filled with the leased rows, and `taken` with the turns that count once this is committed.
    """
    return await _Claiming(tx, request, watermark, turns, leased, taken).run()
