"""Claims due rows: finds the queues with due rows, shares the capacity fairly and leases the chosen rows.

A queue has no document of its own. The index `due` has the rows of each queue together, the earliest first,
and MongoDB reads only the first entry of each queue (a distinct scan). So a claim costs as much with a
million waiting rows as with a thousand. Busy queues are searched from a low-water mark (`due_marks`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pymongo import UpdateOne

from homing.core.lifecycle.claims import ClaimBatch, ClaimRequest
from homing.core.routing.fair_share import ClaimCapacity, DueQueue, DueRow, FairShare, TenantTurns
from homing.stores.common.codec import encode
from homing.stores.mongo.documents import Document, queue_key, read_queue_key
from homing.stores.mongo.due_rows import (
    QUEUES_PER_FETCH,
    DueRowReader,
    RowsAhead,
    RowsToReadAhead,
    reads_whole_rows,
)
from homing.stores.mongo.leases import NewLeases
from homing.stores.mongo.schema import NOTIFICATIONS, TURNS
from homing.stores.mongo.transaction import MongoTransaction, SessionDatabase

_QUEUES_PER_LANE = 2000
"""Maximum number of due queues that one claim considers per lane. The least recently served go first."""

_READ_AHEAD_MS = 50
"""Rows that become due within this time are read ahead too. The time of the claim is not known yet."""

_SERIAL = "serial"
"""Key of the document with the serial number of the last turn."""


class WaitingQueue(NamedTuple):
    """A queue with waiting rows."""

    due_at: int
    """Due time of the earliest row."""
    served: int
    """Serial number of the last turn of the queue, or 0 if it had none."""


WaitingQueues = dict[str, WaitingQueue]
"""Waiting queues by their keys."""

QueuesAndSerial = tuple[WaitingQueues, int]
"""The waiting queues, and the serial number of the last turn."""


class ClaimPlan:
    """The rows that a claim has chosen, and what follows for the turns of their queues."""

    def __init__(
        self, now: int, share: FairShare | None, due: Sequence[DueRow], unlisted: Collection[str] = ()
    ) -> None:
        self.now = now
        self.share = share
        self.due_times = {id: due_at for due_at, id, _ in due}
        """Due time by id, in the order of the claim."""
        self.unlisted = frozenset(unlisted)
        self.next_due_at: int | None = None
        """When the next row becomes due that this claim could have taken."""
        self.waiting: WaitingQueues = {}
        """The queues as they were before the claim."""
        self.marks: Mapping[str, int] = {}
        """The due times from which busy queues were searched. The claim has not seen what is due before."""
        self.queues: Sequence[DueQueue] = ()
        """The queues with due rows that the claim considered, with their last turns."""
        self.documents: dict[str, Document] = {}
        """The chosen rows by id, as they were read. The lease fails if one has changed since."""

    @property
    def may_empty_queues(self) -> bool:
        """True if a queue has no due rows besides the chosen ones, so that its next due time is not known."""
        return self.share is not None and any(
            not queue.more and not queue.rows for queue in self.share.looked()
        )

    def taken(self) -> Mapping[str, int]:
        """Returns the number of chosen rows by the key of their queue."""
        return Counter(self.documents[id]["queue"] for id in self.due_times if id in self.documents)

    def leases(self, request: ClaimRequest) -> NewLeases:
        """Returns the leases of the rows that were still there when they were read."""
        found = [self.documents[id] for id in self.due_times if id in self.documents]
        return NewLeases(found, request, self.now)

    def empty_batch(self) -> ClaimBatch:
        """Returns the result of a claim that leases nothing."""
        return ClaimBatch(claims=(), now=self.now, next_due_at=self.next_due_at, unlisted=self.unlisted)


async def plan(
    tx: MongoTransaction,
    request: ClaimRequest,
    turns: TenantTurns,
    skipped: Collection[str] = (),
    ahead: RowsAhead | None = None,
) -> ClaimPlan:
    """Chooses the rows to lease, within the capacity in the request, and reads them. It writes nothing.

    `skipped` are the ids of rows that it leaves out. `ahead` are rows that were read while the queues were.
    `tx` has no transaction, but what `queues_pipeline` has found. The write of the leases compares the
    state of the rows.
    """
    waiting, serial = _read_queues(tx.beside or (), request)
    earliest = {key: queue.due_at for key, queue in waiting.items()}
    fetched = DueRowReader(tx.db, tx.now, skipped, ahead, earliest)
    chosen = await _choose_rows(tx, request, turns, waiting, serial, fetched)
    chosen.waiting = waiting
    if ids := list(chosen.due_times):
        chosen.documents = fetched.whole
        if unread := [id for id in ids if id not in fetched.whole]:
            still_due = {"_id": {"$in": unread}, "due_at": {"$lte": tx.now}}
            fetched.keep(await tx.db.find(NOTIFICATIONS, still_due))
    return chosen


async def _choose_rows(
    tx: MongoTransaction,
    request: ClaimRequest,
    turns: TenantTurns,
    waiting: WaitingQueues,
    serial: int,
    fetched: DueRowReader,
) -> ClaimPlan:
    capacity, now = ClaimCapacity(request), tx.now
    if request.ids is not None:
        return ClaimPlan(now, None, await _choose(tx.db, now, request, capacity, request.ids))
    due, unlisted = _due_queues(waiting, now, request)
    if not due:
        chosen = ClaimPlan(now, None, (), unlisted)
        chosen.next_due_at = next_due_at(waiting, now, request)
        return chosen
    found = [DueQueue(*read_queue_key(key), waiting[key].served) for key in due]
    queues = await _limit_lanes(tx.db, [queue for queue in found if capacity.is_open(queue)])
    share = FairShare(capacity, queues, turns, serial)
    chosen = ClaimPlan(now, share, await _run(share, fetched), unlisted)
    chosen.queues = queues
    if not chosen.due_times:
        chosen.next_due_at = next_due_at(waiting, now, request)
    return chosen


class LastChoice:
    """What a claim has found, by which the next one guesses which rows it will need.

    It reads these rows at the same time as the queues. Most of a claim is waiting for commands one after
    another, and a queue that had more due rows than the last claim took is likely to have them still.
    """

    def __init__(self, chosen: ClaimPlan) -> None:
        self._read_at = time.monotonic()
        self._now = chosen.now
        self._serial = 0 if chosen.share is None else chosen.share.serial
        self._queues = [queue for queue in chosen.queues if queue.rows or queue.more]

    def guess(self, request: ClaimRequest, turns: TenantTurns) -> RowsToReadAhead | None:
        """Returns the rows that a claim probably fetches first, or None if there is no good guess."""
        if not self._queues or len(self._queues) > QUEUES_PER_FETCH or request.ids is not None:
            return None
        capacity = ClaimCapacity(request)
        queues = [
            DueQueue(queue.lane, queue.tenant, queue.outlet, queue.served, after=_next_row(queue))
            for queue in self._queues
            if queue.lane in request.lanes
            and request.tenant in (None, queue.tenant)
            and _is_listed(queue.outlet, request)
            and capacity.is_open(queue)
        ]
        fetch = next(FairShare(capacity, queues, turns, self._serial).run(), None)
        if fetch is None or not reads_whole_rows(*fetch):
            return None
        elapsed_ms = round((time.monotonic() - self._read_at) * 1000)
        return RowsToReadAhead(*fetch, until=self._now + elapsed_ms + _READ_AHEAD_MS)


def _next_row(queue: DueQueue) -> DueRow:
    """Returns the first row that the claim has left in the queue, or the last one that it has taken."""
    return queue.rows[0] if queue.rows else queue.after


def queues_pipeline(marks: Mapping[str, int], *, serial: bool = False) -> list[Document]:
    """Returns the pipeline that finds the waiting queues with their turns, among the rows.

    It searches the queues in `marks` from these due times, and all others from the beginning. With `serial`,
    it also finds the serial number of the last turn, and so everything that a claim needs before it can
    choose. It is one command, because a command costs a worker as much time as ten rows.
    """
    others: Document = {"$gt": "", "$nin": sorted(marks)} if marks else {"$gt": ""}
    found: list[Document] = [
        {"$match": {"queue": others}},
        {"$sort": {"queue": 1, "due_at": 1, "_id": 1}},
        {"$group": {"_id": "$queue", "due_at": {"$first": "$due_at"}}},
    ]
    for key, due_at in marks.items():
        first = [
            {"$match": {"queue": key, "due_at": {"$gte": due_at}}},
            {"$sort": {"due_at": 1, "_id": 1}},
            {"$limit": 1},
            {"$project": {"_id": "$queue", "due_at": 1}},
        ]
        found.append({"$unionWith": {"coll": NOTIFICATIONS, "pipeline": first}})
    found.append({"$lookup": {"from": TURNS, "localField": "_id", "foreignField": "_id", "as": "turn"}})
    if serial:
        last_turn = [{"$match": {"_id": _SERIAL}}]
        found.append({"$unionWith": {"coll": TURNS, "pipeline": last_turn}})
    return found


def _read_queues(found: Sequence[Document], request: ClaimRequest) -> QueuesAndSerial:
    """Returns what `queues_pipeline` has found, with the serial number."""
    serial = next((int(one["served"]) for one in found if one["_id"] == _SERIAL), 0)
    return _waiting_queues([one for one in found if one["_id"] != _SERIAL], request), serial


async def waiting_queues(
    db: SessionDatabase, request: ClaimRequest, marks: Mapping[str, int]
) -> WaitingQueues:
    """Returns the queues of the lanes in the request that have waiting rows, searched from these marks."""
    return _waiting_queues(await db.aggregate(NOTIFICATIONS, queues_pipeline(marks)), request)


def _waiting_queues(found: Iterable[Document], request: ClaimRequest) -> WaitingQueues:
    return {
        one["_id"]: WaitingQueue(one["due_at"], one["turn"][0]["served"] if one["turn"] else 0)
        for one in found
        if read_queue_key(one["_id"])[0] in request.lanes
    }


def next_due_at(waiting: WaitingQueues, now: int, request: ClaimRequest) -> int | None:
    """Returns when the next row becomes due that this claim could have taken. None if there is none."""
    if request.ids is not None:
        return None
    capacity = ClaimCapacity(request)
    later = sorted((due_at, key) for key, (due_at, _) in waiting.items() if due_at > now)
    for due_at, key in later:
        lane, tenant, outlet = read_queue_key(key)
        is_asked_for = _is_listed(outlet, request) and request.tenant in (None, tenant)
        if is_asked_for and capacity.is_open(DueQueue(lane, tenant, outlet, 0)):
            return due_at
    return None


async def write_turns(db: SessionDatabase, share: FairShare) -> None:
    """Writes the last turns of the queues and tenants that were served.

    It is written while the rows are leased: a turn too many or too few only makes the next claim a little
    less fair.
    """
    if not share.dealt:
        return
    turns = {_SERIAL: share.serial}
    for queue in share.took_turns():
        for key in (queue_key(queue.lane, queue.tenant, queue.outlet), encode((queue.lane, queue.tenant))):
            turns[key] = max(queue.served, turns.get(key, 0))
    await db.bulk_write(
        TURNS,
        [UpdateOne({"_id": key}, {"$max": {"served": served}}, upsert=True) for key, served in turns.items()],
    )


def _due_queues(waiting: WaitingQueues, now: int, request: ClaimRequest) -> tuple[list[str], frozenset[str]]:
    """Returns the keys of the queues with due rows, and the providers that the request does not list."""
    due, unlisted = [], set()
    for key, (due_at, _) in waiting.items():
        if due_at > now:
            continue
        _, tenant, outlet = read_queue_key(key)
        if request.tenant not in (None, tenant):
            continue
        if _is_listed(outlet, request):
            due.append(key)
        else:
            unlisted.add(outlet.partition("@")[0])
    return due, frozenset(unlisted)


def _is_listed(outlet: str, request: ClaimRequest) -> bool:
    return not request.only_listed or outlet.partition("@")[0] in request.providers


async def _limit_lanes(db: SessionDatabase, queues: Sequence[DueQueue]) -> list[DueQueue]:
    """Returns at most `_QUEUES_PER_LANE` queues of each lane, those of the least recently served tenants."""
    lanes: dict[str, list[DueQueue]] = {}
    for queue in queues:
        lanes.setdefault(queue.lane, []).append(queue)
    kept: list[DueQueue] = []
    for lane, found in lanes.items():
        if len(found) > _QUEUES_PER_LANE:
            places = {queue.tenant: encode((lane, queue.tenant)) for queue in found}
            stored = await db.find(TURNS, {"_id": {"$in": list(places.values())}})
            turn = {one["_id"]: int(one["served"]) for one in stored}
            found.sort(key=lambda queue: (turn.get(places[queue.tenant], 0), queue.served))
        kept += found[:_QUEUES_PER_LANE]
    return kept


async def _run(share: FairShare, fetched: DueRowReader) -> list[DueRow]:
    fetches = share.run()
    while True:
        try:
            queues, limit = next(fetches)
        except StopIteration as end:
            dealt: list[DueRow] = end.value
            return dealt
        await fetched.fetch(queues, limit)


async def _choose(
    db: SessionDatabase, now: int, request: ClaimRequest, capacity: ClaimCapacity, ids: Collection[str]
) -> list[DueRow]:
    """Returns those of the chosen rows that are due, within the capacity in the request."""
    condition: dict[str, Any] = {"_id": {"$in": sorted(ids)}, "due_at": {"$lte": now}}
    if request.tenant is not None:
        condition["tenant"] = request.tenant
    found = await db.find(
        NOTIFICATIONS,
        condition,
        fields=("due_at", "lane", "tenant", "outlet"),
        sort=(("due_at", 1), ("_id", 1)),
    )
    return [
        (one["due_at"], one["_id"], 0)
        for one in found
        if capacity.take(DueQueue(one["lane"], one["tenant"], one["outlet"], 0))
    ]
