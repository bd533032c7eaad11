"""Moving everything from one store to another: in pages, resumable, and counted at the end.

The target writes each page and how far it has come in one transaction. So whenever a copy ends (a kill, a
power cut, a lost connection), the next one goes on where the last page was committed, and nothing is doubled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

from msgspec import Struct

from homing.core.errors import StoreError
from homing.stores.codec import ATTEMPT_FIELDS, CAUSE_FIELDS, ROW_FIELDS

Record = Sequence[Any]
"""One record, in the order of its part's fields."""
Key = tuple[Any, ...]
Told = Callable[[int, str], None]
"""Hears how many records are there so far, and of which part the last ones were."""

_HOUR_KEY = ("hour_at", "tenant", "channel", "provider")
_SUMS = ("accepted", "sent", "delivered", "failed", "retried", "attempts", "bounced")


class Part(Struct, frozen=True):
    """One kind of record. `key` are the first of its fields, and the order in which it is copied."""

    name: str
    key: tuple[str, ...]
    rest: tuple[str, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.key, *self.rest)


NOTIFICATIONS = Part("notifications", ("seq",), (*ROW_FIELDS, "message"))
PARTS = (
    NOTIFICATIONS,
    Part("attempts", ("seq", "change"), (*ATTEMPT_FIELDS, "receipt_rank")),
    Part("causes", ("seq", "change"), CAUSE_FIELDS),
    Part("requests", ("tenant", "idempotency_key"), ("fingerprint", "batch_id", "ids", "created_at")),
    Part("dedups", ("tenant", "dedup_key"), ("id", "accepted_at")),
    Part(
        "receipts",
        ("number",),
        ("provider", "event_id", "provider_message_id", "notification_id", "received_at", "kept"),
    ),
    Part("outbox", ("number",), ("id", "name", "tenant", "at", "notification_id", "payload")),
    Part("tallies", ("tenant", "status", "attempts"), ("count", "purged")),
    Part("roll_ups", _HOUR_KEY, _SUMS),
    Part("registry", ("tenant", "kind", "key"), ("value", "version", "updated_at", "updated_by")),
    Part("breakers", ("provider",), ("version", "breaker")),
)
"""Everything that lasts. Leads, rate limits and whose turn it is are of the moment, and begin anew."""


class Progress(Struct, frozen=True):
    """How far a part has come: the key of its last record, and how many there are."""

    after: Key | None = None
    number: int = 0


class Source(Protocol):
    """A store that is copied from. All of it is read at one moment."""

    where: str

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def identity(self) -> str:
        """The same for the same data in the same state; a copy goes on only where it is the same."""

    async def at_work(self) -> tuple[str, ...]:
        """Workers that hold something of the store right now."""

    async def counts(self) -> Mapping[str, int]:
        """Part → how many records."""

    async def page(self, part: Part, after: Key | None, limit: int) -> Sequence[Record]:
        """The records that follow that key. The fields of a notification are (seq, row, message)."""


class Target(Protocol):
    """A store that is copied to."""

    where: str

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def begin(self, source: str) -> Mapping[str, Progress] | None:
        """How far a copy of this source has come; None: it is there already. Raises for other data."""

    async def take(self, part: Part, records: Sequence[Record], progress: Progress) -> None:
        """Writes a page and how far it has come, both or neither."""

    async def counts(self) -> Mapping[str, int]: ...

    async def end(self, source: str) -> None:
        """The copy is whole: workers may use the store."""


class Begun(Struct, frozen=True):
    """A copy that is about to go on from where it is."""

    identity: str
    counts: Mapping[str, int]
    """What the source has."""
    progress: Mapping[str, Progress] | None
    """None: the copy was whole before."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def there(self) -> int:
        """How much is in the target already."""
        if self.progress is None:
            return self.total
        return sum(progress.number for progress in self.progress.values())


class Copying:
    """A source and a target, open while the context is."""

    def __init__(self, source: Source, target: Target, *, page: int) -> None:
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
        """The target, as it may be shown."""
        return self._target.where

    async def begin(self) -> Begun:
        """Looks at both sides; raises where one of them is in use, or the target has data of its own."""
        await _refuse_while_at_work(self._source)
        identity = await self._source.identity()
        return Begun(identity, await self._source.counts(), await self._target.begin(identity))

    async def go_on(self, begun: Begun, *, heard: Told) -> int:
        """Copies what is not there yet, and compares the counts of both sides; how many were copied."""
        if begun.progress is None:
            return 0
        copied = 0
        for part in PARTS:
            progress = begun.progress.get(part.name, Progress())
            while records := await self._source.page(part, progress.after, self._page):
                last = tuple(records[-1][: len(part.key)])
                progress = Progress(last, progress.number + len(records))
                await self._target.take(part, records, progress)
                copied += len(records)
                heard(begun.there + copied, part.name)
        _compare(begun.counts, await self._target.counts(), self._source.where, self._target.where)
        await self._target.end(begun.identity)
        return copied


async def _refuse_while_at_work(source: Source) -> None:
    workers = await source.at_work()
    if workers:
        names = ", ".join(workers[:3]) + (" and others" if len(workers) > 3 else "")
        raise StoreError(
            f"{source.where} is in use by {names}. Stop all workers and senders, wait until what they hold "
            "is free (a minute at most after a clean stop), and copy again."
        )


def _compare(expected: Mapping[str, int], found: Mapping[str, int], source: str, target: str) -> None:
    wrong = [
        f"{name}: {number:,} in {source}, {found.get(name, 0):,} in {target}"
        for name, number in expected.items()
        if found.get(name, 0) != number
    ]
    if wrong:
        raise StoreError(
            f"The copy is not whole ({'; '.join(wrong)}). Was one of them in use meanwhile? "
            f"Empty {target} and copy again."
        )
