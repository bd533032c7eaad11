"""Accepts requests, one or many at a time.

A single request can be written to the spool while the store is unavailable. The spool is moved to the store
later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from homing.core.errors import (
    DeliveryTimeout,
    IdempotencyConflict,
    InvalidRequest,
    StoreError,
    StoreRejected,
    StoreUnavailable,
)
from homing.core.lifecycle.claims import Acceptance, Submission
from homing.core.notifications import Mode, Notification
from homing.core.ports.observers import Observer
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import AwaitPrevious, Backend, SupportsOverlappingAccept
from homing.core.request_decoding import read_request
from homing.core.send_request import SendRequest
from homing.engine.delivery.timers import Timers
from homing.engine.intake.dead_requests import request_of
from homing.engine.intake.recipient_lookup import (
    SYNCHRONOUS_TIMEOUT_MS,
    DirectoryFailed,
    names_recipient,
    prepare_each,
)
from homing.engine.intake.requests import (
    NO_PRIOR_ATTEMPTS,
    Intake,
    PreparedRequest,
    PriorAttempts,
    RepeatedRequest,
)
from homing.engine.intake.spool import Spool
from homing.engine.intake.store_deadline import StoreDeadline, StoreWait
from homing.engine.isolation import write_isolated
from homing.engine.plug_in_calls import call_within
from homing.engine.system_runtime import LocalWaker
from homing.engine.upkeep.lost_commits import LostCommits

log = logging.getLogger("homing.sending")


_PreparedItem = PreparedRequest | InvalidRequest | StoreRejected | DirectoryFailed
"""A prepared request of a batch, or why it is rejected."""

_SEND_CHUNK = 2000
"""Maximum number of requests that are written in one transaction."""

_YIELD_EVERY = 100
"""Number of requests to prepare or return before yielding to the event loop, about every two milliseconds."""

_SPOOL_INTERVAL_MS = 5_000

_PREPARE_FOR_SPOOL_MS = 2_000
"""Maximum time to prepare a request for the spool, after the store has not answered in time."""

# Looked up once: up to Python 3.11, `Mode.SYNCHRONOUS` calls a method written in Python.
_SYNCHRONOUS = Mode.SYNCHRONOUS

_T = TypeVar("_T")


SendInput = SendRequest | Mapping[str, Any] | InvalidRequest
"""A request, a mapping of its fields, or the error that was found when the request was read."""


class SendResult(Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """Result of one accepted request."""

    batch_id: str
    notification_ids: tuple[str, ...]
    status: str
    """`queued`, `spooled`, or the final status of a synchronous send.

    `purged` if the idempotency key is known, but its notification has since been deleted.
    """
    queue_name: str = ""
    duplicate: bool = False
    """True if the request was accepted before.

    Either its idempotency key is known, or all its notifications fall into a dedup window.
    """
    provider_message_id: str | None = None
    delivered_at: datetime | None = None
    provider: str | None = None
    """Provider that accepted the message of a synchronous send. None for other requests."""
    sent_at: datetime | None = None
    """Time at which it did."""

    @property
    def id(self) -> str:
        """Id of the notification. Raises `ValueError` if the request became several notifications."""
        if len(self.notification_ids) != 1:
            raise ValueError(
                f"the request became {len(self.notification_ids)} notifications; use notification_ids"
            )
        return self.notification_ids[0]


class Rejection(Struct, frozen=True, kw_only=True):
    """Error of a request in a batch that was not accepted. The other requests are not affected."""

    index: int
    field: str
    code: str
    message: str


class _PreviousChunkFailed(Exception):
    """The previous chunk was not stored, so this chunk is not stored either.

    The caller gets the error of the previous chunk.
    """


class SendOperations:
    """Send operations of one tenant."""

    def __init__(
        self,
        tenant: str,
        *,
        backend: Backend,
        intake: Intake,
        spool: Spool | None,
        spool_waker: LocalWaker,
        queue_name: Callable[[Mode], str],
        send_synchronously: Callable[[PreparedRequest, int], Coroutine[Any, Any, SendResult]],
        clock: Clock,
        observer: Observer,
        timers: Timers,
        lost_commits: LostCommits,
        store_timeout_ms: int,
    ) -> None:
        """`store_timeout_ms` is the maximum time that a request, or a chunk of many, waits for the store."""
        self.tenant = tenant
        self._backend = backend
        self._intake = intake
        self._spool = spool
        self._spool_waker = spool_waker
        self._queue_name = queue_name
        self._send_synchronously = send_synchronously
        self._clock = clock
        self._observer = observer
        self._timers = timers
        self._lost_commits = lost_commits
        self._deadline = StoreDeadline(store_timeout_ms)

    async def submit(
        self,
        request: SendRequest,
        *,
        if_unavailable: Literal["raise", "spool"] = "raise",
        connection: Any = None,
        asked: str = "",
        earlier: PriorAttempts = NO_PRIOR_ATTEMPTS,
    ) -> SendResult:
        """Accepts one request. When this returns, the request is stored or spooled.

        `if_unavailable` chooses whether to raise or to write to the spool if the store is unavailable, or
        does not answer in time. A request that was spooled or raised then may also be stored a little later;
        its ids are the same, so the spool stores nothing twice.
        `connection` is the caller's database connection, whose transaction the request joins: the request is
        stored when the caller commits. `asked` is explained at `Intake.prepare`. `earlier` describes attempts
        that another system made before.
        """
        if if_unavailable not in ("raise", "spool"):
            raise InvalidRequest("if_unavailable", f"is {if_unavailable!r}; it must be one of raise, spool")
        if connection is not None and if_unavailable == "spool":
            raise InvalidRequest(
                "connection", "cannot be combined with the spool; a spooled request joins no transaction"
            )
        began_ms = self._clock.monotonic_ms()
        limit = self._limit(connection)
        try:
            if self._intake.is_synchronous(request):
                prepare = partial(
                    self._intake.prepare,
                    self.tenant,
                    request,
                    asked=asked,
                    earlier=earlier,
                    connection=connection,
                )
                prepared = await _within_deadline(prepare)
            else:
                with limit:
                    prepared = await self._intake.prepare(
                        self.tenant, request, asked=asked, earlier=earlier, connection=connection
                    )
        except StoreUnavailable:
            if if_unavailable != "spool":
                raise
            # The directory is unavailable too, so use only what the request says about the recipient.
            prepare = partial(
                self._intake.prepare, self.tenant, request, asked=asked, use_directory=False, earlier=earlier
            )
            prepared = await _prepare_in_time(prepare)
        if mode_of_prepared(prepared) is _SYNCHRONOUS:
            if connection is not None:
                raise InvalidRequest(
                    "connection",
                    "cannot be combined with synchronous; a synchronous request is sent immediately",
                )
            return await self._send_synchronously(prepared, began_ms)
        if isinstance(prepared, RepeatedRequest):
            return self._result(prepared, prepared.answer)
        try:
            (answer,) = await self._accept([prepared], connection, limit)
        except StoreUnavailable:
            if if_unavailable != "spool":
                raise
            return await self._to_spool(prepared)
        result = self._result(prepared, answer)
        if self._spool is not None and self._spool.written:  # the store is available again
            self._spool.written = False
            self._spool_waker.wake()
        return result

    async def submit_again(
        self, dead: Notification, provider: str | None = None, *, new_id: str | None = None
    ) -> str:
        """Accepts the request in a dead letter under a new id, which is linked to it, and returns that id.

        `new_id` is the id of the notification, or of the batch if there are several notifications.

        If the request was accepted again before, returns the same id. Raises `InvalidRequest` if it still
        cannot be accepted. Its times `send_at` and `expires_at` no longer apply.
        """
        request, key = request_of(dead), f"resend:{dead.id}"
        if isinstance(request, Submission):
            if provider is not None:
                raise InvalidRequest("provider", "cannot be chosen for a request from the spool")
            prepared: PreparedRequest = self._intake.renewed(request, key)
        else:
            request = replace(request, idempotency_key=key, send_at=None, expires_at=None)
            request = request if provider is None else replace(request, provider=provider)
            if self._intake.is_synchronous(request):
                raise InvalidRequest("synchronous", "is not possible for a request that is sent again")
            with self._limit(None):
                prepared = await self._intake.prepare(self.tenant, request)
        if isinstance(prepared, RepeatedRequest):
            return self._result(prepared, prepared.answer).notification_ids[0]
        linked = tuple(replace(new, resend_of=dead.id) for new in prepared.notifications)
        prepared = replace(prepared, notifications=linked)
        if new_id is not None:
            prepared = self._intake.with_id(prepared, new_id)
        (answer,) = await self._accept([prepared], None, self._limit(None))
        return self._result(prepared, answer).notification_ids[0]

    async def submit_many(
        self, requests: Iterable[SendInput] | AsyncIterable[SendInput], *, connection: Any = None
    ) -> AsyncIterator[SendResult | Rejection]:
        """Accepts any number of requests in bounded memory, and yields one result per request, in order.

        Yields a `Rejection` for an invalid request, for an error in place of a request, and for a request for
        which alone the recipient directory fails.
        Synchronous requests are rejected. If the caller stops iterating, up to two chunks may be accepted
        without their results having been yielded.
        """
        first, pieces = 0, chunks(requests, _YIELD_EVERY)
        writing: deque[asyncio.Task[list[SendResult | Rejection]]] = deque()
        try:
            while True:
                prepared, read_error = await self._prepare_chunk(pieces, first, connection)
                if prepared:
                    before = writing[-1] if writing else None
                    written = self._accept_chunk(prepared, connection, first, before)
                    writing.append(asyncio.create_task(written))
                    first += len(prepared)
                # While the store writes one chunk, yield the results of the last one and prepare the next.
                # Not with the caller's connection, because the requests may be read from that connection.
                goes_on = prepared and read_error is None
                while len(writing) > (1 if goes_on and connection is None else 0):
                    answers = await writing[0]
                    writing.popleft()
                    for number, answer in enumerate(answers, 1):
                        if not number % _YIELD_EVERY:
                            await asyncio.sleep(0)  # lets the store continue
                        yield answer
                if read_error is not None:  # earlier requests have their results by now
                    raise read_error
                if not prepared:
                    return
        finally:
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)

    async def _prepare_chunk(
        self, pieces: AsyncIterator[Sequence[SendInput]], first: int, connection: Any
    ) -> tuple[list[PreparedRequest | Rejection], Exception | None]:
        """Reads and prepares a chunk piece by piece.

        Returns the chunk, which is empty if there are no more requests, and the error that ended it early.

        Each piece has a limit of its own, because it may ask the directory for each request: a whole chunk
        may take long although every answer comes soon. A request is released once it is prepared: if all
        requests of a chunk were kept, the garbage collector would examine their data again and again.
        """
        prepared: list[PreparedRequest | Rejection] = []
        while len(prepared) < _SEND_CHUNK:
            await asyncio.sleep(0)  # lets other tasks continue, such as the write of the previous chunk
            try:
                piece = await anext(pieces, None)
                if piece is None:
                    break
                asked = [_read(one) for one in piece]
                del piece
                found = await self._prepare_isolated(asked, connection, self._limit(connection))
            except Exception as error:  # the caller's iterable may raise anything, or the store may be away
                return prepared, error
            for index, one in enumerate(found, first + len(prepared)):
                # First, because it is the usual case.
                if isinstance(one, Submission) and one.notifications[0].mode is not _SYNCHRONOUS:
                    prepared.append(one)
                    continue
                if isinstance(one, StoreRejected):
                    prepared.append(_store_rejection(index, one))
                    continue
                if isinstance(one, DirectoryFailed):
                    log.warning("a request of a batch was rejected: %s", one)
                    prepared.append(Rejection(index=index, field="", code=one.code, message=one.message))
                    continue
                if not isinstance(one, InvalidRequest):
                    if mode_of_prepared(one) is not _SYNCHRONOUS:
                        prepared.append(one)
                        continue
                    one = InvalidRequest("synchronous", "is not possible in a batch; use send")
                prepared.append(Rejection(index=index, field=one.field, code=one.code, message=one.message))
        return prepared, None

    async def _prepare_isolated(
        self, asked: Sequence[SendRequest | InvalidRequest], connection: Any, limit: StoreWait
    ) -> Sequence[_PreparedItem]:
        """Prepares requests.

        One that the store refuses, that causes an unexpected error, or for which alone the recipient
        directory fails harms no other.
        """
        try:
            with limit:
                return await self._intake.prepare_many(self.tenant, asked, connection=connection)
        except Exception as error:
            if isinstance(error, DirectoryFailed) and len(asked) > 1:
                return await self._prepare_each(asked, connection)
            if isinstance(error, StoreError) and not isinstance(error, StoreRejected):
                raise
            if len(asked) == 1 and isinstance(error, StoreRejected):
                return [error]
            if len(asked) == 1:
                return [_unexpected(error)]
        return [one for each in asked for one in await self._prepare_isolated([each], connection, limit)]

    async def _prepare_each(
        self, asked: Sequence[SendRequest | InvalidRequest], connection: Any
    ) -> Sequence[_PreparedItem]:
        """Prepares requests one by one. Raises `DirectoryFailed` if the directory works for none of them.

        Each has a limit of its own, because the directory may hang for one of them.
        """

        async def prepare(one: SendRequest | InvalidRequest) -> _PreparedItem:
            (prepared,) = await self._prepare_isolated([one], connection, self._limit(connection))
            return prepared

        def was_directory_asked(one: SendRequest | InvalidRequest, prepared: _PreparedItem) -> bool:
            return isinstance(prepared, Submission) and isinstance(one, SendRequest) and names_recipient(one)

        if connection is not None:  # it can be used by one task at a time
            return await prepare_each(asked, prepare, was_directory_asked, at_once=1)
        return await prepare_each(asked, prepare, was_directory_asked)

    async def _accept_chunk(
        self,
        prepared: list[PreparedRequest | Rejection],
        connection: Any,
        first: int,
        before: asyncio.Task[Any] | None,
    ) -> list[SendResult | Rejection]:
        """Writes a chunk after the previous chunk. If a chunk fails, later chunks are not stored."""
        batch = [p for p in prepared if isinstance(p, Submission)]
        limit = self._limit(connection)
        after = None if before is None else partial(limit.exclude, partial(_wait_until_stored, before))
        if after is not None and (not batch or connection is not None):
            await after()
            after = None
        answers = iter(await self._accept_each(batch, connection, limit, after) if batch else ())
        results: list[SendResult | Rejection] = []
        for index, one in enumerate(prepared, first):
            if isinstance(one, Submission):  # first, because most are
                answer = next(answers)
            elif isinstance(one, RepeatedRequest):
                answer = one.answer
            else:
                results.append(one)
                continue
            if not isinstance(answer, Acceptance):
                results.append(_store_rejection(index, answer))
                continue
            try:
                results.append(self._result(one, answer))
            except IdempotencyConflict as error:
                results.append(
                    Rejection(index=index, field="idempotencyKey", code=error.code, message=str(error))
                )
        return results

    async def _accept_each(
        self, batch: Sequence[Submission], connection: Any, limit: StoreWait, before: AwaitPrevious | None
    ) -> list[Acceptance | StoreRejected]:
        """Writes a chunk. If the store refuses it, halves it, so that only the culprit is refused."""

        async def write(part: Sequence[Submission]) -> Sequence[Acceptance | StoreRejected]:
            nonlocal before
            if len(part) < len(batch) and before is not None:
                await before()
                before = None
            return await self._accept(part, connection, limit, before)

        return await write_isolated(batch, write, _as_result)

    async def accept_prepared(self, batch: Sequence[Submission]) -> tuple[Acceptance, ...]:
        """Stores prepared submissions, of any tenants, in one transaction."""
        return await self._accept(batch, None, self._limit(None))

    async def _accept(
        self,
        batch: Sequence[Submission],
        connection: Any,
        limit: StoreWait,
        before: AwaitPrevious | None = None,
    ) -> tuple[Acceptance, ...]:
        """Stores a batch within the limit, after `before` if that is given."""
        try:
            if before is not None and not isinstance(self._backend, SupportsOverlappingAccept):
                await before()
                before = None
            with limit:
                if before is not None and isinstance(self._backend, SupportsOverlappingAccept):
                    answers = await self._backend.accept_after(batch, before)
                else:
                    answers = await self._backend.accept(batch, tx=connection)
        except StoreError as error:
            self._observer.store_failed("accept", error)
            raise
        self._observer.accepted(batch, answers)
        if connection is None:  # otherwise the caller has yet to commit
            self._timers.accepted(batch, answers)
            self._lost_commits.acknowledged(answers)
        return answers

    def _limit(self, connection: Any) -> StoreWait:
        """Returns the limit for how long a request, or a chunk of them, waits for the store from now on.

        There is none if the request joins the transaction of a caller, who decides how long to wait.
        """
        return self._deadline.limit(None if connection is not None else self._deadline.until())

    def _result(self, prepared: PreparedRequest, answer: Acceptance) -> SendResult:
        if isinstance(prepared, Submission) and not answer.conflict and not answer.duplicates:  # hot path
            queue_name = self._queue_name(prepared.notifications[0].mode)
            return SendResult(answer.batch_id, answer.ids, "queued", queue_name)
        if answer.conflict:
            raise_conflict(prepared, answer)
        return SendResult(
            answer.batch_id,
            answer.ids,
            prepared.status if isinstance(prepared, RepeatedRequest) else "queued",
            self._queue_name(mode_of_prepared(prepared)),
            len(answer.duplicates) == len(answer.ids),
        )

    async def _to_spool(self, submission: Submission) -> SendResult:
        if self._spool is None:
            raise StoreUnavailable("the store is unavailable and no spool file is configured (set `spool`)")
        batch_id, ids = await self._spool.write(submission)
        return SendResult(batch_id=batch_id, notification_ids=ids, status="spooled")

    async def drain_spool(self) -> None:
        """Moves spooled requests of all tenants to the store again and again, until it is cancelled."""
        while True:
            await self.drain_spool_once()
            await self._spool_waker.wait(_SPOOL_INTERVAL_MS)

    async def drain_spool_once(self) -> None:
        """Moves the spooled requests of all tenants to the store. Logs a warning if that is not possible."""
        if self._spool is None:
            return
        try:
            if taken := await self._spool.drain(self._backend):
                log.info("moved %d spooled requests to the store", taken)
        except (StoreError, OSError) as error:
            log.warning("cannot empty the spool; trying again: %s", error)
        except Exception:
            log.exception("emptying the spool failed unexpectedly; trying again")


async def _prepare_in_time(prepare: Callable[[], Awaitable[PreparedRequest]]) -> PreparedRequest:
    """Prepares a request for the spool. Raises `StoreUnavailable` if it needs something from the store."""
    try:
        return await call_within(prepare, _PREPARE_FOR_SPOOL_MS)
    except TimeoutError:
        raise StoreUnavailable(
            "the store does not answer, and the request cannot be prepared for the spool without it"
        ) from None


async def _within_deadline(prepare: Callable[[], Awaitable[PreparedRequest]]) -> PreparedRequest:
    """Prepares a synchronous send. Raises `DeliveryTimeout` if that takes as long as the whole call may."""
    try:
        return await call_within(prepare, SYNCHRONOUS_TIMEOUT_MS)
    except TimeoutError:
        raise DeliveryTimeout from None


def mode_of_prepared(prepared: PreparedRequest) -> Mode:
    """Returns the mode of a request, which all its notifications share."""
    return prepared.mode if isinstance(prepared, RepeatedRequest) else prepared.notifications[0].mode


def raise_conflict(prepared: PreparedRequest, answer: Acceptance) -> None:
    """Raises `IdempotencyConflict` if the idempotency key belongs to a different request."""
    if answer.conflict:
        raise IdempotencyConflict(
            f"idempotencyKey: {prepared.idempotency_key!r} already belongs to a different "
            "request; nothing was stored"
        )


async def chunks(items: Iterable[_T] | AsyncIterable[_T], size: int) -> AsyncIterator[Sequence[_T]]:
    """Yields the items of an ordinary or async iterable in lists of at most `size`.

    If the iterable raises, the items before the error are yielded first.
    """
    chunk: list[_T] = []
    error: Exception | None = None
    if isinstance(items, AsyncIterable):
        try:
            async for item in items:
                chunk.append(item)
                if len(chunk) == size:
                    yield chunk
                    chunk = []
        except Exception as raised:  # the caller's code may raise anything
            error = raised
        if chunk:
            yield chunk
    else:
        left = iter(items)
        while error is None:
            chunk = []
            try:
                chunk.extend(islice(left, size))
            except Exception as raised:  # the list has the items before the error
                error = raised
            if not chunk:
                break
            yield chunk
    if error is not None:
        raise error


def _store_rejection(index: int, error: StoreRejected) -> Rejection:
    """Returns the result of a request that the store refuses, without what the error says about the store."""
    log.warning("a request of a batch was rejected: %s", error)
    refusal = StoreRejected()
    return Rejection(index=index, field="", code=refusal.code, message=refusal.message)


async def _as_result(submission: Submission, error: StoreRejected) -> StoreRejected:
    return error


async def _wait_until_stored(chunk: asyncio.Task[Any]) -> None:
    """Waits until a chunk is stored. Raises `_PreviousChunkFailed` if it could not be stored."""
    await asyncio.wait([chunk])
    if chunk.cancelled() or chunk.exception() is not None:
        raise _PreviousChunkFailed


def _read(asked: SendInput) -> SendRequest | InvalidRequest:
    """Returns the request, or the error if it is invalid."""
    if isinstance(asked, (SendRequest, InvalidRequest)):
        return asked
    try:
        return read_request(asked)
    except InvalidRequest as error:
        return error
    except Exception as error:  # a mapping of the caller's own may raise anything
        return _unexpected(error)


def _unexpected(error: Exception) -> InvalidRequest:
    """Logs the exception that is being handled, and returns the error of the request that caused it."""
    log.exception("a request of a batch cannot be prepared and is rejected")
    return InvalidRequest("request", f"could not be processed ({type(error).__name__})")
