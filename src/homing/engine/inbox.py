"""Takes in what other programs wrote into the store: requests through intake, commands as commands."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from homing.core.backoff import base_delay_ms
from homing.core.errors import InvalidRequest, StoreError
from homing.core.inbox import Enqueued, EnqueuedKind, Inbox, Intaken
from homing.core.model import (
    Channel,
    Command,
    CommandName,
    Content,
    Message,
    Mode,
    NewNotification,
    Priority,
    Recipient,
    Submission,
    lane_of,
)
from homing.core.policy import Keys
from homing.core.ports import Clock
from homing.core.reading import request_from
from homing.engine.clock import LocalWaker
from homing.engine.intake import Earlier, Intake
from homing.engine.policies import Policies

log = logging.getLogger("homing.inbox")

_STEP = 500
_LEASE_MS = 30_000
_LONGEST = 100_000
"""Of an unreadable request, this many characters are kept."""
_LONGEST_NAME = 200
_COMMANDS = {
    EnqueuedKind.RETRY: CommandName.RETRY,
    EnqueuedKind.ACKNOWLEDGE: CommandName.ACKNOWLEDGE,
    EnqueuedKind.RESEND: CommandName.RESEND,
}


class InboxReader:
    """Empties the inbox of a store that has one."""

    def __init__(
        self,
        inbox: Inbox,
        *,
        intake: Intake,
        policies: Policies,
        purge: Callable[[], Awaitable[object]],
        clock: Clock,
        waker: LocalWaker,
        wake_worker: Callable[[], None],
        new_id: Callable[[], str],
        poll_ms: int,
    ) -> None:
        self._inbox = inbox
        self._intake = intake
        self._policies = policies
        self._purge = purge
        self._clock = clock
        self._waker = waker
        self._wake_worker = wake_worker
        self._new_id = new_id
        self._poll_ms = poll_ms
        self._told: tuple[int, ...] = ()

    async def run(self) -> None:
        """Until cancelled. A store that is away is looked at again later."""
        while True:
            try:
                taken = await self.run_once()
            except StoreError as error:
                log.warning("the inbox waits for the store: %s", error)
                taken = 0
            except Exception:
                log.exception("the inbox could not be read; it is tried again")
                taken = 0
            if taken < _STEP:
                await self._waker.wait(self._poll_ms)

    async def run_once(self) -> int:
        """One step; how many entries it was."""
        await self._tell_schedule()
        entries = await self._inbox.take_inbox(_STEP, _LEASE_MS)
        requests = [entry for entry in entries if entry.kind is EnqueuedKind.SEND]
        if requests:
            await self._inbox.accept_inbox([await self._intaken(entry) for entry in requests])
        for entry in entries:
            if entry.kind is not EnqueuedKind.SEND:
                await self._obey(entry)
        if entries:
            self._wake_worker()
        return len(entries)

    async def _intaken(self, entry: Enqueued) -> Intaken:
        earlier = Earlier(
            attempts=1 if entry.already_failed else 0,
            max_attempts=None if entry.max_retries is None else entry.max_retries + 1,
            last_error=entry.last_error,
        )
        try:
            raw = msgspec.json.decode(entry.request)
            if not isinstance(raw, dict):
                raise InvalidRequest("request", "is not a JSON object")
            submission = await self._intake.prepare(entry.tenant, request_from(raw), earlier=earlier)
            if submission.lease_to is not None:
                raise InvalidRequest("synchronous", "cannot wait in an inbox; send it through the API")
        except (InvalidRequest, msgspec.DecodeError, RecursionError) as error:
            log.warning("an entry of the inbox cannot be read, it becomes a dead letter: %s", error)
            return Intaken(entry.number, self._dead_letter(entry, str(error)))
        otherwise = None
        if submission.idempotency_key is not None:
            why = f"idempotencyKey: {submission.idempotency_key!r} was used with another request"
            otherwise = self._dead_letter(entry, why)
        return Intaken(entry.number, _named(submission, entry.id), otherwise)

    def _dead_letter(self, entry: Enqueued, why: str) -> Submission:
        """What nobody can be told about otherwise: the request as it was, and what is wrong with it."""
        channel, type_ = _said(entry.request)
        keys = Keys(entry.tenant, type_, "", channel, Priority.MEDIUM)
        dead = NewNotification(
            id=entry.id,
            channel=channel,
            mode=Mode.STANDARD,
            lane=lane_of(Mode.STANDARD, channel),
            type=type_,
            category=type_,
            priority=Priority.MEDIUM,
            origin="",
            provider="",
            outlet="",
            address="",
            message=Message(
                recipient=Recipient(), content=Content(data={"request": entry.request[:_LONGEST]})
            ),
            max_age_ms=self._policies.book.policy(keys, Mode.STANDARD).max_age_ms,
            last_error=why,
            refused=True,
        )
        return Submission(tenant=entry.tenant, batch_id=self._new_id(), notifications=(dead,))

    async def _obey(self, entry: Enqueued) -> None:
        if entry.kind is EnqueuedKind.CLEANUP:
            await self._purge()
            await self._inbox.remove_inbox([entry.number])
            return
        about = entry.notification_id or ""
        command = Command(
            name=_COMMANDS[entry.kind],
            who=entry.who,
            why=entry.why,
            new_ids={about: entry.id},
            batch_id=self._new_id(),
        )
        result = await self._inbox.amend_inbox(entry.number, entry.tenant, about, command)
        if result is not None and (result.refused or result.missing):
            now = ", ".join(status.value for status in result.refused.values()) or "gone"
            log.warning("%s of %s by %s is not possible: it is %s", entry.kind, about, entry.who, now)

    async def _tell_schedule(self) -> None:
        """What `calculate_next_retry` is to answer: the delays of what no rule is made for."""
        keys = Keys("", "", "", Channel.PUSH, Priority.MEDIUM)
        policy = self._policies.book.policy(keys, Mode.STANDARD)
        delays = tuple(base_delay_ms(policy, attempt) for attempt in range(1, max(2, policy.max_attempts)))
        if delays != self._told:
            await self._inbox.tell_schedule(delays)
            self._told = delays


def _named(submission: Submission, id_: str) -> Submission:
    """Under the id that the writer was told."""
    if len(submission.notifications) > 1:
        return replace(submission, batch_id=id_)
    (only,) = submission.notifications
    return replace(submission, notifications=(replace(only, id=id_),))


def _said(request: str) -> tuple[Channel, str]:
    """Channel and type of a request, as far as they can be made out."""
    try:
        raw = msgspec.json.decode(request)
        channel, type_ = Channel(raw["channel"]), raw.get("type")
    except (msgspec.DecodeError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return Channel.QUEUE, "unreadable"
    return channel, type_ if isinstance(type_, str) and 0 < len(type_) <= _LONGEST_NAME else "unreadable"
