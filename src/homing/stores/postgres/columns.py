"""The columns of `messages`, `live` and `settled`, and the values that are written to them.

Each set of columns has a dict of names and types, and a function that returns the values of a row in the same
order. Both come from the column table. `spent`, `holds` and `engagement` are stored as JSON, or NULL if
they are empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from homing.core.lifecycle.rows import Row
from homing.core.notifications import Mode
from homing.stores.common.codec import encode
from homing.stores.common.row_columns import (
    ROW_COLUMNS,
    PostgresTable,
    RowColumn,
    SqlType,
    Writer,
    compile_values,
    plain_value,
    written_by,
)

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

_ID_CHARACTERS, _HYPHENS = 36, (8, 13, 18, 23)

_HEX_DIGITS, _NO_DIGITS = b"0123456789abcdef", b"----\n"
"""The digits of an id, and what remains of a line with an id without its digits."""

_MANY_IDS = 16
"""Number of ids from which it is cheaper to check all as one text."""

_MESSAGES, _STATES = PostgresTable.MESSAGES, PostgresTable.STATES

_FIRST = {"seq": "bigint", "queue": "integer"}

_UNHURRIED = "unhurried"
"""A column of `live` and `settled` that is True for a synchronous notification, which has no deadline."""


def _in_states(columns: Iterable[RowColumn]) -> list[RowColumn]:
    return [column for column in columns if column.table is _STATES or column.in_states]


def _types(columns: Iterable[RowColumn]) -> dict[str, str]:
    return {column.name: column.in_postgres for column in columns}


_NEW = _in_states(written_by(Writer.ACCEPT))

STARTED_LEASE = {"status": "'sending'", "due_at": "NULL", "deadline_at": "NULL"}
"""Columns that have the same value after every claim and reclaim, with that value as SQL."""

ENDED_LEASE = {"lease_until": "NULL::bigint", "overdue": "false", "worker": "''"}
"""Columns that every settlement resets, because the lease ends, with their new value as SQL."""

_LEASED = [column for column in _in_states(written_by(Writer.LEASE)) if column.name not in STARTED_LEASE]

_SETTLED = [column for column in _in_states(written_by(Writer.SETTLE)) if column.name not in ENDED_LEASE]

_MESSAGE = [column for column in ROW_COLUMNS if column.table is _MESSAGES]

STATE: dict[str, str] = {**_FIRST, **_types(_in_states(ROW_COLUMNS)), _UNHURRIED: "boolean"}
"""Columns of both `live` and `settled`, with their types."""

MESSAGE: dict[str, str] = {**_types(_MESSAGE), "message": "text"}
"""Columns of `messages` without `seq`, with their types."""

NEW: dict[str, str] = {**_FIRST, **_types(_NEW), _UNHURRIED: "boolean"}
"""State columns of a new row that can differ from their defaults."""

LEASED: dict[str, str] = {"seq": "bigint", **_types(_LEASED)}
"""State columns that a claim or reclaim sets, besides `STARTED_LEASE`."""

SETTLED: dict[str, str] = {**_FIRST, **_types(_SETTLED)}
"""State columns that a settlement sets, besides `ENDED_LEASE`."""


def clean(text: str | None) -> str | None:
    """Replaces NUL characters. Texts from outside may contain them, but PostgreSQL cannot store them."""
    return text.replace("\0", "\ufffd") if text and "\0" in text else text


def _value(column: RowColumn) -> str:
    value = f"row.{column.name}"
    if column.type is SqlType.JSON:
        return f"(encode({value}) if {value} else None)"
    return f"({value} and clean({value}))" if column.free_text else plain_value(column)


def _values(
    columns: Iterable[RowColumn], *last: str, parameters: str = "seq, row, queue", first: tuple[str, ...] = ()
) -> Callable[..., tuple[Any, ...]]:
    names = {"clean": clean, "encode": encode, "SYNCHRONOUS": Mode.SYNCHRONOUS}
    return compile_values((*first, *map(_value, columns), *last), parameters=parameters, names=names)


_IS_UNHURRIED = "row.mode is SYNCHRONOUS"

state_columns: Callable[[int, Row, int], tuple[Any, ...]] = _values(
    _in_states(ROW_COLUMNS), _IS_UNHURRIED, first=tuple(_FIRST)
)
"""Returns the values of `STATE` for (seq, row, number of its queue)."""

new_columns: Callable[[int, Row, int], tuple[Any, ...]] = _values(_NEW, _IS_UNHURRIED, first=tuple(_FIRST))
"""Returns the values of `NEW` for (seq, row, number of its queue)."""

settled_columns: Callable[[int, Row, int], tuple[Any, ...]] = _values(_SETTLED, first=tuple(_FIRST))
"""Returns the values of `SETTLED` for (seq, row, number of its queue)."""

leased_columns: Callable[[Row], tuple[Any, ...]] = _values(_LEASED, parameters="row")
"""Returns the values of `LEASED`, without `seq`."""

message_columns: Callable[[Row, str], tuple[Any, ...]] = _values(
    _MESSAGE, "message", parameters="row, message"
)
"""Returns the values of `MESSAGE` for (row, message as JSON)."""


def is_id(text: str) -> bool:
    """Returns True if a notification can have this id. Any other id is treated as not existing."""
    return _ID.fullmatch(text) is not None


def find_invalid_id(ids: Sequence[str]) -> str | None:
    """Returns an id that no notification can have, or None if all ids are valid.

    For many ids, all are checked as one text, which takes a fifth of the time of `is_id` for each.
    """
    number, width = len(ids), _ID_CHARACTERS + 1
    if number >= _MANY_IDS:
        text = "\n".join(ids)
        if (
            len(text) == number * width - 1
            and text.isascii()
            and text.encode().translate(None, _HEX_DIGITS) == _NO_DIGITS * (number - 1) + _NO_DIGITS[:-1]
            and text[_ID_CHARACTERS::width] == "\n" * (number - 1)
            and all(text[position::width] == "-" * number for position in _HYPHENS)
        ):
            return None
    return next((id for id in ids if not is_id(id)), None)
