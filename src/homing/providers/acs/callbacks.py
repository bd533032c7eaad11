"""Reads Event Grid's callbacks about emails sent with Communication Services: handshakes and events.

Events may be in the schema of Event Grid or of CloudEvents. Event Grid signs nothing. A callback is accepted
if the configured key is in its URL, or in a header that the subscription adds. Without a configured key,
every callback is refused.
"""

from __future__ import annotations

import hmac
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from homing.core.errors import CallbackRefused
from homing.core.lifecycle.receipts import Callback, ParsedCallback, Receipt, ReceiptEvent
from homing.net.secrets import SecretSetting, read_secrets
from homing.providers.common.error_tables import load_error_table
from homing.providers.common.response_parsing import (
    as_object,
    decode_json,
    parse_past_time_ms,
    redacted_error_text,
)

KEY_HEADER = "x-webhook-key"

KEY_PARAMETER = "key"

_MAX_QUERY_FIELDS = 100

ID_VERSION = "7"
"""Version digit of a notification id."""

_VERSION_AT = 14
"""Position of the version digit in a UUID."""

_UUID_CHARS = 36


_VALIDATION_TYPE = "Microsoft.EventGrid.SubscriptionValidationEvent"

_DELIVERY_TYPE = "Microsoft.Communication.EmailDeliveryReportReceived"

_ENGAGEMENT_TYPE = "Microsoft.Communication.EmailEngagementTrackingReportReceived"


_DELIVERY_EVENTS = {"Delivered": ReceiptEvent.DELIVERED, "Expanded": ReceiptEvent.SENT}
"""Receipt event of each delivery status that is not a failure. Every other status counts as a failure."""


_ENGAGEMENT_EVENTS = {"view": ReceiptEvent.OPEN, "click": ReceiptEvent.CLICK}


class AcsCallbacks:
    """Verifies and reads the callbacks of Event Grid."""

    def __init__(self, keys: SecretSetting, *, has_notification_ids: bool) -> None:
        self._keys = tuple(key.reveal().encode() for key in read_secrets("webhook_key", keys))
        self._has_notification_ids = has_notification_ids

    def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
        """Answers a handshake, or reads one batch of events. Unreadable events are counted and skipped."""
        self._check(callback)
        if callback.method == "OPTIONS":
            return _answer_handshake(callback)
        events = decode_json(callback.body)
        receipts: list[Receipt] = []
        ignored = unreadable = 0
        for event in events if isinstance(events, list) else [events]:
            try:
                kind = _kind(event)
                if kind == _VALIDATION_TYPE:
                    return _answer_validation(event)
                found = self._receipts(kind, event, now_ms)
            except (TypeError, ValueError, AttributeError, LookupError, OverflowError):
                unreadable += 1
                continue
            ignored += not found
            receipts += found
        return ParsedCallback(receipts=tuple(receipts), ignored=ignored, unreadable=unreadable)

    def _check(self, callback: Callback) -> None:
        if not self._keys:
            raise CallbackRefused("webhook_key is not set, so callbacks cannot be verified")
        given = callback.headers.get(KEY_HEADER)
        if given is None:
            try:
                query = parse_qs(urlsplit(callback.url).query, max_num_fields=_MAX_QUERY_FIELDS)
                given = query.get(KEY_PARAMETER, [""])[0]
            except ValueError:
                given = ""
        said = given.encode("utf-8", "replace")
        if not any(hmac.compare_digest(said, key) for key in self._keys):
            raise CallbackRefused("the callback's key does not match webhook_key")

    def _receipts(self, kind: str, event: dict[str, Any], now_ms: int) -> list[Receipt]:
        if kind == _DELIVERY_TYPE:
            return [self._delivery(event, now_ms)]
        if kind == _ENGAGEMENT_TYPE:
            return self._engagement(event, now_ms)
        return []

    def _delivery(self, event: dict[str, Any], now_ms: int) -> Receipt:
        data = event["data"]
        status = _require_text(data, "status")
        receipt_event = _DELIVERY_EVENTS.get(status, ReceiptEvent.FAILED)
        failed = receipt_event is ReceiptEvent.FAILED
        meaning = load_error_table("acs").codes.get(status) if failed else None
        message = as_object(data.get("deliveryStatusDetails")).get("statusMessage")
        return Receipt(
            event=receipt_event,
            event_id=_require_text(event, "id"),
            at=_at(event, data.get("deliveryAttemptTimeStamp"), now_ms),
            outcome=meaning.outcome if meaning else None,
            retry_after_ms=meaning.retry_after_ms if meaning else None,
            error_code=status[:100] if failed else None,
            error=redacted_error_text(message) if failed else None,
            **self._identify(data),
        )

    def _engagement(self, event: dict[str, Any], now_ms: int) -> list[Receipt]:
        """Returns the receipts of an open or click. Both imply the delivery, whose own report may be lost."""
        data = event["data"]
        receipt_event = _ENGAGEMENT_EVENTS.get(_require_text(data, "engagementType").lower())
        if receipt_event is None:
            return []
        id = _require_text(event, "id")
        at = _at(event, data.get("userActionTimeStamp"), now_ms)
        identity = self._identify(data)
        return [
            Receipt(event=ReceiptEvent.DELIVERED, event_id=id, at=at, **identity),
            Receipt(event=receipt_event, event_id=f"{id}:{receipt_event.value}", at=at, **identity),
        ]

    def _identify(self, data: dict[str, Any]) -> dict[str, Any]:
        """Returns the receipt fields that identify the message.

        If `name_operations` is set, the message id also identifies the notification.
        """
        message_id = _require_text(data, "messageId")
        return {
            "provider": "acs",
            "provider_message_id": message_id,
            "notification_id": notification_id_of(message_id) if self._has_notification_ids else None,
        }


