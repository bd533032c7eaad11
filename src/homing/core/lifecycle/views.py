"""Converts rows, attempt records and cause records to the read model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import overload

from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.rows import CauseRecord, Row
from homing.core.notifications import Attempt, Cause, History, Message, Notification, Status
from homing.core.times import moment


@overload
def optional_moment(at: int) -> datetime: ...


@overload
def optional_moment(at: None) -> None: ...


def optional_moment(at: int | None) -> datetime | None:
    """Returns an epoch-millisecond time as an aware datetime. None stays None."""
    return None if at is None else moment(at)


def notification(row: Row, message: Message, attempts: Sequence[AttemptRecord] | None = None) -> Notification:
    """Returns the read model of a row. Without `attempts`, as in lists, provider names stay empty."""
    elsewhere = 0 if attempts is None else row.attempts_before
    made = attempts or ()
    return Notification(
        id=row.id,
        tenant=row.tenant,
        batch_id=row.batch_id,
        status=row.status,
        channel=row.channel,
        type=row.type,
        category=row.category,
        priority=row.priority,
        mode=row.mode,
        origin=row.origin,
        recipient=message.recipient,
        content=message.content,
        created_at=optional_moment(row.created_at),
        updated_at=optional_moment(row.updated_at),
        attempt_count=row.attempts,
        moves=row.moves,
        spent=tuple(row.spent),
        attempt_floor=row.attempt_floor,
        bounce_floor=row.bounce_floor,
        attempts_before=row.attempts_before,
        max_attempts=row.max_attempts,
        provider=row.provider,
        pinned=row.pinned,
        send_at=optional_moment(row.send_at),
        expires_at=optional_moment(row.expires_at),
        next_retry_at=optional_moment(row.due_at),
        last_attempt_at=optional_moment(row.last_attempt_at),
        first_failed_at=optional_moment(row.first_failed_at),
        sent_at=optional_moment(row.sent_at),
        delivered_at=optional_moment(row.delivered_at),
        failed_at=optional_moment(row.failed_at),
        reason=row.reason,
        last_error=row.last_error,
        error_code=row.error_code,
        acknowledged_at=optional_moment(row.acknowledged_at),
        acknowledged_by=row.acknowledged_by,
        acknowledged_why=row.acknowledged_why,
        resend_of=row.resend_of,
        resent_as=row.resent_as,
        # A cancelled row may keep the mark for later receipts, but the cancel has taken effect.
        cancel_requested=row.cancel_requested and row.status is not Status.CANCELLED,
        template_key=message.template_key,
        template_version=message.template_version,
        locale=message.locale,
        metadata=message.metadata,
        provider_names=("",) * elsewhere + tuple(a.provider for a in made),
        provider_message_ids=(None,) * elsewhere + tuple(a.provider_message_id for a in made),
        engagement=row.engagement,
    )


def history(
    row: Row, message: Message, attempts: Sequence[AttemptRecord], causes: Sequence[CauseRecord]
) -> History:
    """Returns a notification with all its attempts and causes."""
    return History(
        notification=notification(row, message, attempts),
        attempts=tuple(_attempt(a) for a in attempts),
        causes=tuple(_cause(c) for c in causes),
    )


def _attempt(record: AttemptRecord) -> Attempt:
    return Attempt(
        number=record.number,
        provider=record.provider,
        outcome=record.outcome,
        started_at=optional_moment(record.started_at),
        ended_at=optional_moment(record.started_at + record.latency_ms),
        latency_ms=record.latency_ms,
        worker=record.worker,
        error_code=record.error_code,
        error=record.error,
        provider_message_id=record.provider_message_id,
    )


def _cause(record: CauseRecord) -> Cause:
    return Cause(
        kind=record.kind,
        name=record.name,
        at=optional_moment(record.at),
        status_before=record.before,
        status_after=record.after,
        who=record.who,
        why=record.why,
    )
