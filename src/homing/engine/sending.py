"""Accepting requests: one, many, or into the spool while the store is away."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Literal, TypeVar

from msgspec import Struct

from homing.core.errors import IdempotencyConflict, InvalidRequest, StoreError, StoreUnavailable
from homing.core.model import Acceptance, Submission
from homing.core.observing import Observer
from homing.core.ports import Backend, Before, Clock, Overlaps
from homing.core.reading import request_from
from homing.core.request import SendRequest
from homing.engine.clock import LocalWaker
from homing.engine.intake import NOTHING_EARLIER, Earlier, Intake
from homing.engine.spool import Spool

log = logging.getLogger("homing.sending")

_SEND_CHUNK = 2000
"""Requests that are written together."""
_TURN = 100
"""Requests that are prepared, or answered, before anything else gets its turn: a millisecond or two."""
_SPOOL_EVERY_MS = 5_000
_T = TypeVar("_T")

Asked = SendRequest | Mapping[str, Any] | InvalidRequest
"""A request, its fields, or what was wrong with it."""


class SendResult(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """The answer to one request. It is given only when the promise is kept on disk."""

    batch_id: str
    notification_ids: tuple[str, ...]
    status: str
    """`queued`, `spooled`, or the status that a synchronous send ended in.

    `purged`: one under a known idempotency key whose notification is no longer kept.
    """
    queue_name: str = ""
    duplicate: bool = False
    """Accepted before: by its idempotency key, or all of it inside a dedup window."""
    provider_message_id: str | None = None
    delivered_at: datetime | None = None

    @property
    def id(self) -> str:
        """The notification's id, where there is one."""
        if len(self.notification_ids) != 1:
            raise ValueError(
                f"the request became {len(self.notification_ids)} notifications; use notification_ids"
            )
        return self.notification_ids[0]


class Rejection(Struct, frozen=True, kw_only=True):
    """One request of many that was not accepted; the others are."""

    index: int
    field: str
    code: str
    message: str


class _NotItsTurn(Exception):
    """What came before was not stored, so this is not either. Its caller is told of the other."""


