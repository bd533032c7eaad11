"""Handles provider callbacks: the provider verifies and parses a callback, the store applies its receipts."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from homing.core.errors import CallbackRefused, CallbackUnreadable, InvalidRequest, StoreError, StoreRejected
from homing.core.lifecycle.receipts import Callback, ParsedCallback, Receipt, ReceiptEvent, ReceiptResult
from homing.core.notifications import Channel, Mode, OutcomeKind, Priority
from homing.core.ports.observers import NULL_OBSERVER, Observer
from homing.core.ports.providers import SupportsCallbackPreparation, SupportsCallbacks
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Backend
from homing.core.retry.backoff import base_delay_ms
from homing.core.retry.policy import BounceFailover, MatchKeys, RetryPolicy
from homing.core.routing.failover import Route
from homing.engine.delivery.attempts import sanitize_text
from homing.engine.isolation import write_in_parts
from homing.engine.operations.policies import RULES_MAX_AGE_MS, Policies
from homing.engine.plug_in_calls import call_within
from homing.engine.provider_roster import Listed, ProviderRoster
from homing.engine.upkeep.alerts import Alerts

log = logging.getLogger("homing.callbacks")


_BATCH_SIZE = 200

_PREPARE_S = 10

_MAX_BODY_BYTES = 8 * 1024 * 1024
"""Maximum size of a callback's body.

SendGrid posts batches of several hundred events, each a few hundred bytes.
"""

_MAX_ID_CHARS = 255

_MAX_ATTEMPTS = 1_000_000

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class CallbackResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """Number of a callback's events by result, and the reply for the sender of the callback."""

    applied: int = 0
    unchanged: int = 0
    """Number of events that changed nothing, because they are repeated or outdated."""
    orphaned: int = 0
    """Number of events that are stored until their message is known, and applied then."""
    ignored: int = 0
    unreadable: int = 0
    reply: bytes = b""
    reply_type: str = "text/plain"
    reply_headers: Mapping[str, str] = field(default_factory=dict)


