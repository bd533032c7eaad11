"""Reads what apps report about FCM messages. Pure.

Google has no webhook for delivery reports, so the format is our own: `{"messageId", "event": "delivered" |
"failed", "error"?, "deviceToken"?, "timestamp"?}`, signed as Standard Webhooks. The signed `webhook-id` is
the event's id, so a repeated report changes nothing.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from homing.core.errors import CallbackRefused
from homing.core.lifecycle.receipts import Callback, ParsedCallback, Receipt, ReceiptEvent
from homing.net.secrets import SecretSetting, read_secrets
from homing.net.standard_webhooks import SigningKey, verify_webhook
from homing.providers.common.error_tables import load_error_table
from homing.providers.common.response_parsing import parse_past_time_ms, redacted_error_text

_MAX_BODY_BYTES = 64 * 1024

_EVENTS = {"delivered": ReceiptEvent.DELIVERED, "failed": ReceiptEvent.FAILED}


class AppReport(Struct, frozen=True, rename="camel"):
    """The body of an app's report about a message. Unknown members are ignored."""

    message_id: str
    event: str
    timestamp: str | int | float | None = None
    error: str | None = None
    device_token: str | None = None


class FcmCallbacks:
    """Verifies and reads the reports of one project's apps."""

    def __init__(self, project_id: str, callback_secret: SecretSetting = ()) -> None:
        self._name_prefix = f"projects/{project_id}/messages/"
        self._secrets = read_secrets("callback_secret", callback_secret)
        for one in self._secrets:
            SigningKey(one, "callback_secret")  # fails at start if the secret is wrong

    def handle_callback(self, callback: Callback, now_ms: int) -> ParsedCallback:
        if not self._secrets:
            raise CallbackRefused("callback_secret is not set, so reports of apps cannot be verified")
        if len(callback.body) > _MAX_BODY_BYTES:
            raise CallbackRefused(f"the body has more than {_MAX_BODY_BYTES} bytes")
        verify_webhook(self._secrets, callback, now_ms)
        try:
            report = msgspec.json.decode(callback.body, type=AppReport)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ParsedCallback(unreadable=1)
        event = _EVENTS.get(report.event)
        if event is None:
            return ParsedCallback(ignored=1)
        if not report.message_id:
            return ParsedCallback(unreadable=1)
        return ParsedCallback(receipts=(self._receipt(report, event, callback, now_ms),))

    def _receipt(self, report: AppReport, event: ReceiptEvent, callback: Callback, now_ms: int) -> Receipt:
        failed = event is ReceiptEvent.FAILED
        meaning = load_error_table("fcm").codes.get(report.error) if failed and report.error else None
        return Receipt(
            provider="fcm",
            provider_message_id=self._name(report.message_id),
            event=event,
            event_id=callback.headers["webhook-id"],
            at=parse_past_time_ms(report.timestamp, now_ms),
            outcome=meaning.outcome if meaning else None,
            retry_after_ms=meaning.retry_after_ms if meaning else None,
            error_code=report.error if meaning else None,
            error=redacted_error_text(report.error) if failed else None,
        )

    def _name(self, message_id: str) -> str:
        """Returns FCM's full name of the message. A device gets only the last part of that name."""
        return message_id if message_id.startswith("projects/") else self._name_prefix + message_id
