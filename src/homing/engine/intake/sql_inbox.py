"""Processes requests and commands that other programs wrote into the store's SQL inbox.

An entry that cannot be processed harms no other entry. A request becomes a dead letter that keeps its text,
and a command is logged and removed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from homing.core.errors import CommandRefused, InvalidRequest, NotFound, StoreError, StoreRejected
from homing.core.lifecycle.claims import Acceptance, Submission
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.notifications import Channel, Mode, Priority
from homing.core.ports.observers import NULL_OBSERVER, Observer
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import AcceptedEntry, Inbox, InboxAcceptance, InboxEntry, InboxEntryKind
from homing.core.request_decoding import read_request
from homing.core.retry.policy import MatchKeys
from homing.engine.intake.dead_requests import REFUSED_BY_STORE, UNREADABLE, dead_request, forms_of
from homing.engine.intake.requests import Intake, PriorAttempts, RepeatedRequest
from homing.engine.isolation import write_isolated
from homing.engine.operations.policies import RULES_MAX_AGE_MS, Policies
from homing.engine.operations.sql_schedule import SqlSchedule
from homing.engine.plug_in_calls import map_at_once
from homing.engine.system_runtime import LocalWaker

log = logging.getLogger("homing.inbox")


_BATCH_SIZE = 500

_LEASE_MS = 30_000

_COMMANDS = {
    InboxEntryKind.RETRY: CommandName.RETRY,
    InboxEntryKind.ACKNOWLEDGE: CommandName.ACKNOWLEDGE,
    InboxEntryKind.RESEND: CommandName.RESEND,
    InboxEntryKind.FAIL: CommandName.FAIL,
}

ResendRequest = Callable[[InboxEntry], Awaitable[bool]]
"""Resends the dead letter of a request that was never accepted.