class CallbackHandler:
    """Applies receipts to the store, from callbacks and from status lookups."""

    def __init__(
        self,
        *,
        backend: Backend,
        roster: ProviderRoster,
        policies: Policies,
        clock: Clock,
        alerts: Alerts,
        wake: Callable[[], None],
        observer: Observer = NULL_OBSERVER,
    ) -> None:
        self._backend = backend
        self._roster = roster
        self._policies = policies
        self._clock = clock
        self._alerts = alerts
        self._wake = wake
        self._observer = observer

    async def handle_callback(self, provider: str, callback: Callback) -> CallbackResult:
        """Verifies and parses a callback, and applies its receipts.

        Raises `CallbackRefused` if the provider did not sign the callback. Raises `CallbackUnreadable` if the
        callback is too large or cannot be parsed, or if none of its events can be read.
        """
        listed = self._provider_with_callbacks(provider)
        if len(callback.body) > _MAX_BODY_BYTES:
            raise CallbackUnreadable(
                f"the callback is larger than {_MAX_BODY_BYTES} bytes; nothing was changed"
            )
        await self._prepare(listed, callback)
        parsed = self._parse(listed, callback)
        counted = await self.apply(listed, parsed.receipts)
        unreadable = parsed.unreadable + counted.unreadable
        if unreadable:
            self._note_unreadable(listed, unreadable)
            if unreadable == parsed.unreadable + len(parsed.receipts) and not (
                parsed.ignored or parsed.reply
            ):
                raise CallbackUnreadable(f"{listed.id} could not read any event of the callback")
        return replace(
            counted,
            ignored=parsed.ignored,
            unreadable=unreadable,
            reply=parsed.reply,
            reply_type=parsed.reply_type,
            reply_headers=parsed.reply_headers,
        )

    async def apply(self, listed: Listed, receipts: Iterable[Receipt]) -> CallbackResult:
        """Applies receipts of one provider in batches. The call can be repeated safely after an error."""
        await self._policies.refresh(max_age_ms=RULES_MAX_AGE_MS)
        usable, unreadable = self._complete(listed, receipts)
        applied = unchanged = orphaned = refused = 0
        for start in range(0, len(usable), _BATCH_SIZE):
            for result in await self._apply_step(listed, usable[start : start + _BATCH_SIZE]):
                if result is None:
                    refused += 1
                    continue
                applied += len(result.applied)
                unchanged += len(result.unchanged)
                orphaned += len(result.orphaned)
        if applied and any(receipt.event is ReceiptEvent.FAILED for receipt in usable):
            self._wake()  # a failed notification may have been reopened and be due now
        await self._flush_alerts()
        return CallbackResult(
            applied=applied, unchanged=unchanged, orphaned=orphaned, unreadable=unreadable + refused
        )

    async def _apply_step(self, listed: Listed, step: Sequence[Receipt]) -> list[ReceiptResult | None]:
        """Applies receipts, and returns the results of the calls that were made.

        A receipt that the store refuses harms no other. It is applied without the provider's texts, or, if
        the store refuses that too, logged and counted with None.
        """

        async def apply(part: Sequence[Receipt]) -> ReceiptResult | None:
            try:
                result = await self._backend.receipt(part)
            except StoreError as error:
                self._observer.store_failed("receipt", error)
                raise
            self._observer.receipts_applied(part, result)
            self._note_faults(listed.id, part, result)
            return result

        async def refuse(receipt: Receipt, error: Exception) -> ReceiptResult | None:
            try:
                result = await apply([replace(receipt, error=None, error_code=None)])
            except StoreRejected:
                log.error("the store refused a receipt of %s, which is dropped: %s", listed.id, error)
                return None
            log.warning("a receipt of %s was applied without its texts: %s", listed.id, error)
            return result

        return await write_in_parts(step, apply, refuse)

    def _note_unreadable(self, listed: Listed, events: int) -> None:
        log.warning("a callback for %s is signed, but %d of its events cannot be read", listed.id, events)
        self._observer.callback_unreadable(listed.id, events)

    def _note_faults(self, provider: str, step: Sequence[Receipt], result: ReceiptResult) -> None:
        """Queues the alert for provider faults if a new receipt reports one."""
        new = {*result.applied, *result.orphaned}
        if any(one.outcome is OutcomeKind.PROVIDER_FAULT and one.event_id in new for one in step):
            self._alerts.add_provider_fault(provider)

    async def _flush_alerts(self) -> None:
        """Writes the queued alerts. Only logs a store error, because the receipts are already applied."""
        try:
            await self._alerts.flush()
        except StoreError as error:
            log.warning("cannot write an alert, the store is unavailable; trying again later: %s", error)

    def _provider_with_callbacks(self, provider: str) -> Listed:
        listed = self._roster.find(provider)
        if listed is not None and isinstance(listed.provider, SupportsCallbacks):
            return listed
        supporting = [one.id for one in self._roster if isinstance(one.provider, SupportsCallbacks)]
        known = ", ".join(supporting) or "none"
        problem = "is not configured" if listed is None else "does not support callbacks"
        raise InvalidRequest("provider", f"{provider!r} {problem}; providers that support callbacks: {known}")

    async def _prepare(self, listed: Listed, callback: Callback) -> None:
        """Lets the provider fetch what it needs to verify the callback, such as a certificate.

        Errors are logged. The verification fails later if something is missing.
        """
        if not isinstance(listed.provider, SupportsCallbackPreparation):
            return
        try:
            prepare = partial(listed.provider.prepare, callback, self._clock.now_ms())
            await call_within(prepare, 1000 * _PREPARE_S)
        except Exception as error:  # a provider may raise anything, or hang
            log.warning("%s could not prepare for a callback: %s", listed.id, type(error).__name__)

    def _parse(self, listed: Listed, callback: Callback) -> ParsedCallback:
        assert isinstance(listed.provider, SupportsCallbacks), "checked by the caller"
        try:
            return listed.provider.handle_callback(callback, self._clock.now_ms())
        except CallbackRefused:
            log.warning("a callback for %s was rejected: its signature is not valid", listed.id)
            raise
        except BaseException as error:  # a provider may raise anything; the text may contain the recipient
            log.error("%s could not read a callback: %s", listed.id, type(error).__name__)
            self._observer.callback_unreadable(listed.id, 1)
            raise CallbackUnreadable(f"{listed.id} could not read the callback") from None

    def _complete(self, listed: Listed, receipts: Iterable[Receipt]) -> tuple[Sequence[Receipt], int]:
        """Returns receipts with route and policy added, and the number of receipts that cannot be stored."""
        usable: list[Receipt] = []
        unreadable = 0
        routes = {channel: self._route(listed, channel) for channel in listed.channels}
        policies = self._channel_policies(listed)
        always = all(policy.bounce_failover is BounceFailover.ALWAYS for policy in policies)
        backoff_ms = max(base_delay_ms(policy, 1) for policy in policies)
        for given in receipts:
            receipt = _plain_receipt(given)
            if receipt is None:
                unreadable += 1
                continue
            failed = receipt.event is ReceiptEvent.FAILED
            usable.append(
                replace(
                    receipt,
                    provider=listed.id,
                    notification_id=_own_id(receipt.notification_id),
                    attempt=receipt.attempt if 0 < receipt.attempt < _MAX_ATTEMPTS else 0,
                    error=sanitize_text(given.error),
                    error_code=sanitize_text(given.error_code, 100),
                    routes=routes,
                    outcome=_outcome_kind(given.outcome),
                    retry_after_ms=_wait_ms(given.retry_after_ms),
                    always_failover=failed and always,
                    backoff_ms=backoff_ms if failed else 0,
                )
            )
        return usable, unreadable

    def _route(self, listed: Listed, channel: Channel) -> Route:
        route = self._roster.route(channel)
        if channel is not Channel.PUSH:
            return route
        # A device token is valid only at the provider that issued it.
        return tuple(stop for stop in route if stop.provider == listed.id)

    def _channel_policies(self, listed: Listed) -> list[RetryPolicy]:
        """Returns the default policy of each channel, for rows settled before rows kept bounce rules."""
        book = self._policies.book
        return [
            book.policy(MatchKeys("", "", "", channel, Priority.MEDIUM), Mode.STANDARD)
            for channel in listed.channels
        ]


