"""Converts rows, messages and records to database columns and back, and limits the size of a page.

A row is read as one JSON array in the order of `ROW_FIELDS` and decoded directly into a `Row`. The columns of
a row are in `row_columns`, and the values written to them in the `columns` module of each store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import Enum
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from homing.core.errors import StoreRejected
from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.receipts import Receipt
from homing.core.lifecycle.rows import CauseRecord, Row
from homing.core.notifications import UNREADABLE_MESSAGE, Message, OutcomeKind, Status

log = logging.getLogger("homing.store")

Column = str | int | float | None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StoredRow(Row, array_like=True, gc=False):
    """A `Row` decoded from a JSON array. It cannot be part of a reference cycle, so `gc` is off."""


class StoredAttempt(AttemptRecord, frozen=True, array_like=True, kw_only=True, gc=False):
    """An `AttemptRecord` decoded from a JSON array."""


class StoredCause(CauseRecord, frozen=True, array_like=True, kw_only=True, gc=False):
    """A `CauseRecord` decoded from a JSON array."""


ATTEMPT_FIELDS: tuple[str, ...] = AttemptRecord.__struct_fields__

CAUSE_FIELDS: tuple[str, ...] = CauseRecord.__struct_fields__


_encoder = msgspec.json.Encoder()

_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)
"""Raised by the encoder for a value without a JSON form. Raised elsewhere, they show an error in the code."""

# Not strict, because SQLite stores booleans as 0 and 1.
decode_rows = msgspec.json.Decoder(list[tuple[int, StoredRow]], strict=False).decode

decode_rows_without_seq = msgspec.json.Decoder(list[StoredRow], strict=False).decode

decode_attempts = msgspec.json.Decoder(list[tuple[int, StoredAttempt]]).decode

decode_causes = msgspec.json.Decoder(list[tuple[int, StoredCause]]).decode

_decode_messages = msgspec.json.Decoder(list[Message]).decode

_decode_message = msgspec.json.Decoder(Message).decode

_split_messages = msgspec.json.Decoder(list[msgspec.Raw]).decode

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


def decode_messages(text: str) -> list[Message]:
    """Decodes a JSON array of messages. One that cannot be read becomes `UNREADABLE_MESSAGE`."""
    try:
        return _decode_messages(text)
    except (msgspec.ValidationError, RecursionError):
        return [decode_message(one) for one in _split_messages(text)]


def decode_message(text: str | bytes | msgspec.Raw) -> Message:
    """Decodes a message, or returns `UNREADABLE_MESSAGE` if it cannot be read."""
    try:
        return _decode_message(text)
    except (msgspec.DecodeError, RecursionError) as error:
        log.error("a stored message cannot be read: %s", error)
        return UNREADABLE_MESSAGE


def encode(value: object) -> str:
    """Encodes a value as JSON text. Raises `StoreRejected` if it has no JSON form."""
    try:
        return _encoder.encode(value).decode()
    except _UNENCODABLE as error:
        raise _unencodable(error) from error


def encode_lines(values: Iterable[object]) -> str:
    """Encodes each value as a line of JSON text. Raises `StoreRejected` if one has no JSON form."""
    try:
        return _encoder.encode_lines(values)[:-1].decode()
    except _UNENCODABLE as error:
        raise _unencodable(error) from error


def _unencodable(error: Exception) -> StoreRejected:
    return StoreRejected(f"The store cannot hold a value of this call ({type(error).__name__}).")


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


def status_literals(statuses: Iterable[Status]) -> str:
    """Returns the statuses as a list of SQL literals, for queries whose plan depends on the values."""
    return ", ".join(f"'{status.value}'" for status in sorted(statuses))


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
