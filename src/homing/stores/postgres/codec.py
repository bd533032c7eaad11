"""Rows as columns of `live` and `settled`, and back.

Reading: a row comes as its columns in the order of `ROW_FIELDS` and is converted at once. Writing: each set
of columns that a transition writes has its names and types and, next to it, the function that takes the
values from a row in the same order. `holds` and `engagement` are JSON; NULL stands for an empty one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from homing.core.model import Message, Mode
from homing.core.rows import Row
from homing.stores.codec import ROW_FIELDS, encode
from homing.stores.held import Found
from homing.stores.postgres.queues import Queue
from homing.stores.postgres.statements import Record

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_AS_TEXT = frozenset({"id", "resend_of", "resent_as"})
_HOLDS = 1 + ROW_FIELDS.index("holds")
_ENGAGEMENT = 1 + ROW_FIELDS.index("engagement")
_SYNCHRONOUS = Mode.SYNCHRONOUS
_decode_counts = msgspec.json.Decoder(dict[str, int]).decode
decode_message = msgspec.json.Decoder(Message).decode

_OF_MESSAGE = frozenset(
    [
        "id",
        "tenant",
        "batch_id",
        "channel",
        "mode",
        "type",
        "category",
        "priority",
        "origin",
        "address",
        "created_at",
        "send_at",
        "resend_of",
    ]
)

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
            "failures_here",
        ],
        "integer",
    ),
    **dict.fromkeys(["pinned", "overdue", "cancel_requested", "unhurried"], "boolean"),
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
"""The columns of `live` and of `settled`, with their types."""

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
"""The columns of `messages` besides `seq`."""

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
"""What can differ from the defaults in a new row."""

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
    ]
}
"""What a settlement changes, besides what ends with every lease."""


_LAST_CLAIMED = ROW_FIELDS.index("holds")
CLAIMED = ROW_FIELDS[3:_LAST_CLAIMED]
"""What a claim reads of a row, besides `holds` and its queue, the first three fields."""


def _column(name: str, message: str, state: str, queue: str) -> str:
    alias = queue if name in ("lane", "outlet") else message if name in _OF_MESSAGE else state
    return f"{alias}.{name}::text" if name in _AS_TEXT else f"{alias}.{name}"


def selected(message: str, state: str, queue: str) -> str:
    """The select list of a row, `seq` first, from these aliases of messages, live or settled, and queues."""
    columns = (_column(name, message, state, queue) for name in ROW_FIELDS)
    return ", ".join((f"{message}.seq", *columns))


def selected_for_claim(message: str, state: str) -> str:
    """The select list of a row that is to be claimed: (seq, queue, …, holds, message)."""
    columns = (_column(name, message, state, "") for name in CLAIMED)
    return ", ".join((f"{state}.seq", f"{state}.queue", *columns, f"{state}.holds", f"{message}.message"))


SELECTED = selected("r", "r", "r")
"""The select list of a row, from `homing.rows AS r`."""


def rows_from(records: Iterable[Record]) -> list[Found]:
    """Rows from records that begin with the columns of `selected`."""
    found: list[Found] = msgspec.convert([_values(record) for record in records], list[Found])
    return found


def rows_to_claim(records: Iterable[Record], names: Mapping[int, Queue]) -> list[Found]:
    """Rows from records with the columns of `selected_for_claim`."""
    values: list[tuple[int, tuple[Any, ...]]] = []
    for record in records:
        holds = () if record[-2] is None else (_decode_counts(record[-2]),)
        values.append((record[0], (*names[record[1]], *record[2:-2], *holds)))
    found: list[Found] = msgspec.convert(values, list[Found])
    return found


_WIDTH = 1 + len(ROW_FIELDS)


def _values(record: Record) -> tuple[int, list[Any]]:
    """(seq, the fields in their order)."""
    values = list(record[:_WIDTH])
    holds, engagement = values[_HOLDS], values[_ENGAGEMENT]
    values[_HOLDS] = _decode_counts(holds) if holds else {}
    values[_ENGAGEMENT] = _decode_counts(engagement) if engagement else {}
    return values[0], values[1:]


def state_columns(seq: int, row: Row, queue: int) -> tuple[Any, ...]:
    """In the order of `STATE`."""
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
        queue,
        row.token,
        row.changes,
        row.attempts,
        row.attempts_before,
        row.max_attempts,
        row.attempt_floor,
        row.bounce_floor,
        row.failures_here,
        row.pinned,
        row.overdue,
        row.cancel_requested,
        row.mode is _SYNCHRONOUS,
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
    """In the order of `NEW`."""
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
    """In the order of `MESSAGE`."""
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
    """In the order of `SETTLED`."""
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
        clean(row.last_error),
        clean(row.error_code),
        row.last_attempt_at,
        row.sent_at,
        row.delivered_at,
        row.failed_at,
        row.cancel_requested,
    )


def clean(text: str | None) -> str | None:
    """What others say may hold anything; PostgreSQL stores no NUL."""
    return text.replace("\0", "\ufffd") if text and "\0" in text else text


def is_id(text: str) -> bool:
    """Whether a notification can have this id: everything else is simply not there."""
    return _ID.fullmatch(text) is not None
