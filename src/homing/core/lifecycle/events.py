"""Events that sinks publish, and the payload of each kind of event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.notifications import Channel, Message, Reason, Status
from homing.core.times import moment


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An event for sinks to publish. A change of a notification and its events are committed together."""

    id: str
    name: str
    """Kind of event: `StatusChanged`, `NotificationFailed` or `Alert`."""
    tenant: str
    at: int
    notification_id: str | None = None
    """Id of the notification that the event is about. None for an alert."""
    payload: dict[str, Any] = field(default_factory=dict)


STATUS_CHANGED = "StatusChanged"

NOTIFICATION_FAILED = "NotificationFailed"

ALERT = "Alert"


EVENT_NAMES = frozenset({STATUS_CHANGED, NOTIFICATION_FAILED, ALERT})


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


def alert(name: str, message: str, at: int, **details: Any) -> dict[str, Any]:
    """Returns the payload of an `Alert` event, which asks for an operator's attention."""
    return {"eventType": ALERT, "alert": name, "message": message, "at": format_time(at), **details}
