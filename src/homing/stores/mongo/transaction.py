"""What the operations of the store use: a database within one session, with the time and sinks of a call.

Homing's own sessions are asynchronous. A caller may also join with a synchronous session, whose calls run on
the thread of the caller.
"""

from __future__ import annotations

import random
from asyncio import CancelledError, current_task, gather
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from types import TracebackType
from typing import Any, TypeVar

from bson.int64 import Int64

from homing.core.lifecycle.outcomes import FailureReport
from homing.stores.common.sinks import NO_SINKS, SinkBook
from homing.stores.mongo.documents import Document

T = TypeVar("T")
U = TypeVar("U")

Sort = Sequence[tuple[str, int]]

Runner = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a call of a synchronous session, and returns its result."""

_REPLY_ROWS = 10_000
"""Number of documents in the first reply to a query. The server's default of 101 costs more round trips."""


class OutdatedRows(Exception):
    """Raised by an operation whose cached data turned out to be outdated: the transaction is run again."""


def _plain(value: Any) -> Any:
    """Returns a value with Python's own integers. The driver returns those of 64 bits as another class."""
    if value.__class__ is Int64:
        return int(value)
    if value.__class__ is dict:
        for name, inner in value.items():
            kind = inner.__class__
            if kind is Int64:  # not by a call, because rows have many of them
                value[name] = int(inner)
            elif kind is dict or kind is list:
                value[name] = _plain(inner)
    elif value.__class__ is list:
        return [_plain(inner) if inner.__class__ in _TO_CONVERT else inner for inner in value]
    return value


_TO_CONVERT = frozenset({Int64, dict, list})


class SessionDatabase:
    """The calls that operations make. All of them belong to one session, and a transaction if it has one."""

    def __init__(self, database: Any, session: Any = None, run: Runner | None = None) -> None:
        """`run` runs the calls of a synchronous session, on the thread of its owner."""
        self._database = database
        self._session = session
        self._run = run

    @property
    def has_session(self) -> bool:
        """True if the calls belong to a session, so that they may be in a transaction."""
        return self._session is not None

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
        order = list(sort) or None
        found = await self._do(
            lambda: (
                self._database[collection]
                .find(filter, fields, sort=order, limit=limit, batch_size=_REPLY_ROWS, session=self._session)
                .to_list()
            )
        )
        return list(_plain(found))

    async def aggregate(self, collection: str, pipeline: Sequence[Mapping[str, Any]]) -> list[Document]:
        """Returns the documents that a pipeline produces."""

        def call() -> Any:
            cursor = self._database[collection].aggregate(
                list(pipeline), batchSize=_REPLY_ROWS, session=self._session
            )
            return cursor if isawaitable(cursor) else cursor.to_list()

        found = await self._do(call)
        return list(_plain(found if isinstance(found, list) else await found.to_list()))

    async def insert(self, collection: str, documents: Sequence[Document]) -> None:
        """Inserts documents. Does nothing if there are none."""
        if documents:
            await self._do(lambda: self._database[collection].insert_many(documents, session=self._session))

    async def bulk_write(self, collection: str, operations: Sequence[Any], *, ordered: bool = True) -> int:
        """Performs writes and returns how many documents were matched, created or deleted.

        Unless `ordered`, a write that fails does not keep the others from being performed.
        """
        if not operations:
            return 0
        result = await self._do(
            lambda: self._database[collection].bulk_write(
                list(operations), ordered=ordered, session=self._session
            )
        )
        return int(result.matched_count + result.upserted_count + result.deleted_count)

    async def update(
        self, collection: str, filter: Mapping[str, Any], update: Any, *, upsert: bool = False
    ) -> int:
        """Updates all documents that match, and returns how many there were or were created."""
        result = await self._do(
            lambda: self._database[collection].update_many(
                filter, update, upsert=upsert, session=self._session
            )
        )
        return int(result.matched_count) + (result.upserted_id is not None)

    async def delete(self, collection: str, filter: Mapping[str, Any]) -> int:
        """Deletes the documents that match, and returns how many there were."""
        result = await self._do(lambda: self._database[collection].delete_many(filter, session=self._session))
        return int(result.deleted_count)

    async def _do(self, call: Callable[[], Any]) -> Any:
        """Makes one call. The methods of the asynchronous client return coroutines, the others results."""
        return await completed(call() if self._run is None else await self._run(call))


async def completed(result: Any) -> Any:
    """Returns the result of a call of either client: awaited, if it is that of the asynchronous one."""
    return await result if isawaitable(result) else result


async def both(one: Awaitable[T], other: Awaitable[U]) -> tuple[T, U]:
    """Awaits two calls outside of transactions at the same time. If one fails, waits for the other too."""
    first, second = await gather(one, other, return_exceptions=True)
    if isinstance(first, BaseException):
        raise first
    if isinstance(second, BaseException):
        raise second
    return first, second


class SwallowedCancellation:
    """Raises `CancelledError` at the end of a `with` block whose task was cancelled meanwhile.

    Up to Python 3.11, `asyncio.wait_for` drops a cancellation that comes while the awaited task ends, and
    PyMongo sends every message with it. A background task that repeats such calls would never end.
    """

    __slots__ = ("_before", "_task")

    def __enter__(self) -> None:
        self._task = current_task()
        self._before = 0 if self._task is None else self._task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_cancelled = self._task is not None and self._task.cancelling() > self._before
        if is_cancelled and (error is None or isinstance(error, Exception)):
            raise CancelledError


SHARDS = 16
"""Number of documents that share each counter. A transaction adds to those of one number, so that
transactions do not wait for each other. Readers add them up."""


class CounterShards:
    """The numbers of the counters that the transactions of this process add to.

    A number whose last transaction met no other is taken first. So the processes come to use different ones,
    and each of them few, which keeps the counters small.
    """

    def __init__(self) -> None:
        self._free = random.sample(range(SHARDS), SHARDS)
        """Numbers that no transaction of this process uses, the next one last."""

    def take(self) -> int:
        """Returns a number for a transaction. If all are in use, two transactions share one."""
        return self._free.pop() if self._free else random.randrange(SHARDS)

    def give_back(self, shard: int, *, met_another: bool) -> None:
        """Ends the use of a number. `met_another` is True if another transaction may use it too."""
        if shard not in self._free:
            self._free.insert(0 if met_another else len(self._free), shard)


class MongoTransaction:
    """One transaction, or one reading call: its database, its time and the sinks as of its snapshot."""

    __slots__ = ("beside", "db", "failures", "now", "settling", "shard", "sinks")

    def __init__(
        self,
        db: SessionDatabase,
        now: int,
        *,
        settling: bool = False,
        sinks: SinkBook = NO_SINKS,
        shard: int = 0,
        beside: Sequence[Document] | None = None,
    ) -> None:
        self.beside = beside
        """What the pipeline beside the time has found. None if there was none."""
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