Returns False, and does nothing, if the notification is not such a dead letter.
"""


class InboxRun(Struct, frozen=True):
    """Result of one run over the inbox."""

    taken: int
    """Number of entries that were taken."""
    refused: int = 0
    """Number of requests that became dead letters."""


class InboxReader:
    """Reads the inbox, accepts its requests and applies its commands."""

    def __init__(
        self,
        inbox: Inbox,
        *,
        intake: Intake,
        policies: Policies,
        schedule: SqlSchedule,
        resend_request: ResendRequest,
        purge: Callable[[], Awaitable[object]],
        clock: Clock,
        waker: LocalWaker,
        wake_worker: Callable[[], None],
        new_id: Callable[[], str],
        poll_ms: Callable[[], int],
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        self._inbox = inbox
        self._intake = intake
        self._policies = policies
        self._schedule = schedule
        self._resend_request = resend_request
        self._purge = purge
        self._clock = clock
        self._waker = waker
        self._wake_worker = wake_worker
        self._new_id = new_id
        self._poll_ms = poll_ms
        self._observer = observer

    async def run(self) -> None:
        """Reads the inbox until cancelled. Tries again later if the store is unavailable."""
        while True:
            try:
                taken = (await self.run_once()).taken
            except StoreError as error:
                log.warning("cannot read the inbox, the store is unavailable; trying again: %s", error)
                taken = 0
            except Exception:
                log.exception("the inbox could not be read; trying again")
                taken = 0
            if taken < _BATCH_SIZE:
                await self._waker.wait(self._poll_ms())

    async def run_once(self) -> InboxRun:
        """Processes one batch of entries."""
        await self._policies.refresh(max_age_ms=RULES_MAX_AGE_MS)
        await self._schedule.store()
        entries = await self._inbox.take_inbox(_BATCH_SIZE, _LEASE_MS)
        refused = await self._accept([entry for entry in entries if entry.kind is InboxEntryKind.SEND])
        for entry in entries:
            if entry.kind is not InboxEntryKind.SEND:
                await self._apply_isolated(entry)
        if entries:
            self._wake_worker()
        return InboxRun(len(entries), refused)

    async def _accept(self, entries: Sequence[InboxEntry]) -> int:
        """Accepts requests. Those that the store refuses become dead letters, and harm no other.

        Returns the number of dead letters.
        """
        prepared = await self._prepare(entries)
        if not prepared:
            return 0
        refused = 0

        async def accept(batch: Sequence[AcceptedEntry]) -> Sequence[None]:
            nonlocal refused
            result = await self._inbox.accept_inbox(batch)
            refused += result.refused
            if result.entries == len(batch):  # else another worker has accepted some of them
                stored = [one.submission for one in batch]
                self._observer.accepted(stored, [_acceptance(one) for one in stored])
            return [None] * len(batch)

        async def refuse(one: AcceptedEntry, error: StoreRejected) -> None:
            nonlocal refused
            refused += (await self._bury(one.entry, error)).refused

        await write_isolated(prepared, accept, refuse)
        return refused

    async def _prepare(self, entries: Sequence[InboxEntry]) -> list[AcceptedEntry]:
        """Returns the submissions of requests, in order, without those that must be tried again later.

        Prepares several at a time, because the directory may take long for some recipients.
        """
        found = await map_at_once(self._accepted, entries)
        return [one for one in found if one is not None]

    async def _bury(self, entry: InboxEntry, error: StoreRejected) -> InboxAcceptance:
        """Stores a refused request as a dead letter. If that is refused too, the entry stays in the inbox."""
        log.warning("the store refused an inbox entry, which becomes a dead letter: %s", error)
        for form in forms_of(self._dead_letter(entry, REFUSED_BY_STORE)):
            with suppress(StoreRejected):
                return await self._inbox.accept_inbox([AcceptedEntry(entry, form)])
        log.error("inbox entry %d can be stored in no form; it stays in the inbox: %s", entry.number, error)
        return InboxAcceptance(0)

    async def _accepted(self, entry: InboxEntry) -> AcceptedEntry | None:
        """Returns the submission of a request, or None if the request must be tried again later."""
        earlier = PriorAttempts(
            attempts=1 if entry.already_failed else 0,
            max_attempts=None if entry.max_retries is None else entry.max_retries + 1,
            last_error=entry.last_error,
        )
        try:
            raw = msgspec.json.decode(entry.request)
            if not isinstance(raw, dict):
                raise InvalidRequest("request", "is not a JSON object")
            submission = await self._intake.prepare(
                entry.tenant, read_request(raw), earlier=earlier, as_of=entry.enqueued_at
            )
            if isinstance(submission, RepeatedRequest):
                return self._repeated(entry, submission)
            if submission.lease_to is not None:
                raise InvalidRequest("synchronous", "is not possible through the inbox; use the API")
        except StoreRejected as error:  # for example, a recipient whose id the store cannot look up
            log.warning("the store refused an inbox entry, which becomes a dead letter: %s", error)
            return AcceptedEntry(entry, self._dead_letter(entry, REFUSED_BY_STORE))
        except StoreError as error:  # for example, a directory that fails for this recipient
            log.warning("an inbox entry cannot be prepared now and is tried again: %s", error)
            return None
        except Exception as error:
            known = isinstance(error, (InvalidRequest, msgspec.DecodeError, RecursionError))
            why = str(error) if known else f"the request could not be processed ({type(error).__name__})"
            log.warning(
                "an inbox entry is invalid and becomes a dead letter: %s",
                why,
                exc_info=None if known else error,
            )
            return AcceptedEntry(entry, self._dead_letter(entry, why))
        otherwise = None
        if submission.idempotency_key is not None:
            why = f"idempotencyKey: {submission.idempotency_key!r} already belongs to a different request"
            otherwise = self._dead_letter(entry, why)
        return AcceptedEntry(entry, self._intake.with_id(submission, entry.id), otherwise)

    def _repeated(self, entry: InboxEntry, repeated: RepeatedRequest) -> AcceptedEntry:
        """Returns the entry of a request that is no longer valid but was accepted before."""
        why = f"idempotencyKey: {repeated.idempotency_key!r} already belongs to a different request"
        dead_letter = self._dead_letter(entry, why)
        if repeated.answer.conflict:
            return AcceptedEntry(entry, dead_letter)
        return AcceptedEntry(entry, replace(dead_letter, notifications=()))

    def _dead_letter(self, entry: InboxEntry, why: str) -> Submission:
        """Returns a dead letter with the request and its error. The request's author gets no response."""
        channel, type_ = _channel_and_type(entry.request)
        keys = MatchKeys(entry.tenant, type_, "", channel, Priority.MEDIUM)
        dead = dead_request(
            id=entry.id,
            channel=channel,
            type=type_,
            request=entry.request,
            why=why,
            max_age_ms=self._policies.book.policy(keys, Mode.STANDARD).max_age_ms,
        )
        return Submission(tenant=entry.tenant, batch_id=self._new_id(), notifications=(dead,))

    async def _apply_isolated(self, entry: InboxEntry) -> None:
        """Applies a command. A command that can never be applied is logged and removed."""
        try:
            await self._apply_command(entry)
        except Exception as error:
            if isinstance(error, StoreError) and not isinstance(error, StoreRejected):
                raise
            log.exception(
                "%s of %s by %s failed and is removed", entry.kind, entry.notification_id, entry.who
            )
            await self._inbox.remove_inbox([entry])

    async def _apply_command(self, entry: InboxEntry) -> None:
        if entry.kind is InboxEntryKind.CLEANUP:
            await self._purge()
            await self._inbox.remove_inbox([entry])
            return
        about = entry.notification_id or ""
        if entry.kind is InboxEntryKind.RESEND and await self._has_resent_request(entry):
            return
        command = Command(
            name=_COMMANDS[entry.kind],
            who=entry.who,
            why=entry.why,
            new_ids={about: entry.id},
            batch_id=self._new_id(),
        )
        result = await self._inbox.amend_inbox(entry, command)
        if result is not None and (result.refused or result.missing):
            now = ", ".join(status.value for status in result.refused.values()) or "gone"
            log.warning(
                "%s of %s by %s is not possible: the notification is %s", entry.kind, about, entry.who, now
            )

    async def _has_resent_request(self, entry: InboxEntry) -> bool:
        """Resends the dead letter of a request that was never accepted, and removes the entry.

        If this process ends in between, another one repeats the entry, which creates no second notification.
        """
        try:
            if not await self._resend_request(entry):
                return False
        except NotFound:
            return False
        except CommandRefused as error:
            log.warning("%s by %s: %s", entry.kind, entry.who, error)
        await self._inbox.remove_inbox([entry])
        return True


def _channel_and_type(request: str) -> tuple[Channel, str]:
    """Returns the channel and type of an invalid request, or placeholders if they cannot be read."""
    try:
        raw = msgspec.json.decode(request)
        channel, type_ = Channel(raw["channel"]), raw.get("type")
    except (msgspec.DecodeError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return Channel.QUEUE, UNREADABLE
    return channel, type_ if isinstance(type_, str) else UNREADABLE


def _acceptance(submission: Submission) -> Acceptance:
    return Acceptance(batch_id=submission.batch_id, ids=tuple(new.id for new in submission.notifications))