def with_version(id: str, digit: str) -> str:
    """Returns a UUID with this digit as its version."""
    return id[:_VERSION_AT] + digit + id[_VERSION_AT + 1 :]


def notification_id_of(operation: str) -> str:
    """Returns the notification id in an operation id.

    Both are UUIDs that differ at most in their version (see `operation_id`).
    """
    return with_version(operation.lower(), ID_VERSION) if len(operation) == _UUID_CHARS else operation.lower()


def _kind(event: dict[str, Any]) -> str:
    """Returns the event's type: `eventType` in Event Grid's schema, `type` in that of CloudEvents."""
    kind = event.get("eventType") or event.get("type")
    if not isinstance(kind, str):
        raise TypeError("the event has no type")
    return kind


def _answer_validation(event: dict[str, Any]) -> ParsedCallback:
    code = _require_text(event["data"], "validationCode")
    return ParsedCallback(
        reply=msgspec.json.encode({"validationResponse": code}), reply_type="application/json"
    )


def _answer_handshake(callback: Callback) -> ParsedCallback:
    """Answers the handshake of CloudEvents: allows the sender to send at any rate."""
    origin = callback.headers.get("webhook-request-origin", "")
    if not origin or not origin.isprintable() or not origin.isascii():
        raise CallbackRefused("the OPTIONS request has no WebHook-Request-Origin")
    return ParsedCallback(reply_headers={"WebHook-Allowed-Origin": origin, "WebHook-Allowed-Rate": "*"})


def _require_text(fields: dict[str, Any], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str) or not value or len(value) > 255:
        raise ValueError(f"{name} must be a non-empty text of at most 255 characters")
    return value


def _at(event: dict[str, Any], happened: Any, now_ms: int) -> int:
    """Returns when the event happened, in epoch milliseconds.

    If that time is missing, returns the time of the report: `eventTime`, or `time` in CloudEvents.
    """
    return parse_past_time_ms(happened or event.get("eventTime") or event.get("time"), now_ms)
