"""What the operations of the store use: a database within one session, with the time and sinks of a call.

Homing's own sessions are asynchronous. A caller may also join with a synchronous session, whose calls run on
the thread of the caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from bson.int64 import Int64

from homing.core.lifecycle.outcomes import FailureReport
from homing.stores.common.sinks import NO_SINKS, SinkBook
from homing.stores.mongo.documents import Document

Sort = Sequence[tuple[str, int]]


class OutdatedRows(Exception):
    """Raised by an operation whose cached data turned out to be outdated: the transaction is run again."""


class SessionDatabase(Protocol):
    """The calls that operations make. All of them belong to one session, and a transaction if it has one."""

    async def find(
        self,
        collection: str,
        filter: Mapping[str, Any],
        *,
        fields: Sequence[str] | None = None,
        sort: Sort = (),
        limit: int = 0,
    ) -> list[Document]:
        """Returns the documents that match. `limit` 0 means all. Without `fields`, they are complete."""

    async def aggregate(self, collection: str, pipeline: Sequence[Mapping[str, Any]]) -> list[Document]:
        """Returns the documents that a pipeline produces."""

    async def insert(self, collection: str, documents: Sequence[Document]) -> None:
        """Inserts documents. Does nothing if there are none."""

    async def bulk_write(self, collection: str, operations: Sequence[Any]) -> int:
        """Performs updates and returns how many documents matched or were created."""

    async def update(
        self, collection: str, filter: Mapping[str, Any], update: Any, *, upsert: bool = False
    ) -> int:
        """Updates all documents that match, and returns how many there were or were created."""

    async def delete(self, collection: str, filter: Mapping[str, Any]) -> int:
        """Deletes the documents that match, and returns how many there were."""


def _plain(value: Any) -> Any:
    """Returns a value with Python's own integers. The driver returns those of 64 bits as another class."""
    if value.__class__ is Int64:
        return int(value)
    if value.__class__ is dict:
        for name, inner in value.items():
            if inner.__class__ in _TO_CONVERT:
                value[name] = _plain(inner)
    elif value.__class__ is list:
        return [_plain(inner) if inner.__class__ in _TO_CONVERT else inner for inner in value]
    return value


_TO_CONVERT = frozenset({Int64, dict, list})


class AsyncDatabase:
    """A `SessionDatabase` over PyMongo's asynchronous client."""

    def __init__(self, database: Any, session: Any = None) -> None:
        self._database = database
        self._session = session

    async def find(
        self,
        collection: str,
        filter: Mapping[str, Any],
        *,
        fields: Sequence[str] | None = None,
        sort: Sort = (),
        limit: int = 0,
    ) -> list[Document]:
        cursor = self._database[collection].find(
            filter, fields, sort=list(sort) or None, limit=limit, session=self._session
        )
        found: list[Document] = _plain(await cursor.to_list())
        return found

    async def aggregate(self, collection: str, pipeline: Sequence[Mapping[str, Any]]) -> list[Document]:
        cursor = await self._database[collection].aggregate(list(pipeline), session=self._session)
        found: list[Document] = _plain(await cursor.to_list())
        return found

    async def insert(self, collection: str, documents: Sequence[Document]) -> None:
        if documents:
            await self._database[collection].insert_many(documents, session=self._session)

    async def bulk_write(self, collection: str, operations: Sequence[Any]) -> int:
        if not operations:
            return 0
        result = await self._database[collection].bulk_write(
            list(operations), ordered=True, session=self._session
        )
        return int(result.matched_count + result.upserted_count)

    async def update(
        self, collection: str, filter: Mapping[str, Any], update: Any, *, upsert: bool = False
    ) -> int:
        result = await self._database[collection].update_many(
            filter, update, upsert=upsert, session=self._session
        )
        return int(result.matched_count) + (result.upserted_id is not None)

    async def delete(self, collection: str, filter: Mapping[str, Any]) -> int:
        result = await self._database[collection].delete_many(filter, session=self._session)
        return int(result.deleted_count)


class CallerDatabase:
    """A `SessionDatabase` over the caller's synchronous session, whose calls run where the caller says."""

    def __init__(
        self, database: Any, session: Any, run: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> None:
        self._database = database
        self._session = session
        self._run = run

    async def find(
        self,
        collection: str,
        filter: Mapping[str, Any],
        *,
        fields: Sequence[str] | None = None,
        sort: Sort = (),
        limit: int = 0,
    ) -> list[Document]:
        found = await self._run(
            lambda: list(
                self._database[collection].find(
                    filter, fields, sort=list(sort) or None, limit=limit, session=self._session
                )
            )
        )
        return list(_plain(found))

    async def aggregate(self, collection: str, pipeline: Sequence[Mapping[str, Any]]) -> list[Document]:
        found = await self._run(
            lambda: list(self._database[collection].aggregate(list(pipeline), session=self._session))
        )
        return list(_plain(found))

    async def insert(self, collection: str, documents: Sequence[Document]) -> None:
        if documents:
            await self._run(lambda: self._database[collection].insert_many(documents, session=self._session))

    async def bulk_write(self, collection: str, operations: Sequence[Any]) -> int:
        if not operations:
            return 0
        result = await self._run(
            lambda: self._database[collection].bulk_write(
                list(operations), ordered=True, session=self._session
            )
        )
        return int(result.matched_count + result.upserted_count)

    async def update(
        self, collection: str, filter: Mapping[str, Any], update: Any, *, upsert: bool = False
    ) -> int:
        result = await self._run(
            lambda: self._database[collection].update_many(
                filter, update, upsert=upsert, session=self._session
            )
        )
        return int(result.matched_count) + (result.upserted_id is not None)

    async def delete(self, collection: str, filter: Mapping[str, Any]) -> int:
        result = await self._run(
            lambda: self._database[collection].delete_many(filter, session=self._session)
        )
        return int(result.deleted_count)


class MongoTransaction:
    """One transaction, or one reading call: its database, its time and the sinks as of its snapshot."""

    __slots__ = ("db", "failures", "now", "settling", "shard", "sinks")

    def __init__(
        self,
        db: SessionDatabase,
        now: int,
        *,
        settling: bool = False,
        sinks: SinkBook = NO_SINKS,
        shard: int = 0,
    ) -> None:
        self.db = db
        self.now = now
        self.settling = settling
        """True shortly after a step of the clock was accepted. See `StoreTime`."""
        self.sinks = sinks
        self.shard = shard
        """Number of the counters that this transaction adds to. Others use other counters meanwhile."""
        self.failures: list[FailureReport] = []
        """Failures that receipts have reported, for the result of the call."""

    @property
    def subscribed(self) -> frozenset[str]:
        """Names of the events that at least one sink gets."""
        return self.sinks.subscribed
