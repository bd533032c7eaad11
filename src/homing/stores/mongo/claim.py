"""Claims due rows: finds the queues with due rows, shares the capacity fairly and leases the chosen rows.

A queue has no document of its own. The index `due` has the rows of each queue together, the earliest first,
and MongoDB reads only the first entry of each queue (a distinct scan). So a claim costs as much with a
million waiting rows as with a thousand.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from pymongo import UpdateOne

from homing.core.lifecycle.claims import ClaimBatch, ClaimRequest
from homing.core.notifications import Message
from homing.core.routing.fair_share import ClaimCapacity, DueQueue, DueRow, FairShare, TenantTurns
from homing.stores.common.codec import encode
from homing.stores.mongo.change_recorder import messages_of
from homing.stores.mongo.documents import Document, queue_key, read_queue_key
from homing.stores.mongo.leases import NewLeases
from homing.stores.mongo.schema import NOTIFICATIONS, TURNS
from homing.stores.mongo.transaction import MongoTransaction, SessionDatabase, both

_QUEUES_PER_LANE = 2000
"""Maximum number of due queues that one claim considers per lane. The least recently served go first."""

_QUEUES_PER_FETCH = 50
"""Number of queues whose rows are fetched with one command."""

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
        self.documents: dict[str, Document] = {}
        self.messages: dict[str, Message] = {}

    @property
    def may_empty_queues(self) -> bool:
        """True if a queue has no due rows besides the chosen ones, so that its next due time is not known."""
        return self.share is not None and any(
            not queue.more and not queue.rows for queue in self.share.looked()
        )

    def leases(self, request: ClaimRequest) -> NewLeases:
        """Returns the leases of the rows that were still there when they were read."""
        found = [self.documents[id] for id in self.due_times if id in self.documents and id in self.messages]
        return NewLeases(found, request, self.now)

    def empty_batch(self) -> ClaimBatch:
        """Returns the result of a claim that leases nothing."""
        return ClaimBatch(claims=(), now=self.now, next_due_at=self.next_due_at, unlisted=self.unlisted)


async def plan(
    tx: MongoTransaction,
    request: ClaimRequest,
    turns: TenantTurns,
    found: QueuesAndSerial,
    skipped: Collection[str] = (),
) -> ClaimPlan:
    """Chooses the rows to lease, within the capacity in the request, and reads them. It writes nothing.

    `skipped` are the ids of rows that it leaves out.
    `tx` has no transaction. The write of the leases compares the state of the rows.
    """
    chosen = await _choose_rows(tx, request, turns, *found, skipped)
    chosen.waiting = found[0]
    if ids := list(chosen.due_times):
        still_due = {"_id": {"$in": ids}, "due_at": {"$lte": tx.now}}
        documents, chosen.messages = await both(tx.db.find(NOTIFICATIONS, still_due), messages_of(tx, ids))
        chosen.documents = {one["_id"]: one for one in documents}
    return chosen


async def _choose_rows(
    tx: MongoTransaction,
    request: ClaimRequest,
    turns: TenantTurns,
    waiting: WaitingQueues,
    serial: int,
    skipped: Collection[str],
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
    chosen = ClaimPlan(now, share, await _run(tx.db, now, share, skipped), unlisted)
    if not chosen.due_times:
        chosen.next_due_at = next_due_at(waiting, now, request)
    return chosen


async def read_queues(db: SessionDatabase, request: ClaimRequest) -> QueuesAndSerial:
    """Reads what a claim needs before it can choose. Nothing if it names its rows."""
    if request.ids is not None:
        return {}, 0
    waiting, last = await both(waiting_queues(db, request), db.find(TURNS, {"_id": _SERIAL}))
    return waiting, int(last[0]["served"]) if last else 0


async def waiting_queues(db: SessionDatabase, request: ClaimRequest) -> WaitingQueues:
    """Returns the queues of the lanes in the request that have waiting rows."""
    found = await db.aggregate(
        NOTIFICATIONS,
        (
            {"$match": {"queue": {"$gt": ""}}},
            {"$sort": {"queue": 1, "due_at": 1, "_id": 1}},
            {"$group": {"_id": "$queue", "due_at": {"$first": "$due_at"}}},
            {"$lookup": {"from": TURNS, "localField": "_id", "foreignField": "_id", "as": "turn"}},
        ),
    )
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


async def _run(db: SessionDatabase, now: int, share: FairShare, skipped: Collection[str]) -> list[DueRow]:
    fetches = share.run()
    while True:
        try:
            queues, limit = next(fetches)
        except StopIteration as end:
            dealt: list[DueRow] = end.value
            return dealt
        for start in range(0, len(queues), _QUEUES_PER_FETCH):
            await _fetch(db, now, queues[start : start + _QUEUES_PER_FETCH], limit, skipped)


async def _fetch(
    db: SessionDatabase, now: int, queues: Sequence[DueQueue], limit: int, skipped: Collection[str]
) -> None:
    """Fetches the next due rows of some queues, at most `limit` of each."""
    pipelines = [_due_rows(queue, now, limit, number, skipped) for number, queue in enumerate(queues)]
    first, *others = pipelines
    pipeline = [*first, *({"$unionWith": {"coll": NOTIFICATIONS, "pipeline": one}} for one in others)]
    rows: list[list[DueRow]] = [[] for _ in queues]
    for one in await db.aggregate(NOTIFICATIONS, pipeline):
        rows[one["number"]].append((one["due_at"], one["_id"], 0))
    for queue, found in zip(queues, rows, strict=True):
        found.sort()
        queue.fill(found, limit)


def _due_rows(queue: DueQueue, now: int, limit: int, number: int, skipped: Collection[str]) -> list[Document]:
    after_due, after_id = queue.after[:2]
    condition: Document = {
        "queue": queue_key(queue.lane, queue.tenant, queue.outlet),
        "due_at": {"$lte": now, "$gte": after_due},
    }
    if skipped:
        condition["_id"] = {"$nin": sorted(skipped)}
    if after_id:
        # The rows that are due at the same time as the last one and were fetched before are left out.
        condition["$expr"] = {
            "$not": {"$and": [{"$eq": ["$due_at", after_due]}, {"$lte": ["$_id", after_id]}]}
        }
    return [
        {"$match": condition},
        {"$sort": {"due_at": 1, "_id": 1}},
        {"$limit": limit},
        {"$project": {"due_at": 1, "number": {"$literal": number}}},
    ]


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