class Sending:
    """The accepting half of the engine's front."""

    _backend: Backend
    _intake: Intake
    _spool: Spool | None
    _spool_waker: LocalWaker
    _queue_name: Callable[[Submission], str]
    _submit_now: Callable[[Submission, int], Coroutine[Any, Any, SendResult]]
    _clock: Clock
    _observer: Observer
    _wake: Callable[[], None]
    tenant: str

    async def submit(
        self,
        request: SendRequest,
        *,
        if_unavailable: Literal["raise", "spool"] = "raise",
        connection: Any = None,
        asked: str = "",
        earlier: Earlier = NOTHING_EARLIER,
    ) -> SendResult:
        """Accepts one request; what it answers is on disk. See `SendRequest` for what one can ask.

        `earlier` is for who takes over from another system that has tried it already.
        """
        if connection is not None and if_unavailable == "spool":
            raise InvalidRequest(
                "connection", "and the spool exclude each other: a spooled request joins nothing"
            )
        began_ms = self._clock.monotonic_ms()
        try:
            submission = await self._intake.prepare(self.tenant, request, asked=asked, earlier=earlier)
        except StoreUnavailable:
            if if_unavailable != "spool":
                raise
            # Nobody can be asked who the recipient is; what the request says must do.
            submission = await self._intake.prepare(
                self.tenant, request, asked=asked, ask_directory=False, earlier=earlier
            )
        if submission.lease_to is not None:
            if connection is not None:
                raise InvalidRequest("connection", "and synchronous exclude each other: it is sent at once")
            return await self._submit_now(submission, began_ms)
        try:
            (answer,) = await self._accept([submission], connection)
        except StoreUnavailable:
            if if_unavailable != "spool":
                raise
            return await self._to_spool(submission)
        result = self._result(submission, answer)
        self._wake()
        if self._spool is not None and self._spool.written:  # the store is back
            self._spool.written = False
            self._spool_waker.wake()
        return result

    async def submit_many(
        self, requests: Iterable[Asked] | AsyncIterable[Asked], *, connection: Any = None
    ) -> AsyncIterator[SendResult | Rejection]:
        """Accepts any number of requests in bounded memory; one answer each, in order.

        A request that is not acceptable (or was found so before: an error in its place) is answered with
        its `Rejection`; the others are accepted. Synchronous requests are refused here. Who stops listening
        may leave up to two chunks accepted that were not answered any more.
        """
        first, pieces = 0, chunks(requests, _SEND_CHUNK)
        writing: deque[asyncio.Task[list[SendResult | Rejection]]] = deque()
        try:
            while True:
                broke: Exception | None = None
                prepared: list[Submission | Rejection] = []
                try:
                    chunk = await anext(pieces, None)
                    prepared = await self._prepare_chunk(chunk or (), first)
                except Exception as error:  # what was read before it is answered first
                    broke = error
                if prepared:
                    before = writing[-1] if writing else None
                    written = self._accept_chunk(prepared, connection, first, before)
                    writing.append(asyncio.create_task(written))
                    first += len(prepared)
                # While the store writes one chunk, the one before is answered and the next prepared: unless
                # the caller's own connection is written to, which the requests may be read from.
                while len(writing) > (1 if prepared and connection is None else 0):
                    answers = await writing[0]
                    writing.popleft()
                    for number, answer in enumerate(answers, 1):
                        if not number % _TURN:
                            await asyncio.sleep(0)  # the store wants to go on too
                        yield answer
                if broke is not None:
                    raise broke
                if not prepared:
                    return
        finally:
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)

    async def _prepare_chunk(self, chunk: Sequence[Asked], first: int) -> list[Submission | Rejection]:
        prepared: list[Submission | Rejection] = []
        for start in range(0, len(chunk), _TURN):
            await asyncio.sleep(0)  # others want to go on too, the store with the chunk before
            asked = [_read(one) for one in chunk[start : start + _TURN]]
            found = await self._intake.prepare_many(self.tenant, asked)
            for index, one in enumerate(found, first + start):
                if isinstance(one, Submission):
                    if one.lease_to is None:
                        prepared.append(one)
                        continue
                    one = InvalidRequest("synchronous", "is for one request at a time; use send")
                prepared.append(Rejection(index=index, field=one.field, code=one.code, message=one.message))
        return prepared

    async def _accept_chunk(
        self,
        prepared: list[Submission | Rejection],
        connection: Any,
        first: int,
        before: asyncio.Task[Any] | None,
    ) -> list[SendResult | Rejection]:
        """One after the other: where one chunk fails, those after it are not stored."""
        batch = [p for p in prepared if isinstance(p, Submission)]
        after = None if before is None else partial(_stored, before)
        if after is not None and (not batch or connection is not None):
            await after()
            after = None
        answers = iter(await self._accept(batch, connection, after) if batch else ())
        results: list[SendResult | Rejection] = []
        for index, one in enumerate(prepared, first):
            if isinstance(one, Rejection):
                results.append(one)
                continue
            try:
                results.append(self._result(one, next(answers)))
            except IdempotencyConflict as error:
                results.append(
                    Rejection(index=index, field="idempotencyKey", code=error.code, message=str(error))
                )
        if batch:
            self._wake()
        return results

    async def _accept(
        self, batch: Sequence[Submission], connection: Any, before: Before | None = None
    ) -> tuple[Acceptance, ...]:
        try:
            if before is None:
                answers = await self._backend.accept(batch, tx=connection)
            elif isinstance(self._backend, Overlaps):
                answers = await self._backend.accept_after(batch, before)
            else:
                await before()
                answers = await self._backend.accept(batch)
        except StoreError as error:
            self._observer.store_failed("accept", error)
            raise
        self._observer.accepted(batch, answers)
        return answers

    def _result(self, submission: Submission, answer: Acceptance) -> SendResult:
        if answer.conflict:
            raise_conflict(submission, answer)
        return SendResult(
            answer.batch_id,
            answer.ids,
            "queued",
            self._queue_name(submission),
            len(answer.duplicates) == len(answer.ids),
        )

    async def _to_spool(self, submission: Submission) -> SendResult:
        if self._spool is None:
            raise StoreUnavailable("the store is away and no spool file is configured (set `spool`)")
        batch_id, ids = await self._spool.write(submission)
        return SendResult(batch_id=batch_id, notification_ids=ids, status="spooled")

    async def _drain_spool(self) -> None:
        while True:
            await self._drain_spool_once()
            await self._spool_waker.wait(_SPOOL_EVERY_MS)

    async def _drain_spool_once(self) -> None:
        if self._spool is None:
            return
        try:
            if taken := await self._spool.drain(self._backend):
                log.info("handed %d spooled requests over to the store", taken)
                self._wake()
        except (StoreError, OSError) as error:
            log.warning("the spool waits: %s", error)


def raise_conflict(submission: Submission, answer: Acceptance) -> None:
    """The idempotency key was used with another body."""
    if answer.conflict:
        raise IdempotencyConflict(
            f"idempotencyKey: {submission.idempotency_key!r} was used with another request; "
            "nothing was stored"
        )


async def chunks(items: Iterable[_T] | AsyncIterable[_T], size: int) -> AsyncIterator[Sequence[_T]]:
    """What may be an ordinary or an async iterable, so many at a time."""
    if not isinstance(items, AsyncIterable):
        left = iter(items)
        while chunk := list(islice(left, size)):
            yield chunk
        return
    chunk = []
    async for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


async def _stored(chunk: asyncio.Task[Any]) -> None:
    """When this chunk is stored; an error where it is not."""
    await asyncio.wait([chunk])
    if chunk.cancelled() or chunk.exception() is not None:
        raise _NotItsTurn


def _read(asked: Asked) -> SendRequest | InvalidRequest:
    """The request, or what is wrong with it."""
    if isinstance(asked, (SendRequest, InvalidRequest)):
        return asked
    try:
        return request_from(asked)
    except InvalidRequest as error:
        return error
