"""What providers tell later: verified and read by the provider, completed here, applied by the store."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from homing.core.backoff import base_delay_ms
from homing.core.callbacks import Callback, Heard
from homing.core.errors import CallbackRefused, CallbackUnreadable, InvalidRequest, StoreError
from homing.core.failover import Route
from homing.core.model import Channel, Mode, OutcomeKind, Priority, Receipt, ReceiptEvent, ReceiptResult
from homing.core.observing import NOBODY, Observer
from homing.core.policy import BounceFailover, Keys, RetryPolicy
from homing.core.ports import Backend, Clock, Hears, Prepares
from homing.core.request import provider_id
from homing.engine.alerts import Alerts
from homing.engine.answering import plain
from homing.engine.policies import Policies
from homing.engine.roster import Listed, Roster

log = logging.getLogger("homing.callbacks")

_STEP = 200
_PREPARE_S = 10
_MOST_BYTES = 8 * 1024 * 1024
"""Of a callback's body. SendGrid posts batches of some hundred events, each of some hundred bytes."""
_LONGEST_ID = 255
_MOST_ATTEMPTS = 1_000_000
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class CallbackResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """What became of the events of a callback, and what to answer its sender with."""

    applied: int = 0
    unchanged: int = 0
    """Heard before, or overtaken by what was heard since."""
    orphaned: int = 0
    """About messages that are not known yet: kept, and applied when they are."""
    ignored: int = 0
    unreadable: int = 0
    reply: bytes = b""
    reply_type: str = "text/plain"
    reply_headers: Mapping[str, str] = field(default_factory=dict)


