"""Converts rows, messages and records to database columns and back, and limits the size of a page.

A row is read as one JSON array in the order of `ROW_FIELDS` and decoded directly into a `Row`. For writing,
each set of columns that a transition changes has a tuple of names and, next to it, a function that returns a
row's values of these columns in the same order. `holds`, `engagement` and the message are stored as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import Enum
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.receipts import Receipt
from homing.core.lifecycle.rows import CauseRecord, Row
from homing.core.notifications import Message, OutcomeKind

Column = str | int | float | None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


ROW_FIELDS: tuple[str, ...] = Row.__struct_fields__

JSON_FIELDS = frozenset({"holds", "engagement"})


class StoredRow(Row, array_like=True, gc=False):
    """A `Row` decoded from a JSON array. It cannot be part of a reference cycle, so `gc` is off."""


class StoredAttempt(AttemptRecord, frozen=True, array_like=True, kw_only=True, gc=False):
    """An `AttemptRecord` decoded from a JSON array."""


class StoredCause(CauseRecord, frozen=True, array_like=True, kw_only=True, gc=False):
    """A `CauseRecord` decoded from a JSON array."""


ATTEMPT_FIELDS: tuple[str, ...] = AttemptRecord.__struct_fields__

CAUSE_FIELDS: tuple[str, ...] = CauseRecord.__struct_fields__


_encoder = msgspec.json.Encoder()

# Not strict, because SQLite stores booleans as 0 and 1.
decode_rows = msgspec.json.Decoder(list[tuple[int, StoredRow]], strict=False).decode

decode_rows_without_seq = msgspec.json.Decoder(list[StoredRow], strict=False).decode

decode_attempts = msgspec.json.Decoder(list[tuple[int, StoredAttempt]]).decode

decode_causes = msgspec.json.Decoder(list[tuple[int, StoredCause]]).decode

decode_messages = msgspec.json.Decoder(list[Message]).decode

decode_ids = msgspec.json.Decoder(tuple[str, ...]).decode

decode_value = msgspec.json.Decoder(dict[str, Any]).decode


class KeptReceipt(Receipt, frozen=True, kw_only=True):
    """A stored receipt that waits until its attempt is known.

    Earlier versions of Homing stored the two legacy flags instead of `outcome`.
    """

    legacy_at_fault: bool = msgspec.field(name="recipient_at_fault", default=False)
    legacy_dead: bool = msgspec.field(name="address_dead", default=False)

    def current(self) -> Receipt:
        """Returns the receipt. If it has no `outcome`, the outcome is derived from the legacy flags."""
        if self.outcome is None and self.legacy_dead:
            return replace(self, outcome=OutcomeKind.DEAD_ADDRESS)
        if self.outcome is None and self.legacy_at_fault:
            return replace(self, outcome=OutcomeKind.BAD_RECIPIENT)
        return self


def encode(value: object) -> str:
    """Encodes a value as JSON text."""
    return _encoder.encode(value).decode()


OWN_FIELDS = ("id", "batch_id", "address")
"""Fields that differ between the new rows of a batch."""

SHARED_FIELDS = (
    "tenant",
    "lane",
    "channel",
    "mode",
    "type",
    "category",
    "priority",
    "origin",
    "provider",
    "outlet",
    "pinned",
    "status",
    "token",
    "changes",
    "attempts",
    "attempts_before",
    "max_attempts",
    "last_delay_ms",
    "max_age_ms",
    "created_at",
    "updated_at",
    "aged_from",
    "send_at",
    "expires_at",
    "due_at",
    "deadline_at",
    "lease_until",
    "started_at",
    "worker",
    "resend_of",
)
"""Fields that the new rows of a batch usually share. All other fields of a new row have their defaults."""


def own_columns(row: Row) -> tuple[Column, ...]:
    """Returns the values of `OWN_FIELDS`."""
    return (row.id, row.batch_id, row.address)


def shared_columns(row: Row) -> tuple[Column, ...]:
    """Returns the values of `SHARED_FIELDS`."""
    # `_value_` because `.value` is a descriptor call, and this runs for every row of every batch.
    return (
        row.tenant,
        row.lane,
        row.channel._value_,
        row.mode._value_,
        row.type,
        row.category,
        row.priority._value_,
        row.origin,
        row.provider,
        row.outlet,
        1 if row.pinned else 0,
        row.status._value_,
        row.token,
        row.changes,
        row.attempts,
        row.attempts_before,
        row.max_attempts,
        row.last_delay_ms,
        row.max_age_ms,
        row.created_at,
        row.updated_at,
        row.aged_from,
        row.send_at,
        row.expires_at,
        row.due_at,
        row.deadline_at,
        row.lease_until,
        row.started_at,
        row.worker,
        row.resend_of,
    )


LEASED_FIELDS = (
    "status",
    "token",
    "changes",
    "attempts",
    "updated_at",
    "due_at",
    "deadline_at",
    "lease_until",
    "started_at",
    "worker",
    "overdue",
)
"""Fields that a claim or reclaim changes."""


def leased_columns(row: Row) -> tuple[Column, ...]:
    """Returns the values of `LEASED_FIELDS`."""
    return (
        row.status._value_,
        row.token,
        row.changes,
        row.attempts,
        row.updated_at,
        row.due_at,
        row.deadline_at,
        row.lease_until,
        row.started_at,
        row.worker,
        1 if row.overdue else 0,
    )


SETTLED_FIELDS = (
    "provider",
    "outlet",
    "status",
    "changes",
    "attempts",
    "failures_here",
    "last_delay_ms",
    "max_age_ms",
    "holds",
    "updated_at",
    "aged_from",
    "due_at",
    "deadline_at",
    "lease_until",
    "worker",
    "overdue",
    "cancel_requested",
    "reason",
    "last_error",
    "error_code",
    "last_attempt_at",
    "sent_at",
    "delivered_at",
    "failed_at",
    "bounce_always",
    "bounce_min_ms",
    "bounce_max_ms",
)
"""Fields that a settlement changes."""

UNCHANGED_IF_NULL_FIELDS = frozenset({"bounce_always", "bounce_min_ms", "bounce_max_ms"})
"""Settled fields whose stored value stays if the new value is NULL.

