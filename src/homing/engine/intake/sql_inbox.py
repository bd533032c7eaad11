"""Processes requests and commands that other programs wrote into the store's SQL inbox."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from homing.core.errors import InvalidRequest, StoreError
from homing.core.lifecycle.claims import NewNotification, Submission
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.notifications import Channel, Content, Message, Mode, Priority, Recipient, lane_of
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import AcceptedEntry, Inbox, InboxEntry, InboxEntryKind
from homing.core.request_decoding import read_request
from homing.core.retry.backoff import base_delay_ms
from homing.core.retry.policy import MatchKeys
from homing.engine.intake.requests import Intake, PriorAttempts, RepeatedRequest
from homing.engine.operations.policies import RULES_MAX_AGE_MS, Policies
from homing.engine.system_runtime import LocalWaker

log = logging.getLogger("homing.inbox")


_BATCH_SIZE = 500

_LEASE_MS = 30_000

_MAX_REQUEST_CHARS = 100_000
"""Maximum number of characters of an unreadable request to keep in its dead letter."""

_MAX_TYPE_CHARS = 200

_COMMANDS = {
    InboxEntryKind.RETRY: CommandName.RETRY,
    InboxEntryKind.ACKNOWLEDGE: CommandName.ACKNOWLEDGE,
    InboxEntryKind.RESEND: CommandName.RESEND,
}


class InboxReader:
    """Reads the inbox, accepts its requests and applies its commands."""

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
        self._stored_delays: tuple[int, ...] = ()
        """Retry delays that were last written to the store."""

    async def run(self) -> None:
        """Reads the inbox until cancelled. Tries again later if the store is unavailable."""
        while True:
            try:
                taken = await self.run_once()
            except StoreError as error:
                log.warning("cannot read the inbox, the store is unavailable; trying again: %s", error)
                taken = 0
            except Exception:
                log.exception("the inbox could not be read; trying again")
                taken = 0
            if taken < _BATCH_SIZE:
                await self._waker.wait(self._poll_ms)

    async def run_once(self) -> int:
        """Processes one batch of entries and returns their number."""
        await self._policies.refresh(max_age_ms=RULES_MAX_AGE_MS)
        await self._store_delays()
        entries = await self._inbox.take_inbox(_BATCH_SIZE, _LEASE_MS)
        requests = [entry for entry in entries if entry.kind is InboxEntryKind.SEND]
        if requests:
            await self._inbox.accept_inbox([await self._accepted(entry) for entry in requests])
        for entry in entries:
            if entry.kind is not InboxEntryKind.SEND:
                await self._apply_command(entry)
        if entries:
            self._wake_worker()
        return len(entries)

    async def _accepted(self, entry: InboxEntry) -> AcceptedEntry:
        earlier = PriorAttempts(
            attempts=1 if entry.already_failed else 0,
            max_attempts=None if entry.max_retries is None else entry.max_retries + 1,
            last_error=entry.last_error,
        )
        try:
            raw = msgspec.json.decode(entry.request)
            if not isinstance(raw, dict):
                raise InvalidRequest("request", "is not a JSON object")
            submission = await self._intake.prepare(entry.tenant, read_request(raw), earlier=earlier)
            if isinstance(submission, RepeatedRequest):
                return self._repeated(entry, submission)
            if submission.lease_to is not None:
                raise InvalidRequest("synchronous", "is not possible through the inbox; use the API")
        except (InvalidRequest, msgspec.DecodeError, RecursionError) as error:
            log.warning("an inbox entry is invalid and becomes a dead letter: %s", error)
            return AcceptedEntry(entry.number, self._dead_letter(entry, str(error)))
        otherwise = None
        if submission.idempotency_key is not None:
            why = f"idempotencyKey: {submission.idempotency_key!r} already belongs to a different request"
            otherwise = self._dead_letter(entry, why)
        return AcceptedEntry(entry.number, _with_id(submission, entry.id), otherwise)

    def _repeated(self, entry: InboxEntry, repeated: RepeatedRequest) -> AcceptedEntry:
        """Returns the entry of a request that is no longer valid but was accepted before."""
        why = f"idempotencyKey: {repeated.idempotency_key!r} already belongs to a different request"
        dead_letter = self._dead_letter(entry, why)
        if repeated.answer.conflict:
            return AcceptedEntry(entry.number, dead_letter)
        return AcceptedEntry(entry.number, replace(dead_letter, notifications=()))

    def _dead_letter(self, entry: InboxEntry, why: str) -> Submission:
        """Returns a dead letter with the request and its error. The request's author gets no response."""
        channel, type_ = _channel_and_type(entry.request)
        keys = MatchKeys(entry.tenant, type_, "", channel, Priority.MEDIUM)
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
                recipient=Recipient(), content=Content(data={"request": entry.request[:_MAX_REQUEST_CHARS]})
            ),
            max_age_ms=self._policies.book.policy(keys, Mode.STANDARD).max_age_ms,
            last_error=why,
            refused=True,
        )
        return Submission(tenant=entry.tenant, batch_id=self._new_id(), notifications=(dead,))

    async def _apply_command(self, entry: InboxEntry) -> None:
        if entry.kind is InboxEntryKind.CLEANUP:
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
            log.warning(
                "%s of %s by %s is not possible: the notification is %s", entry.kind, about, entry.who, now
            )

    async def _store_delays(self) -> None:
        """Stores the default retry delays, which the SQL function `calculate_next_retry` returns."""
        keys = MatchKeys("", "", "", Channel.PUSH, Priority.MEDIUM)
        policy = self._policies.book.policy(keys, Mode.STANDARD)
        delays = tuple(base_delay_ms(policy, attempt) for attempt in range(1, max(2, policy.max_attempts)))
        if delays != self._stored_delays:
            await self._inbox.store_retry_delays(delays)
            self._stored_delays = delays


def _with_id(submission: Submission, id_: str) -> Submission:
    """Returns the submission with the id that the inbox returned to the author of the request.

    It becomes the id of the notification, or of the batch if there are several notifications.
    """
    if len(submission.notifications) > 1:
        return replace(submission, batch_id=id_)
    (only,) = submission.notifications
    return replace(submission, notifications=(replace(only, id=id_),))


def _channel_and_type(request: str) -> tuple[Channel, str]:
    """Returns the channel and type of an invalid request, or placeholders if they cannot be read."""
    try:
        raw = msgspec.json.decode(request)
        channel, type_ = Channel(raw["channel"]), raw.get("type")
    except (msgspec.DecodeError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return Channel.QUEUE, "unreadable"
    return channel, type_ if isinstance(type_, str) and 0 < len(type_) <= _MAX_TYPE_CHARS else "unreadable"
