"""The lines of an exported search: CSV for spreadsheets."""

from __future__ import annotations

import csv
from io import StringIO
from typing import Any

from homing.core.notifications import Notification

COLUMNS = (
    "id",
    "status",
    "channel",
    "type",
    "address",
    "recipient_id",
    "batch_id",
    "provider",
    "attempts",
    "reason",
    "error_code",
    "last_error",
    "created_at",
    "updated_at",
    "sent_at",
    "delivered_at",
    "failed_at",
)
"""Columns of an exported search."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Characters with which a spreadsheet begins a formula."""


def csv_header() -> str:
    """Returns the first line of an export."""
    return _line(COLUMNS)


def csv_line(notification: Notification, address: str) -> str:
    """Returns one line of an export. `address` is the recipient's address as it may be shown."""
    one = notification
    values = (
        one.id,
        one.status.value,
        one.channel.value,
        one.type,
        address,
        one.recipient.id,
        one.batch_id,
        one.provider,
        one.attempt_count,
        one.reason and one.reason.value,
        one.error_code,
        one.last_error,
        *(
            at and at.isoformat(timespec="milliseconds")
            for at in (one.created_at, one.updated_at, one.sent_at, one.delivered_at, one.failed_at)
        ),
    )
    return _line(values)


def _line(values: tuple[Any, ...]) -> str:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerow([_cell(value) for value in values])
    return text.getvalue()


def _cell(value: Any) -> str:
    """Returns a value as text that no spreadsheet takes for a formula."""
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
