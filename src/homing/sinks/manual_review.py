"""A sink that puts messages which are not retried any more on a queue of RabbitMQ, for people to review."""

from __future__ import annotations

from base64 import b64decode
from typing import Any, ClassVar
from urllib.parse import unquote

from homing.brokers.rabbitmq import DECLARE_ADVICE
from homing.brokers.rabbitmq_publisher import OutgoingMessage
from homing.brokers.retry_message import MAX_COUNT, RetryMessage, encode_retry_message
from homing.core.lifecycle.events import MANUAL_REVIEW, Event, event_headers
from homing.sinks.rabbitmq import RabbitMqSink

_LONGEST_HEADER = 1_000


class ManualReviewSink(RabbitMqSink):
    """Publishes each `ManualReview` event as a `RetryMessage` with the last error and headers that say why.

    The settings are those of the sink `rabbitmq`.
    """

    default_events: ClassVar[frozenset[str]] = frozenset({MANUAL_REVIEW})
    if_missing = DECLARE_ADVICE

    def build(self, event: Event) -> OutgoingMessage:
        """Returns the message for an event."""
        payload = event.payload
        metadata: dict[str, Any] = payload.get("metadata") or {}
        reason = _text(payload.get("reason"))
        last_error = _text(payload.get("lastError"))
        message = RetryMessage(
            message_id=_text(metadata.get("message_id")) or event.notification_id or "",
            original_payload=_decode_payload(payload.get("data")),
            original_queue=_queue_name(_text(payload.get("queue"))),
            error_reason=last_error or _text(metadata.get("error_reason")) or reason,
            retry_count=_count(metadata.get("retry_count")),
            max_retries=_count(metadata.get("max_retries")),
        )
        headers: dict[str, str | int] = {
            **event_headers(event),
            "x-homing-message-id": message.message_id,
            "x-homing-notification-id": event.notification_id or "",
            "x-homing-retry-count": message.retry_count,
            "x-homing-reason": reason,
            "x-homing-last-error": last_error[:_LONGEST_HEADER],
            "x-homing-queue": message.original_queue,
        }
        return OutgoingMessage(
            body=encode_retry_message(message),
            exchange=self._exchange,
            routing_key=self._queue or self._key(event),
            headers=headers,
            content_type="application/x-protobuf",
            type="RetryMessage",
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _queue_name(address: str) -> str:
    """Returns the name of the queue. It is percent-encoded in an address that is a URL."""
    prefix = "queue://"
    return unquote(address.removeprefix(prefix)) if address.startswith(prefix) else address


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= MAX_COUNT else 0


def _decode_payload(data: Any) -> bytes:
    """Returns the original payload of a task that came through the bridge. Other content is left out."""
    payload = data.get("payload") if isinstance(data, dict) else None
    try:
        return b64decode(payload, validate=True) if isinstance(payload, str) else b""
    except ValueError:
        return b""
