"""Copies all data from one store to another, page by page, and compares the record counts at the end.

The target writes each page together with the progress in one transaction. If a copy is interrupted (by a
kill, a power cut or a lost connection), the next run resumes after the last committed page. Nothing is copied
twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

from msgspec import Struct

from homing.core.errors import StoreError
from homing.stores.common.change_effects import (
    GOAL_KEY,
    GOAL_SUMS,
    MINUTE_KEY,
    MINUTE_SUMS,
    ROLL_UP_KEY,
    SUMS,
)
from homing.stores.common.codec import ATTEMPT_FIELDS, CAUSE_FIELDS
from homing.stores.common.row_columns import ROW_FIELDS
from homing.stores.common.sinks import SINK_EVENT_FIELDS

Record = Sequence[Any]
"""Values of one record, in the order of its part's fields."""

Key = tuple[Any, ...]
"""Values of a part's key fields."""

CopyProgressCallback = Callable[[int, str], None]
"""Receives the number of records copied so far and the name of the part that is being copied."""


class CopyPart(Struct, frozen=True):
    """One kind of record that is copied."""

    name: str
    key: tuple[str, ...]
    """Fields that identify a record. Records are copied in the order of these fields."""
    rest: tuple[str, ...]
    """The fields that are not part of the key."""

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields, the key fields first."""
        return (*self.key, *self.rest)


NOTIFICATIONS = CopyPart("notifications", ("seq",), (*ROW_FIELDS, "message"))

COPY_PARTS = (
    NOTIFICATIONS,
    CopyPart("attempts", ("seq", "change"), (*ATTEMPT_FIELDS, "receipt_rank")),
    CopyPart("causes", ("seq", "change"), CAUSE_FIELDS),
    CopyPart("requests", ("tenant", "idempotency_key"), ("fingerprint", "batch_id", "ids", "created_at")),
    CopyPart("dedups", ("tenant", "dedup_key"), ("id", "accepted_at", "kept_until")),
    CopyPart(
        "receipts",
        ("number",),
        ("provider", "event_id", "provider_message_id", "notification_id", "received_at", "kept"),
    ),
    CopyPart("outbox", ("number",), ("id", "name", "tenant", "at", "notification_id", "payload")),
    CopyPart("sinks", ("name",), ("kind", "events", "durable", "registered_at", "last_seen_at")),
    CopyPart("sink_events", ("number",), SINK_EVENT_FIELDS),
    CopyPart("tallies", ("tenant", "status", "attempts"), ("count", "purged")),
    CopyPart("roll_ups", ROLL_UP_KEY, SUMS),
    CopyPart("minute_roll_ups", MINUTE_KEY, MINUTE_SUMS),
    CopyPart("goals", GOAL_KEY, GOAL_SUMS),
    CopyPart("registry", ("tenant", "kind", "key"), ("value", "version", "updated_at", "updated_by")),
    CopyPart("breakers", ("provider",), ("version", "breaker")),
)
"""All durable data, in the order of copying.

Leader leases, rate limit buckets and fairness turns are not copied. They start empty in the target.
"""


class CopyProgress(Struct, frozen=True):
    """How much of one part has been copied."""

    after: Key | None = None
    """Key of the last copied record. None before the first page."""
    number: int = 0
    """Number of copied records."""


class CopySource(Protocol):
    """A store that is copied from. No process writes to it meanwhile."""

    where: str
    """Name of the store for messages, without credentials."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def identity(self) -> str:
        """Returns a fingerprint of the store's data.

        A copy is resumed only if the fingerprint is unchanged.
        """

    async def active_workers(self) -> tuple[str, ...]:
        """Returns the workers that currently hold a lease in the store."""

    async def counts(self) -> Mapping[str, int]:
        """Returns the number of records per part name."""

    async def page(self, part: CopyPart, after: Key | None, limit: int) -> Sequence[Record]:
        """Returns at most `limit` records that follow the key `after`, or the first ones if it is None.

        A record of `NOTIFICATIONS` is `(seq, row, message)`.
        """


