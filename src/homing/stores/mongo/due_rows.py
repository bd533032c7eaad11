"""Reads the due rows of queues for a claim, some of them before it is known which queues have due rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from homing.core.routing.fair_share import BEFORE_FIRST_ROW, DueQueue, DueRow
from homing.stores.mongo.documents import Document, queue_key
from homing.stores.mongo.schema import NOTIFICATIONS
from homing.stores.mongo.transaction import SessionDatabase

QUEUES_PER_FETCH = 50
"""Number of queues whose rows are fetched with one command."""

_MAX_WHOLE_ROWS = 1000
"""A fetch of at most this many rows reads whole rows. A larger one reads only what the choice depends on,
because many queues with a row each would otherwise cost more than the rows that are chosen."""

_CHOICE_FIELDS = ("queue", "due_at")
"""Fields of a row that the choice depends on, besides its id. The index `due` has them."""


def reads_whole_rows(queues: Sequence[DueQueue], limit: int) -> bool:
    """Returns True if a fetch of at most `limit` rows of each queue reads whole rows."""
    return len(queues) * limit <= _MAX_WHOLE_ROWS


class RowsToReadAhead(NamedTuple):
    """The rows that a claim reads at the same time as the queues."""

    queues: Sequence[DueQueue]
    """The queues. Earlier rows than `after` are left out: for minutes, the server has to step over the index
    entry of each row that was leased, so that the first entry of a busy queue is the most expensive one."""
    limit: int
    """Maximum number of rows of each queue."""
    until: int
    """Latest due time of these rows. It should be later than the time of the claim, but need not be."""


class RowsAhead:
    """Rows that were read at the same time as the queues."""

    def __init__(self, wanted: RowsToReadAhead, found: Iterable[Document]) -> None:
        self._limit = wanted.limit
        self._until = wanted.until
        self._rows: dict[str, list[Document]] = {_key_of(queue): [] for queue in wanted.queues}
        for one in found:
            self._rows[one["queue"]].append(one)
        for rows in self._rows.values():
            rows.sort(key=_place)

    def first(self, key: str, limit: int, now: int, earliest: int) -> list[Document] | None:
        """Returns the first due rows of a queue, at most `limit`, or None if some may be missing.

        `earliest` is the due time of the queue's first row, which was read at the same time.
        """
        rows = self._rows.get(key)
        if not rows or rows[0]["due_at"] > earliest:  # there is a row that was left out or added meanwhile
            return None
        due = [one for one in rows if one["due_at"] <= now]
        is_complete = len(due) < len(rows) or (len(rows) < self._limit and now <= self._until)
        return due[:limit] if is_complete or len(due) >= limit else None


async def read_ahead(db: SessionDatabase, wanted: RowsToReadAhead) -> RowsAhead:
    """Reads rows before it is known which queues have due rows."""
    conditions = [
        {"queue": _key_of(queue), "due_at": {"$gte": queue.after[0], "$lte": wanted.until}}
        for queue in wanted.queues
    ]
    return RowsAhead(wanted, await _first_rows(db, conditions, wanted.limit, whole=True))


class DueRowReader:
    """The due rows that one claim reads, queue by queue."""

    def __init__(
        self,
        db: SessionDatabase,
        now: int,
        skipped: Collection[str] = (),
        ahead: RowsAhead | None = None,
        earliest: Mapping[str, int] | None = None,
    ) -> None:
        """`skipped` are the ids of rows that are left out. They must not be among the rows read ahead.

        `earliest` has the due time of the first row of each queue, by the key of the queue.
        """
        self._db = db
        self._now = now
        self._skipped = sorted(skipped)
        self._ahead = ahead
        self._earliest = earliest or {}
        self.whole: dict[str, Document] = {}
        """Documents by id, of the rows that were read as a whole."""

    def keep(self, documents: Iterable[Document]) -> None:
        """Adds documents of whole rows."""
        self.whole.update((one["_id"], one) for one in documents)

    async def fetch(self, queues: Sequence[DueQueue], limit: int) -> None:
        """Fetches the next due rows of these queues, at most `limit` of each."""
        queues = [queue for queue in queues if not self._fill_from_ahead(queue, limit)]
        reads_whole = reads_whole_rows(queues, limit)
        for start in range(0, len(queues), QUEUES_PER_FETCH):
            await self._fetch(queues[start : start + QUEUES_PER_FETCH], limit, reads_whole)

    def _fill_from_ahead(self, queue: DueQueue, limit: int) -> bool:
        """Fills a queue with rows that were read ahead. Returns False if they do not suffice."""
        key = _key_of(queue)
        if self._ahead is None or queue.after != BEFORE_FIRST_ROW or key not in self._earliest:
            return False
        found = self._ahead.first(key, limit, self._now, self._earliest[key])
        if found is None:
            return False
        self.keep(found)
        queue.fill([(*_place(one), 0) for one in found], limit)
        return True

    async def _fetch(self, queues: Sequence[DueQueue], limit: int, reads_whole: bool) -> None:
        rows: dict[str, list[DueRow]] = {_key_of(queue): [] for queue in queues}
        conditions = [self._due_rows(queue) for queue in queues]
        for one in await _first_rows(self._db, conditions, limit, reads_whole):
            rows[one["queue"]].append((*_place(one), 0))
            if reads_whole:
                self.whole[one["_id"]] = one
        for queue in queues:
            found = rows[_key_of(queue)]
            found.sort()
            queue.fill(found, limit)

    def _due_rows(self, queue: DueQueue) -> Document:
        """Returns the condition for the due rows that were not fetched yet."""
        after_due, after_id = queue.after[:2]
        key = _key_of(queue)
        condition: Document = {
            "queue": key,
            "due_at": {"$lte": self._now, "$gte": max(after_due, self._earliest.get(key, after_due))},
        }
        if self._skipped:
            condition["_id"] = {"$nin": self._skipped}
        if after_id:
            # The rows that are due at the same time as the last one and were fetched before are left out.
            condition["$expr"] = {
                "$not": {"$and": [{"$eq": ["$due_at", after_due]}, {"$lte": ["$_id", after_id]}]}
            }
        return condition


def _key_of(queue: DueQueue) -> str:
    return queue_key(queue.lane, queue.tenant, queue.outlet)


def _place(row: Document) -> tuple[int, str]:
    return row["due_at"], row["_id"]


async def _first_rows(
    db: SessionDatabase, conditions: Sequence[Document], limit: int, whole: bool
) -> list[Document]:
    """Returns the earliest rows of several queues, at most `limit` for each condition."""
    if len(conditions) == 1:  # without a pipeline, the server needs a fraction of the time per row
        return await db.find(
            NOTIFICATIONS,
            conditions[0],
            fields=None if whole else _CHOICE_FIELDS,
            sort=(("due_at", 1), ("_id", 1)),
            limit=limit,
        )
    first, *others = ([*_earliest(one, limit), *_projection(whole)] for one in conditions)
    unions = ({"$unionWith": {"coll": NOTIFICATIONS, "pipeline": one}} for one in others)
    return await db.aggregate(NOTIFICATIONS, [*first, *unions])


def _earliest(condition: Document, limit: int) -> list[Document]:
    return [{"$match": condition}, {"$sort": {"due_at": 1, "_id": 1}}, {"$limit": limit}]


def _projection(whole: bool) -> list[Document]:
    return [] if whole else [{"$project": dict.fromkeys(_CHOICE_FIELDS, 1)}]
