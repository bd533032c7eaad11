"""Events that sinks publish, and the payload of each kind of event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field, json

from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.notifications import Channel, Message, Reason, Status
from homing.core.times import moment


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An event for sinks to publish. A change of a notification and its events are committed together."""

    id: str
    name: str
    """Kind of event: `StatusChanged`, `NotificationFailed`, `ManualReview` or `Alert`."""
    tenant: str
    at: int
    notification_id: str | None = None
    """Id of the notification that the event is about. None for an alert."""
    payload: dict[str, Any] = field(default_factory=dict)
    traceparent: str | None = None
    """W3C trace context of the notification. Set when the event is published, if notifications are traced."""


STATUS_CHANGED = "StatusChanged"

NOTIFICATION_FAILED = "NotificationFailed"

MANUAL_REVIEW = "ManualReview"

ALERT = "Alert"


EVENT_NAMES = frozenset({STATUS_CHANGED, NOTIFICATION_FAILED, MANUAL_REVIEW, ALERT})


EVENT_SCHEMA_VERSION = 1
"""Version of the published form of events. New fields do not raise it; renamed or removed ones do."""


def event_body(event: Event) -> bytes:
    """Returns the JSON body that every sink publishes for an event: its payload, with what identifies it."""
    return json.encode(
        {
            "eventId": event.id,
            "schemaVersion": EVENT_SCHEMA_VERSION,
            "tenantId": event.tenant,
            **event.payload,
        }
    )


def event_headers(event: Event) -> dict[str, str]:
    """Returns the headers that sinks publish with the body, where the other system has headers.

    `homing-event-id` is the same whenever an event is published again, so consumers can deduplicate by it.
    """
    headers = {
        "homing-event-id": event.id,
        "homing-event-type": event.name,
        "homing-schema-version": str(EVENT_SCHEMA_VERSION),
        "homing-tenant": event.tenant,
    }
    if event.notification_id is not None:
        headers["homing-notification-id"] = event.notification_id
    if event.traceparent is not None:
        headers["traceparent"] = event.traceparent
    if reason := event.payload.get("reason") or event.payload.get("alert"):
        headers["homing-reason"] = str(reason)
    return headers


def format_time(at: int) -> str:
    """Returns an epoch-millisecond time as ISO 8601 text in UTC."""
    return moment(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def status_changed(
    *,
    notification_id: str,
    batch_id: str,
    before: Status | None,
    after: Status,
    attempts: int,
    reason: Reason | None,
    at: int,
) -> dict[str, Any]:
    """Returns the payload of a `StatusChanged` event. `before` is None for a new notification."""
    return {
        "eventType": STATUS_CHANGED,
        "notificationId": notification_id,
        "batchId": batch_id,
        "statusBefore": before.value if before else None,
        "status": after.value,
        "attemptCount": attempts,
        "reason": reason.value if reason else None,
        "at": format_time(at),
    }


def notification_failed(
    *,
    notification_id: str,
    tenant: str,
    channel: Channel,
    message: Message,
    attempts: Sequence[AttemptRecord],
    attempt_count: int,
    reason: Reason | None,
    last_error: str | None,
    at: int,
) -> dict[str, Any]:
    """Returns the payload of a `NotificationFailed` event, which reports a dead letter."""
    return {
        "eventType": NOTIFICATION_FAILED,
        "notificationId": notification_id,
        "tenantId": tenant,
        "userId": message.recipient.id,
        "channel": channel.value,
        "templateKey": message.template_key,
        "attemptCount": attempt_count,
        "reason": reason.value if reason else None,
        "lastError": last_error,
        "failedAt": format_time(at),
        "providerAttempts": [
            {"provider": a.provider, "messageId": a.provider_message_id, "error": a.error_code or a.error}
            for a in attempts
        ],
    }


def manual_review(
    *,
    notification_id: str,
    address: str,
    message: Message,
    reason: Reason | None,
    last_error: str | None,
    at: int,
) -> dict[str, Any]:
    """Returns the payload of a `ManualReview` event: a message of a broker that is not published any more.

    It contains the message itself, because the reviewer may have no access to the store.
    """
    return {
        "eventType": MANUAL_REVIEW,
        "notificationId": notification_id,
        "queue": address,
        "data": message.content.data,
        "metadata": message.metadata,
        "reason": reason.value if reason else None,
        "lastError": last_error,
        "failedAt": format_time(at),
    }


def alert(name: str, message: str, at: int, **details: Any) -> dict[str, Any]:
    """Returns the payload of an `Alert` event, which asks for an operator's attention."""
    return {"eventType": ALERT, "alert": name, "message": message, "at": format_time(at), **details}
