"""The columns of `homing_notifications`, and the values that are written to them.

Each set of columns has a tuple of names and a function that returns a row's values in the same order. Both
come from the column table. `spent`, `holds` and `engagement` are stored as JSON, and booleans as 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from homing.core.lifecycle.rows import Row
from homing.stores.common.codec import Column, encode
from homing.stores.common.row_columns import (
    RowColumn,
    SqlType,
    Writer,
    compile_values,
    is_optional,
    names_of,
    plain_value,
    written_by,
)


def _value(column: RowColumn) -> str:
    value = f"row.{column.name}"
    match column.type:
        case SqlType.BOOLEAN if is_optional(column):
            return f"(None if {value} is None else 1 if {value} else 0)"
        case SqlType.BOOLEAN:
            return f"(1 if {value} else 0)"
        case SqlType.JSON:
            return f"(encode({value}) if {value} else '{{}}')"
        case _:
            return plain_value(column)


def _values(columns: Iterable[RowColumn]) -> Callable[[Row], tuple[Column, ...]]:
    return compile_values(map(_value, columns), names={"encode": encode})


_NEW = written_by(Writer.ACCEPT)

_OWN = [column for column in _NEW if column.own]

_SHARED = [column for column in _NEW if not column.own]

OWN_FIELDS = names_of(_OWN)
"""Fields that differ between the new rows of a batch."""

own_columns = _values(_OWN)
"""Returns the values of `OWN_FIELDS`."""

SHARED_FIELDS = names_of(_SHARED)
"""Fields that the new rows of a batch usually share. All other fields of a new row have their defaults."""

shared_columns = _values(_SHARED)
"""Returns the values of `SHARED_FIELDS`."""

LEASED_FIELDS = names_of(written_by(Writer.LEASE))
"""Fields that a claim or reclaim changes."""

leased_columns = _values(written_by(Writer.LEASE))
"""Returns the values of `LEASED_FIELDS`."""

SETTLED_FIELDS = names_of(written_by(Writer.SETTLE))
"""Fields that a settlement changes."""

settled_columns = _values(written_by(Writer.SETTLE))
"""Returns the values of `SETTLED_FIELDS`."""

MUTABLE_FIELDS = names_of(written_by(Writer.COMMAND))
"""Every field that some transition can change. Commands and receipts, which are rare, write all of them."""

mutable_columns = _values(written_by(Writer.COMMAND))
"""Returns the values of `MUTABLE_FIELDS`."""