def _plain_receipt(given: object) -> Receipt | None:
    """Returns a receipt with values of the declared types, or None if it is invalid or cannot be stored.

    Providers may be user code, and a struct does not check its values: an event may be given by its name. The
    fields that are left out here are replaced if they are invalid.
    """
    if not isinstance(given, Receipt):
        return None
    checked = replace(given, outcome=None, retry_after_ms=None, error=None, error_code=None, routes={})
    try:
        receipt = msgspec.convert(msgspec.to_builtins(checked), Receipt)
    except Exception:  # a foreign value may raise anything
        return None
    return receipt if _storable(receipt.event_id) and _storable(receipt.provider_message_id) else None


def _outcome_kind(given: Any) -> OutcomeKind | None:
    """Returns the class of an error, which may be given by its name, or None if there is no such class."""
    try:
        return None if given is None else OutcomeKind(given)
    except Exception:  # a foreign value may raise anything
        return None


def _own_id(id: str | None) -> str | None:
    """Returns the id if it has the form of a notification id, else None.

    Other programs may use the same provider account, with ids of another form.
    """
    return id if id is not None and _UUID.fullmatch(id) else None


def _wait_ms(asked: object) -> int | None:
    """Returns the wait that a provider asked for, or None if it is not a positive integer."""
    return asked if type(asked) is int and asked > 0 else None


def _storable(id: str) -> bool:
    return 0 < len(id) <= _MAX_ID_CHARS and sanitize_text(id, _MAX_ID_CHARS) == id
