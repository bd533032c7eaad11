"""Finds the notifications that match a filter, in the order of their ids.

What never changes, such as the address, is indexed in the messages, and everything else in the rows. A search
by both reads the ids from one collection, and compares the rows with the rest of the filter page by page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

from msgspec import Struct

from homing.core.notifications import Filter, Status
from homing.stores.common.codec import encode, round_up_to_ms
from homing.stores.mongo.documents import RARE_STATUSES, Document
from homing.stores.mongo.schema import ATTEMPTS, MESSAGES, NOTIFICATIONS
from homing.stores.mongo.transaction import MongoTransaction, Sort

NEWEST_FIRST: Sort = (("_id", -1),)

_INDEXED_IN_MESSAGES = ("batch_id", "address")

_EQUAL = ("channel", "type", "provider", "reason", "error_code")

_MAX_IDS = 10_000
"""Maximum number of notifications of one recipient that a search considers, the newest first."""

_MAX_PAGE = 10_000
"""Maximum number of rows that are compared with a filter at once."""


class Search(Struct, frozen=True):
    """A filter as conditions on the two collections."""

    messages: Document
    """Condition on the messages, by which an index finds them."""
    rows: Document
    """Condition on the rows. Empty if all rows of the found messages match."""
    ids: Document
    """Condition on the id in both collections. Empty if any id may match."""
    starts_with_rows: bool
    """True if the indexes of the rows find the notifications in fewer steps."""

    async def pages(
        self,
        tx: MongoTransaction,
        size: int,
        *,
        oldest_first: bool,
        after: str | None = None,
        until: str | None = None,
    ) -> AsyncIterator[list[str]]:
        """Yields the ids of the matching notifications in pages of at most `size`, which grow if few match.

        They begin beyond the id `after`, and end with the id `until`.
        """
        order: Sort = (("_id", 1),) if oldest_first else NEWEST_FIRST
        beyond, up_to = ("$gt", "$lte") if oldest_first else ("$lt", "$gte")
        parts: list[Document] = [{"_id": self.ids}] if self.ids else []
        if until is not None:
            parts.append({"_id": {up_to: until}})
        while True:
            within = [*parts, *([] if after is None else [{"_id": {beyond: after}}])]
            limits: Document = {"$and": within} if within else {}
            if self.starts_with_rows:
                found = await tx.db.find(
                    NOTIFICATIONS, self.messages | self.rows | limits, fields=("_id",), sort=order, limit=size
                )
                matching = [one["_id"] for one in found]
            else:
                found = await tx.db.find(
                    MESSAGES, self.messages | limits, fields=("_id",), sort=order, limit=size
                )
                matching = await self._matching(tx, [one["_id"] for one in found])
            yield matching
            if len(found) < size:
                return
            after = found[-1]["_id"]
            if len(matching) * 2 < size:
                size = max(size, min(4 * size, _MAX_PAGE))

    async def _matching(self, tx: MongoTransaction, ids: list[str]) -> list[str]:
        """Returns those of the ids whose rows match, in the same order."""
        if not self.rows or not ids:
            return ids
        condition = {"_id": {"$in": ids}, **self.rows}
        kept = {one["_id"] for one in await tx.db.find(NOTIFICATIONS, condition, fields=("_id",))}
        return [id for id in ids if id in kept]


async def search_for(
    tx: MongoTransaction, tenant: str, filter: Filter, statuses: Collection[Status]
) -> Search:
    """Returns the search for a filter, restricted to these statuses. No statuses means all.

    `created_until` is exclusive.
    """
    messages: Document = {"tenant": tenant}
    rows: Document = {}
    is_rare = bool(statuses) and RARE_STATUSES.issuperset(statuses)
    if statuses:
        rows["rare" if is_rare else "status"] = {"$in": [status.value for status in statuses]}
    for name in _INDEXED_IN_MESSAGES:
        value = getattr(filter, name)
        if value is not None:
            messages[name] = value
    for name in _EQUAL:
        value = getattr(filter, name)
        if value is not None:
            rows[name] = getattr(value, "_value_", value)
    if filter.acknowledged is not None:
        rows["acknowledged_at"] = {"$exists": filter.acknowledged}
    if created := _created_range(filter):
        rows["created_at"] = created
    if filter.metadata:
        messages["metadata"] = {"$all": [encode(pair) for pair in filter.metadata.items()]}
    ids: Document = {}
    if (permitted := await _permitted_ids(tx, tenant, filter)) is not None:
        ids["$in"] = permitted
    if filter.id_prefix is not None:
        ids |= {"$gte": filter.id_prefix, "$lt": f"{filter.id_prefix}~"}
    is_found_by_messages = len(messages) > 1 or bool(ids)
    return Search(messages, rows, ids, starts_with_rows=is_rare and not is_found_by_messages)


def _created_range(filter: Filter) -> Document:
    created: Document = {}
    if filter.created_from is not None:
        created["$gte"] = round_up_to_ms(filter.created_from)
    if filter.created_until is not None:
        created["$lt"] = round_up_to_ms(filter.created_until)
    return created


async def _permitted_ids(tx: MongoTransaction, tenant: str, filter: Filter) -> list[str] | None:
    """Returns the ids that a search by recipient or provider message permits. None if it permits all."""
    permitted: list[set[str]] = []
    if filter.recipient_id is not None:
        key = encode((tenant, filter.recipient_id))
        found = await tx.db.find(
            MESSAGES, {"recipient": key}, fields=("_id",), sort=NEWEST_FIRST, limit=_MAX_IDS
        )
        permitted.append({one["_id"] for one in found})
    if filter.provider_message_id is not None:
        condition = {"provider_message_id": filter.provider_message_id}
        found = await tx.db.find(ATTEMPTS, condition, fields=("of",), limit=_MAX_IDS)
        permitted.append({one["of"] for one in found})
    return sorted(set.intersection(*permitted)) if permitted else None