class CopyTarget(Protocol):
    """A store that is copied to."""

    where: str
    """Name of the store for messages, without credentials."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def begin(self, source: str) -> Mapping[str, CopyProgress] | None:
        """Starts or resumes the copy of the source with this identity.

        Returns the progress per part name, or None if the copy is already complete. Raises `StoreError` if
        the target holds other data.
        """

    async def take(self, part: CopyPart, records: Sequence[Record], progress: CopyProgress) -> None:
        """Writes a page and the new progress in one transaction."""

    async def counts(self) -> Mapping[str, int]:
        """Returns the number of records per part name."""

    async def end(self, source: str) -> None:
        """Marks the copy as complete. Workers may use the store from now on."""


class PreparedCopy(Struct, frozen=True):
    """A copy that has been checked and can start or resume."""

    identity: str
    """Fingerprint of the source's data, from `CopySource.identity`."""
    counts: Mapping[str, int]
    """Number of records in the source, per part name."""
    progress: Mapping[str, CopyProgress] | None
    """Progress per part name. None if an earlier run has completed the copy."""

    @property
    def total(self) -> int:
        """Number of records in the source."""
        return sum(self.counts.values())

    @property
    def there(self) -> int:
        """Number of records that the target already holds."""
        if self.progress is None:
            return self.total
        return sum(progress.number for progress in self.progress.values())


class StoreCopy:
    """Copies a source to a target. Both stores are open inside the `async with` block."""

    def __init__(self, source: CopySource, target: CopyTarget, *, page: int) -> None:
        self._source = source
        self._target = target
        self._page = page

    async def __aenter__(self) -> Self:
        await self._source.open()
        try:
            await self._target.open()
        except BaseException:
            await self._source.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._target.close()
        await self._source.close()

    @property
    def where(self) -> str:
        """Name of the target for messages, without credentials."""
        return self._target.where

    async def begin(self) -> PreparedCopy:
        """Checks both stores and returns the state of the copy.

        Raises `StoreError` if one of the stores is in use or the target holds other data.
        """
        await _refuse_while_at_work(self._source)
        identity = await self._source.identity()
        return PreparedCopy(identity, await self._source.counts(), await self._target.begin(identity))

    async def copy_remaining(self, begun: PreparedCopy, *, on_progress: CopyProgressCallback) -> int:
        """Copies the missing records, compares the counts of both stores and completes the copy.

        Returns the number of records copied by this run. Raises `StoreError` if the counts differ.
        """
        if begun.progress is None:
            return 0
        copied = 0
        for part in COPY_PARTS:
            progress = begun.progress.get(part.name, CopyProgress())
            while records := await self._source.page(part, progress.after, self._page):
                last = tuple(records[-1][: len(part.key)])
                progress = CopyProgress(last, progress.number + len(records))
                await self._target.take(part, records, progress)
                copied += len(records)
                on_progress(begun.there + copied, part.name)
        _compare(begun.counts, await self._target.counts(), self._source.where, self._target.where)
        if await self._source.identity() != begun.identity:
            raise StoreError(
                f"{self._source.where} was in use during the copy. Empty {self.where} and copy again."
            )
        await self._target.end(begun.identity)
        return copied


async def _refuse_while_at_work(source: CopySource) -> None:
    workers = await source.active_workers()
    if workers:
        names = ", ".join(workers[:3]) + (" and others" if len(workers) > 3 else "")
        raise StoreError(
            f"{source.where} is in use by {names}. Stop all workers and senders, wait until their leases "
            "have ended (at most 3 minutes after a clean stop, by default), and copy again."
        )


def _compare(expected: Mapping[str, int], found: Mapping[str, int], source: str, target: str) -> None:
    wrong = [
        f"{name}: {number:,} in {source}, {found.get(name, 0):,} in {target}"
        for name, number in expected.items()
        if found.get(name, 0) != number
    ]
    if wrong:
        raise StoreError(
            f"The copy is incomplete ({'; '.join(wrong)}). One of the stores may have been in use. "
            f"Empty {target} and copy again."
        )
