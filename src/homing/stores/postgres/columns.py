"""The columns of `messages`, `live` and `settled`, and the values that are written to them.

Each set of columns has a dict of names and types, and a function that returns the values of a row in the same
order. `holds` and `engagement` are stored as JSON, or NULL if they are empty.
"""

from __future__ import annotations

import re
from typing import Any

from homing.core.lifecycle.rows import Row
from homing.core.notifications import Mode
from homing.stores.common.codec import encode

ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SYNCHRONOUS = Mode.SYNCHRONOUS

STATE: dict[str, str] = {
    **dict.fromkeys(
        [
            "seq",
            "updated_at",
            "aged_from",
            "max_age_ms",
            "last_delay_ms",
            "started_at",
            "due_at",
            "deadline_at",
            "lease_until",
            "expires_at",
            "last_attempt_at",
            "sent_at",
            "delivered_at",
            "failed_at",
            "acknowledged_at",
            "bounce_min_ms",
            "bounce_max_ms",
        ],
        "bigint",
    ),
    **dict.fromkeys(
        [
            "queue",
            "token",
            "changes",
            "attempts",
            "attempts_before",
            "max_attempts",
            "attempt_floor",
            "bounce_floor",
            "unknown_bounce",
            "failures_here",
        ],
        "integer",
    ),
    **dict.fromkeys(["pinned", "overdue", "cancel_requested", "unhurried", "bounce_always"], "boolean"),
    **dict.fromkeys(
        [
            "tenant",
            "status",
            "provider",
            "worker",
            "holds",
            "reason",
            "error_code",
            "last_error",
            "acknowledged_by",
            "acknowledged_why",
            "engagement",
        ],
        "text",
    ),
    "resent_as": "uuid",
}
"""Columns of both `live` and `settled`, with their types."""

MESSAGE: dict[str, str] = {
    "id": "uuid",
    "created_at": "bigint",
    "send_at": "bigint",
    "resend_of": "uuid",
    "tenant": "text",
    **dict.fromkeys(
        ["batch_id", "channel", "mode", "type", "category", "priority", "origin", "address", "message"],
        "text",
    ),
}
"""Columns of `messages` without `seq`, with their types."""

NEW: dict[str, str] = {
    name: STATE[name]
    for name in [
        "seq",
        "queue",
        "updated_at",
        "aged_from",
        "max_age_ms",
        "last_delay_ms",
        "started_at",
        "due_at",
        "deadline_at",
        "lease_until",
        "expires_at",
        "failed_at",
        "token",
        "changes",
        "attempts",
        "attempts_before",
        "max_attempts",
        "pinned",
        "unhurried",
        "tenant",
        "status",
        "provider",
        "worker",
        "reason",
        "last_error",
    ]
}
"""State columns of a new row that can differ from their defaults."""

SETTLED: dict[str, str] = {
    name: STATE[name]
    for name in [
        "seq",
        "queue",
        "updated_at",
        "provider",
        "status",
        "changes",
        "attempts",
        "failures_here",
        "last_delay_ms",
        "max_age_ms",
        "holds",
        "aged_from",
        "due_at",
        "deadline_at",
        "reason",
        "last_error",
        "error_code",
        "last_attempt_at",
        "sent_at",
        "delivered_at",
        "failed_at",
        "cancel_requested",
        "bounce_always",
        "bounce_min_ms",
        "bounce_max_ms",
    ]
}
"""State columns that a settlement sets, besides those that it always resets because the lease ends."""


def state_columns(seq: int, row: Row, queue: int) -> tuple[Any, ...]:
    """Returns the values of `STATE`."""
    # `_value_` because `.value` is a descriptor call, and this runs for every row of every batch.
    return (
        seq,
        row.updated_at,
        row.aged_from,
        row.max_age_ms,
        row.last_delay_ms,
        row.started_at,
        row.due_at,
        row.deadline_at,
        row.lease_until,
        row.expires_at,
        row.last_attempt_at,
        row.sent_at,
        row.delivered_at,
        row.failed_at,
        row.acknowledged_at,
        row.bounce_min_ms,
        row.bounce_max_ms,
        queue,
        row.token,
        row.changes,
        row.attempts,
        row.attempts_before,
        row.max_attempts,
        row.attempt_floor,
        row.bounce_floor,
        row.unknown_bounce,
        row.failures_here,
        row.pinned,
        row.overdue,
        row.cancel_requested,
        row.mode is _SYNCHRONOUS,
        row.bounce_always,
        row.tenant,
        row.status._value_,
        row.provider,
        row.worker,
        encode(row.holds) if row.holds else None,
        row.reason._value_ if row.reason is not None else None,
        clean(row.error_code),
        clean(row.last_error),
        clean(row.acknowledged_by),
        clean(row.acknowledged_why),
        encode(row.engagement) if row.engagement else None,
        row.resent_as,
    )


def new_columns(seq: int, row: Row, queue: int) -> tuple[Any, ...]:
    """Returns the values of `NEW`."""
    return (
        seq,
        queue,
        row.updated_at,
        row.aged_from,
        row.max_age_ms,
        row.last_delay_ms,
        row.started_at,
        row.due_at,
        row.deadline_at,
        row.lease_until,
        row.expires_at,
        row.failed_at,
        row.token,
        row.changes,
        row.attempts,
        row.attempts_before,
        row.max_attempts,
        row.pinned,
        row.mode is _SYNCHRONOUS,
        row.tenant,
        row.status._value_,
        row.provider,
        row.worker,
        row.reason._value_ if row.reason is not None else None,
        clean(row.last_error),
    )


def message_columns(row: Row, message: str) -> tuple[Any, ...]:
    """Returns the values of `MESSAGE`."""
    return (
        row.id,
        row.created_at,
        row.send_at,
        row.resend_of,
        row.tenant,
        row.batch_id,
        row.channel._value_,
        row.mode._value_,
        row.type,
        row.category,
        row.priority._value_,
        row.origin,
        row.address,
        message,
    )


def settled_columns(seq: int, row: Row, queue: int) -> tuple[Any, ...]:
    """Returns the values of `SETTLED`."""
    return (
        seq,
        queue,
        row.updated_at,
        row.provider,
        row.status._value_,
        row.changes,
        row.attempts,
        row.failures_here,
        row.last_delay_ms,
        row.max_age_ms,
        encode(row.holds) if row.holds else None,
        row.aged_from,
        row.due_at,
        row.deadline_at,
        row.reason._value_ if row.reason is not None else None,
        row.last_error and clean(row.last_error),
        row.error_code and clean(row.error_code),
        row.last_attempt_at,
        row.sent_at,
        row.delivered_at,
        row.failed_at,
        row.cancel_requested,
        row.bounce_always,
        row.bounce_min_ms,
        row.bounce_max_ms,
    )


def clean(text: str | None) -> str | None:
    """Replaces NUL characters. Texts from outside may contain them, but PostgreSQL cannot store them."""
    return text.replace("\0", "\ufffd") if text and "\0" in text else text


def is_id(text: str) -> bool:
    """Returns True if a notification can have this id. Any other id is treated as not existing."""
    return ID.fullmatch(text) is not None