A claim does not read these fields, so a settlement without an attempt has no values for them.
"""


_OPTIONAL_FLAG_COLUMNS = {None: None, False: 0, True: 1}


def settled_columns(row: Row) -> tuple[Column, ...]:
    """Returns the values of `SETTLED_FIELDS`."""
    return (
        row.provider,
        row.outlet,
        row.status._value_,
        row.changes,
        row.attempts,
        row.failures_here,
        row.last_delay_ms,
        row.max_age_ms,
        encode(row.holds) if row.holds else "{}",
        row.updated_at,
        row.aged_from,
        row.due_at,
        row.deadline_at,
        row.lease_until,
        row.worker,
        1 if row.overdue else 0,
        1 if row.cancel_requested else 0,
        row.reason._value_ if row.reason is not None else None,
        row.last_error,
        row.error_code,
        row.last_attempt_at,
        row.sent_at,
        row.delivered_at,
        row.failed_at,
        _OPTIONAL_FLAG_COLUMNS[row.bounce_always],
        row.bounce_min_ms,
        row.bounce_max_ms,
    )


_IDENTITY = ("id", "tenant", "batch_id", "lane", "channel", "mode", "type", "category", "priority", "origin")

_FIXED = frozenset(
    {*_IDENTITY, "address", "attempts_before", "max_attempts", "created_at", "send_at", "resend_of"}
)

MUTABLE_FIELDS = tuple(name for name in ROW_FIELDS if name not in _FIXED)
"""Every field that some transition can change. Commands and receipts, which are rare, write all of them."""


def mutable_columns(row: Row) -> tuple[Column, ...]:
    """Returns the values of `MUTABLE_FIELDS`."""
    return tuple(to_column(getattr(row, name)) for name in MUTABLE_FIELDS)


ATTEMPT_OWN_FIELDS = ("started_at", "latency_ms", "provider_message_id")

ATTEMPT_SHARED_FIELDS = ("number", "provider", "outcome", "worker", "error_code", "error")
"""Fields that the attempts of one batch usually share."""


attempt_own_values = attrgetter(*ATTEMPT_OWN_FIELDS)
"""Returns the values of `ATTEMPT_OWN_FIELDS`, unconverted. `to_column` converts them."""

attempt_shared_values = attrgetter(*ATTEMPT_SHARED_FIELDS)
"""Returns the values of `ATTEMPT_SHARED_FIELDS`, unconverted."""


def cause_columns(record: CauseRecord) -> tuple[Column, ...]:
    """Returns the values of `CAUSE_FIELDS`."""
    return tuple(to_column(getattr(record, name)) for name in CAUSE_FIELDS)


def to_column(value: Any) -> Column:
    """Converts one value to a column: an enum to its value, a bool to 0 or 1, a dict to JSON."""
    if isinstance(value, Enum):
        value = value.value
    elif isinstance(value, bool):
        value = int(value)
    elif isinstance(value, dict):
        value = encode(value)
    column: Column = value
    return column


def round_up_to_ms(at: datetime) -> int:
    """Converts a time to epoch milliseconds, rounded up."""
    return -((_EPOCH - at) // timedelta(milliseconds=1))


MAX_PAGE_BYTES = 8 * 1024 * 1024
"""Maximum total size of the messages in one page, in bytes.

The page's cursor leads to the remaining messages. A page holds at least one message, however large.
"""


def count_fitting(sizes: Iterable[int]) -> int:
    """Returns how many messages of these sizes, in bytes, fit into one page."""
    number = total = 0
    for size in sizes:
        if number and total + size > MAX_PAGE_BYTES:
            break
        number += 1
        total += size
    return number