class Callbacks:
    """Takes callbacks, and receipts that were asked for, to the store."""

    def __init__(
        self,
        *,
        backend: Backend,
        roster: Roster,
        policies: Policies,
        clock: Clock,
        alerts: Alerts,
        wake: Callable[[], None],
        observer: Observer = NOBODY,
    ) -> None:
        self._backend = backend
        self._roster = roster
        self._policies = policies
        self._clock = clock
        self._alerts = alerts
        self._wake = wake
        self._observer = observer

    async def hear(self, provider: str, callback: Callback) -> CallbackResult:
        """Verify → complete → apply. Raises `CallbackRefused` where the provider did not sign it."""
        listed = self._listed(provider)
        if len(callback.body) > _MOST_BYTES:
            raise CallbackUnreadable(f"the callback has more than {_MOST_BYTES} bytes; nothing was changed")
        await self._prepared(listed, callback)
        heard = self._heard(listed, callback)
        counted = await self.apply(listed, heard.receipts)
        return replace(
            counted,
            ignored=heard.ignored,
            unreadable=heard.unreadable + counted.unreadable,
            reply=heard.reply,
            reply_type=heard.reply_type,
            reply_headers=heard.reply_headers,
        )

    async def apply(self, listed: Listed, receipts: Iterable[Receipt]) -> CallbackResult:
        """Hands receipts of one provider to the store, in bounded steps. Safe to repeat after an error."""
        usable, unreadable = self._completed(listed, receipts)
        applied = unchanged = orphaned = 0
        for start in range(0, len(usable), _STEP):
            step = usable[start : start + _STEP]
            try:
                result = await self._backend.receipt(step)
            except StoreError as error:
                self._observer.store_failed("receipt", error)
                raise
            self._observer.heard(step, result)
            self._note_faults(listed.id, step, result)
            applied += len(result.applied)
            unchanged += len(result.unchanged)
            orphaned += len(result.orphaned)
        if applied and any(receipt.event is ReceiptEvent.FAILED for receipt in usable):
            self._wake()  # it may have been reopened, and is due now
        await self._tell()
        return CallbackResult(applied=applied, unchanged=unchanged, orphaned=orphaned, unreadable=unreadable)

    def _note_faults(self, provider: str, step: Sequence[Receipt], result: ReceiptResult) -> None:
        """A reported fault of the provider raises the alert that the same answer to a send raises."""
        new = {*result.applied, *result.orphaned}
        if any(one.outcome is OutcomeKind.PROVIDER_FAULT and one.event_id in new for one in step):
            self._alerts.add_provider_fault(provider)

    async def _tell(self) -> None:
        """Writes the alerts; the receipts are applied already, so that a store that is away loses none."""
        try:
            await self._alerts.flush()
        except StoreError as error:
            log.warning("an alert waits for the store: %s", error)

    def _listed(self, provider: str) -> Listed:
        listed = self._roster.get(provider_id(provider))
        if listed is not None and isinstance(listed.provider, Hears):
            return listed
        hearing = [one.id for one in self._roster if isinstance(one.provider, Hears)]
        known = ", ".join(hearing) or "none"
        problem = "is not configured" if listed is None else "does not call back"
        raise InvalidRequest("provider", f"{provider!r} {problem}; those that do are: {known}")

    async def _prepared(self, listed: Listed, callback: Callback) -> None:
        """What the provider must fetch first. Where that fails, it refuses what it cannot verify."""
        if not isinstance(listed.provider, Prepares):
            return
        try:
            async with asyncio.timeout(_PREPARE_S):
                await listed.provider.prepare(callback, self._clock.now_ms())
        except Exception as error:  # a provider may fail in any way, and hang
            log.warning("%s could not prepare for a callback: %s", listed.id, type(error).__name__)

    def _heard(self, listed: Listed, callback: Callback) -> Heard:
        assert isinstance(listed.provider, Hears), "checked by the caller"
        try:
            return listed.provider.hear(callback, self._clock.now_ms())
        except CallbackRefused:
            log.warning("a callback in the name of %s was refused", listed.id)
            raise
        except Exception as error:  # its text may name the recipient
            log.error("%s could not read a callback: %s", listed.id, type(error).__name__)
            raise CallbackUnreadable(f"{listed.id} could not read the callback") from None

    def _completed(self, listed: Listed, receipts: Iterable[Receipt]) -> tuple[Sequence[Receipt], int]:
        """With what a callback cannot know; and how many no store could keep."""
        usable: list[Receipt] = []
        unreadable = 0
        routes = {channel: self._route(listed, channel) for channel in listed.channels}
        policies = self._channel_policies(listed)
        always = all(policy.bounce_failover is BounceFailover.ALWAYS for policy in policies)
        backoff_ms = max(base_delay_ms(policy, 1) for policy in policies)
        for receipt in receipts:
            if not all(map(_storable, (receipt.event_id, receipt.provider_message_id))):
                unreadable += 1
                continue
            failed = receipt.event is ReceiptEvent.FAILED
            usable.append(
                replace(
                    receipt,
                    provider=listed.id,
                    notification_id=_ours(receipt.notification_id),
                    attempt=receipt.attempt if 0 < receipt.attempt < _MOST_ATTEMPTS else 0,
                    error=plain(receipt.error),
                    error_code=plain(receipt.error_code, 100),
                    routes=routes if failed else {},
                    outcome=receipt.outcome if isinstance(receipt.outcome, OutcomeKind) else None,
                    retry_after_ms=_wait_ms(receipt.retry_after_ms),
                    always_failover=failed and always,
                    backoff_ms=backoff_ms if failed else 0,
                )
            )
        return usable, unreadable

    def _route(self, listed: Listed, channel: Channel) -> Route:
        route = self._roster.route(channel)
        if channel is not Channel.PUSH:
            return route
        # A device token belongs to the provider that gave it out: no other one can use it.
        return tuple(stop for stop in route if stop.provider == listed.id)

    def _channel_policies(self, listed: Listed) -> list[RetryPolicy]:
        """The policy of each channel of the provider, for rows that do not say what their own was."""
        book = self._policies.book
        return [
            book.policy(Keys("", "", "", channel, Priority.MEDIUM), Mode.STANDARD)
            for channel in listed.channels
        ]


def _ours(id: str | None) -> str | None:
    """An id that can be one of ours: others may use the same account, with words of their own."""
    return id if id is not None and _UUID.fullmatch(id) else None


def _wait_ms(asked: object) -> int | None:
    """A wait that a provider may ask for, if it is one."""
    return asked if isinstance(asked, int) and asked > 0 else None


def _storable(id: str) -> bool:
    return 0 < len(id) <= _LONGEST_ID and plain(id, _LONGEST_ID) == id
