"""Derives events for the outbox, and counts for the hourly roll-up, from the `Change` of a row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from homing.core.lifecycle import events
from homing.core.lifecycle.events import Event
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.lifecycle.rows import Change, Row
from homing.core.notifications import Channel, Message, Status

# Looked up once: up to Python 3.11, `Status.FAILED` calls a method written in Python.
_SENDING, _FAILED = Status.SENDING, Status.FAILED

_ENGAGEMENT = {ReceiptEvent.OPEN.value: "opened", ReceiptEvent.CLICK.value: "clicked"}
"""Field of `RollUp` that counts a receipt, by the name of the receipt's event."""


def has_events(change: Change, subscribed: Collection[str]) -> bool:
    """Returns True if a change causes any event of the subscribed names."""
    after = change.row.status
    if change.before is after or after is _SENDING:
        return False
    if events.STATUS_CHANGED in subscribed:
        return True
    return after is _FAILED and (
        events.NOTIFICATION_FAILED in subscribed
        or (events.MANUAL_REVIEW in subscribed and _needs_review(change.row))
    )


def events_of(
    change: Change, subscribed: Collection[str], message: Message, attempts: Sequence[AttemptRecord]
) -> list[Event]:
    """Returns the events of the subscribed names that a change causes."""
    row, made = change.row, []
    if not has_events(change, subscribed):
        return []
    if events.STATUS_CHANGED in subscribed:
        payload = events.status_changed(
            notification_id=row.id,
            batch_id=row.batch_id,
            before=change.before,
            after=row.status,
            attempts=row.attempts,
            reason=row.reason,
            at=change.at,
        )
        made.append(_event(row, events.STATUS_CHANGED, change.at, payload))
    if row.status is Status.FAILED and events.NOTIFICATION_FAILED in subscribed:
        payload = events.notification_failed(
            notification_id=row.id,
            tenant=row.tenant,
            channel=row.channel,
            message=message,
            attempts=attempts,
            attempt_count=row.attempts,
            reason=row.reason,
            last_error=row.last_error,
            at=change.at,
        )
        made.append(_event(row, events.NOTIFICATION_FAILED, change.at, payload))
    if row.status is Status.FAILED and events.MANUAL_REVIEW in subscribed and _needs_review(row):
        payload = events.manual_review(
            notification_id=row.id,
            address=row.address,
            message=message,
            reason=row.reason,
            last_error=row.last_error,
            at=change.at,
        )
        made.append(_event(row, events.MANUAL_REVIEW, change.at, payload))
    return made


def _needs_review(row: Row) -> bool:
    """Returns True for a message of a broker, which its sender had tried before Homing got it."""
    return row.channel is Channel.QUEUE and row.attempts_before > 0


def roll_up_counts(change: Change) -> Mapping[str, int]:
    """Returns what a change adds to the roll-up of its hour, by field of `RollUp`."""
    row, sums = change.row, dict[str, int]()
    if change.before is None:
        # Earlier attempts by another system are not counted as retries here.
        return {"accepted": 1, "failed": 1} if row.status is Status.FAILED else {"accepted": 1}
    if change.attempt is not None:
        sums["attempts"] = 1
    if change.before is not row.status:
        if row.status is Status.RETRYING:
            sums["retried"] = 1
        elif row.status in (Status.SENT, Status.DELIVERED, Status.FAILED):
            sums[row.status.value] = 1
        if change.before is Status.SENDING and row.status is Status.DELIVERED:
            sums["sent"] = 1  # accepted and delivered at once
    if change.before is Status.SENDING and row.status is Status.RETRYING and change.attempt is None:
        del sums["retried"]  # postponed, not retried
    if change.bounced:
        sums["bounced"] = 1
    if change.cause is not None and change.cause.kind == "receipt" and change.cause.name in _ENGAGEMENT:
        sums[_ENGAGEMENT[change.cause.name]] = 1
    return sums


def _event(row: Row, name: str, at: int, payload: dict[str, object]) -> Event:
    return Event(
        id=f"{row.id}:{row.changes}:{name}",
        name=name,
        tenant=row.tenant,
        at=at,
        notification_id=row.id,
        payload=payload,
    )
