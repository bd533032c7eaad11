"""Names and payloads of events, which are the same for every store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homing.core.model import AttemptRecord, Channel, Message, Reason, Status
from homing.core.times import moment as moment

STATUS_CHANGED = "StatusChanged"
NOTIFICATION_FAILED = "NotificationFailed"
ALERT = "Alert"

EVENT_NAMES = frozenset({STATUS_CHANGED, NOTIFICATION_FAILED, ALERT})


def iso(at: int) -> str:
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
        "at": iso(at),
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
        "failedAt": iso(at),
        "providerAttempts": [
            {"provider": a.provider, "messageId": a.provider_message_id, "error": a.error_code or a.error}
            for a in attempts
        ],
    }


def alert(name: str, message: str, at: int, **details: Any) -> dict[str, Any]:
    """Returns the payload of an `Alert` event, which asks for an operator's attention."""
    return {"eventType": ALERT, "alert": name, "message": message, "at": iso(at), **details}
