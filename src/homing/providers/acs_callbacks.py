"""Event Grid as it reports on mails of Communication Services: the handshake, and events in either schema.

Event Grid signs nothing: whoever knows the key in the address (or in a header that the subscription adds)
is believed, and nobody is while no key is set.
"""

from __future__ import annotations

import hmac
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from homing.core.callbacks import Callback, CallbackRefused, Heard
from homing.core.model import Receipt, ReceiptEvent
from homing.providers.answers import error_table
from homing.providers.reading import as_object, error_text, json_of, moment_ms
from homing.providers.secret import Secret, secret

KEY_HEADER = "x-webhook-key"
KEY_PARAMETER = "key"
_MAX_QUERY_FIELDS = 100

_VALIDATION = "Microsoft.EventGrid.SubscriptionValidationEvent"
_DELIVERY = "Microsoft.Communication.EmailDeliveryReportReceived"
_ENGAGEMENT = "Microsoft.Communication.EmailEngagementTrackingReportReceived"

_REPORTED = {"Delivered": ReceiptEvent.DELIVERED, "Expanded": ReceiptEvent.SENT}
"""The statuses that are no failure. By the vendor's documentation, every other status is one."""

_ENGAGED = {"view": ReceiptEvent.OPEN, "click": ReceiptEvent.CLICK}


class AcsCallbacks:
    """Reads what Event Grid posts."""

    def __init__(self, key: str | Secret, *, named_by_us: bool) -> None:
        self._key = secret("webhook_key", key).reveal().encode() if key else None
        self._named_by_us = named_by_us

    def hear(self, callback: Callback, now_ms: int) -> Heard:
        """One bad event never fails its batch."""
        self._check(callback)
        if callback.method == "OPTIONS":
            return _welcome(callback)
        events = json_of(callback.body)
        receipts: list[Receipt] = []
        ignored = unreadable = 0
        for event in events if isinstance(events, list) else [events]:
            try:
                kind = _kind(event)
                if kind == _VALIDATION:
                    return _validation(event)
                found = self._receipts(kind, event, now_ms)
            except (TypeError, ValueError, AttributeError, LookupError, OverflowError):
                unreadable += 1
                continue
            ignored += not found
            receipts += found
        return Heard(receipts=tuple(receipts), ignored=ignored, unreadable=unreadable)

    def _check(self, callback: Callback) -> None:
        if self._key is None:
            raise CallbackRefused("webhook_key is not set, so no event can be believed")
        given = callback.headers.get(KEY_HEADER)
        if given is None:
            try:
                query = parse_qs(urlsplit(callback.url).query, max_num_fields=_MAX_QUERY_FIELDS)
                given = query.get(KEY_PARAMETER, [""])[0]
            except ValueError:
                given = ""
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._key):
            raise CallbackRefused("the key of the callback is not ours; nothing was changed")

    def _receipts(self, kind: str, event: dict[str, Any], now_ms: int) -> list[Receipt]:
        if kind == _DELIVERY:
            return [self._delivery(event, now_ms)]
        if kind == _ENGAGEMENT:
            return self._engagement(event, now_ms)
        return []

    def _delivery(self, event: dict[str, Any], now_ms: int) -> Receipt:
        data = event["data"]
        status = _needed(data, "status")
        meant = _REPORTED.get(status, ReceiptEvent.FAILED)
        failed = meant is ReceiptEvent.FAILED
        meaning = error_table("acs").codes.get(status) if failed else None
        told = as_object(data.get("deliveryStatusDetails")).get("statusMessage")
        return Receipt(
            event=meant,
            event_id=_needed(event, "id"),
            at=_at(event, data.get("deliveryAttemptTimeStamp"), now_ms),
            outcome=meaning.outcome if meaning else None,
            retry_after_ms=meaning.retry_after_ms if meaning else None,
            error_code=status[:100] if failed else None,
            error=error_text(told) if failed else None,
            **self._whose(data),
        )

    def _engagement(self, event: dict[str, Any], now_ms: int) -> list[Receipt]:
        """Who opens or clicks has got it: it tells of the delivery too, should its own report be lost."""
        data = event["data"]
        meant = _ENGAGED.get(_needed(data, "engagementType").lower())
        if meant is None:
            return []
        id = _needed(event, "id")
        at = _at(event, data.get("userActionTimeStamp"), now_ms)
        whose = self._whose(data)
        return [
            Receipt(event=ReceiptEvent.DELIVERED, event_id=id, at=at, **whose),
            Receipt(event=meant, event_id=f"{id}:{meant.value}", at=at, **whose),
        ]

    def _whose(self, data: dict[str, Any]) -> dict[str, Any]:
        """The message; where operations are named after notifications, its id is the notification's."""
        message_id = _needed(data, "messageId")
        return {
            "provider": "acs",
            "provider_message_id": message_id,
            "notification_id": message_id.lower() if self._named_by_us else None,
        }


def _kind(event: dict[str, Any]) -> str:
    """Event Grid's schema says `eventType`, that of CloudEvents `type`."""
    kind = event.get("eventType") or event.get("type")
    if not isinstance(kind, str):
        raise TypeError("an event without its type")
    return kind


def _validation(event: dict[str, Any]) -> Heard:
    code = _needed(event["data"], "validationCode")
    return Heard(reply=msgspec.json.encode({"validationResponse": code}), reply_type="application/json")


def _welcome(callback: Callback) -> Heard:
    """The handshake of CloudEvents: the sender may send, as fast as it likes."""
    origin = callback.headers.get("webhook-request-origin", "")
    if not origin or not origin.isprintable() or not origin.isascii():
        raise CallbackRefused("an OPTIONS request without its WebHook-Request-Origin")
    return Heard(reply_headers={"WebHook-Allowed-Origin": origin, "WebHook-Allowed-Rate": "*"})


def _needed(fields: dict[str, Any], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str) or not value or len(value) > 255:
        raise ValueError(f"{name} is not what it should be")
    return value


def _at(event: dict[str, Any], happened: Any, now_ms: int) -> int:
    """When the report says it happened, else when it was made: `eventTime`, `time` in CloudEvents."""
    return moment_ms(happened or event.get("eventTime") or event.get("time"), now_ms)
