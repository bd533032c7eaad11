"""The column table: one line per column of a notification's row, for both SQL stores.

Each field of `Row` is stored in one column of the same name. A line of the table says what `Row` does not
say: the type in the database, the PostgreSQL table that holds the column, and which operations write it. From
these lines come the column lists of all statements, the readers of rows and the functions that return the
values to write. A new column needs a field in `Row`, a line here, and a migration for each store.

`tests/integration/test_row_columns.py` compares the table with the schemas that all migrations together
create.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, Flag, auto
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import fields

from homing.core.lifecycle.rows import Row


class SqlType(Enum):
    """The type of a column. SQLite stores integers and booleans as INTEGER, and all others as TEXT."""

    BIGINT = "bigint"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    TEXT = "text"
    UUID = "uuid"
    JSON = "json"
    """A dict, stored as text. If it is empty, PostgreSQL stores NULL and SQLite stores `{}`."""


class PostgresTable(Enum):
    """The table that holds a column in PostgreSQL. SQLite has one table for all of them."""

    MESSAGES = "messages"
    STATES = "states"
    """Both `live` and `settled`."""
    QUEUES = "queues"


class Writer(Flag):
    """An operation that writes columns. It leaves all other columns unchanged, or at their defaults."""

    ACCEPT = auto()
    LEASE = auto()
    """A claim or a reclaim."""
    SETTLE = auto()
    COMMAND = auto()
    """A command or a receipt. They are rare and write every column that can change after acceptance."""


class RowColumn(Struct, frozen=True):
    """One line of the column table."""

    name: str
    type: SqlType
    table: PostgresTable
    writers: Writer
    own: bool = False
    """True if the value differs between the rows of a batch that are otherwise alike."""
    in_states: bool = False
    """True if `live` and `settled` have a copy of the column, although it belongs to `messages`."""
    free_text: bool = False
    """True if the text may contain NUL characters, which PostgreSQL cannot store."""
    unchanged_if_null: bool = False
    """True if a settlement leaves the stored value unchanged if the new value is NULL.

    A claim does not read such a column, so a settlement without an attempt has no value for it.
    """

    @property
    def in_postgres(self) -> str:
        """The type in PostgreSQL."""
        return "text" if self.type is SqlType.JSON else self.type.value


_BIGINT, _INTEGER, _BOOLEAN, _TEXT, _UUID, _JSON = SqlType
_MESSAGES, _STATES, _QUEUES = PostgresTable
_A, _L, _S, _C = Writer.ACCEPT, Writer.LEASE, Writer.SETTLE, Writer.COMMAND

ROW_COLUMNS: tuple[RowColumn, ...] = (
    RowColumn("lane", _TEXT, _QUEUES, _A),
    RowColumn("tenant", _TEXT, _MESSAGES, _A, in_states=True),
    RowColumn("outlet", _TEXT, _QUEUES, _A | _S | _C),
    RowColumn("id", _UUID, _MESSAGES, _A, own=True),
    RowColumn("batch_id", _TEXT, _MESSAGES, _A, own=True),
    RowColumn("channel", _TEXT, _MESSAGES, _A),
    RowColumn("mode", _TEXT, _MESSAGES, _A),
    RowColumn("type", _TEXT, _MESSAGES, _A),
    RowColumn("category", _TEXT, _MESSAGES, _A),
    RowColumn("priority", _TEXT, _MESSAGES, _A),
    RowColumn("origin", _TEXT, _MESSAGES, _A),
    RowColumn("provider", _TEXT, _STATES, _A | _S | _C),
    RowColumn("pinned", _BOOLEAN, _STATES, _A | _C),
    RowColumn("address", _TEXT, _MESSAGES, _A, own=True),
    RowColumn("status", _TEXT, _STATES, _A | _L | _S | _C),
    RowColumn("max_age_ms", _BIGINT, _STATES, _A | _S | _C),
    RowColumn("created_at", _BIGINT, _MESSAGES, _A),
    RowColumn("aged_from", _BIGINT, _STATES, _A | _S | _C),
    RowColumn("token", _INTEGER, _STATES, _A | _L | _C),
    RowColumn("changes", _INTEGER, _STATES, _A | _L | _S | _C),
    RowColumn("attempts", _INTEGER, _STATES, _A | _L | _S | _C),
    RowColumn("attempt_floor", _INTEGER, _STATES, _C),
    RowColumn("bounce_floor", _INTEGER, _STATES, _C),
    RowColumn("attempts_before", _INTEGER, _STATES, _A),
    RowColumn("max_attempts", _INTEGER, _STATES, _A),
    RowColumn("failures_here", _INTEGER, _STATES, _S | _C),
    RowColumn("moves", _INTEGER, _STATES, _S | _C),
    RowColumn("free_move", _BOOLEAN, _STATES, _S | _C),
    RowColumn("last_delay_ms", _BIGINT, _STATES, _A | _S | _C),
    RowColumn("expires_at", _BIGINT, _STATES, _A | _C),
    RowColumn("due_at", _BIGINT, _STATES, _A | _L | _S | _C),
    RowColumn("cancel_requested", _BOOLEAN, _STATES, _S | _C),
    RowColumn("last_error", _TEXT, _STATES, _A | _S | _C, free_text=True),
    RowColumn("error_code", _TEXT, _STATES, _S | _C, free_text=True),
    RowColumn("last_attempt_at", _BIGINT, _STATES, _S | _C),
    RowColumn("sent_at", _BIGINT, _STATES, _S | _C),
    RowColumn("delivered_at", _BIGINT, _STATES, _S | _C),
    RowColumn("failed_at", _BIGINT, _STATES, _A | _S | _C),
    RowColumn("spent", _JSON, _STATES, _S | _C),
    RowColumn("holds", _JSON, _STATES, _S | _C),
    RowColumn("lease_until", _BIGINT, _STATES, _A | _L | _S | _C),
    RowColumn("started_at", _BIGINT, _STATES, _A | _L | _C),
    RowColumn("worker", _TEXT, _STATES, _A | _L | _S | _C),
    RowColumn("overdue", _BOOLEAN, _STATES, _L | _S | _C),
    RowColumn("bounce_always", _BOOLEAN, _STATES, _S | _C, unchanged_if_null=True),
    RowColumn("bounce_min_ms", _BIGINT, _STATES, _S | _C, unchanged_if_null=True),
    RowColumn("bounce_max_ms", _BIGINT, _STATES, _S | _C, unchanged_if_null=True),
    RowColumn("first_failed_at", _BIGINT, _STATES, _S | _C, unchanged_if_null=True),
    RowColumn("unknown_bounce", _INTEGER, _STATES, _C),
    RowColumn("updated_at", _BIGINT, _STATES, _A | _L | _S | _C),
    RowColumn("send_at", _BIGINT, _MESSAGES, _A),
    RowColumn("deadline_at", _BIGINT, _STATES, _A | _L | _S | _C),
    RowColumn("reason", _TEXT, _STATES, _A | _S | _C),
    RowColumn("acknowledged_at", _BIGINT, _STATES, _C),
    RowColumn("acknowledged_by", _TEXT, _STATES, _C, free_text=True),
    RowColumn("acknowledged_why", _TEXT, _STATES, _C, free_text=True),
    RowColumn("resend_of", _UUID, _MESSAGES, _A),
    RowColumn("resent_as", _UUID, _STATES, _C),
    RowColumn("engagement", _JSON, _STATES, _C),
)
"""All columns, in the order of the fields of `Row`."""

ROW_FIELDS: tuple[str, ...] = Row.__struct_fields__
"""The names of all columns. A row is read as an array in this order."""

assert tuple(column.name for column in ROW_COLUMNS) == ROW_FIELDS, "the column table differs from `Row`"

LAST_CLAIMED = "holds"
"""The last of `ROW_FIELDS` that a claim and its settlement need from the stored waiting row."""

LAST_RECLAIMED = "overdue"
"""The last of `ROW_FIELDS` that a reclaim and its settlement need from the stored row."""

LAST_SETTLED = "overdue"
"""The last of `ROW_FIELDS` that a settlement reads or changes."""


def names_of(columns: Iterable[RowColumn]) -> tuple[str, ...]:
    """Returns the names of these columns."""
    return tuple(column.name for column in columns)


def written_by(writer: Writer) -> tuple[RowColumn, ...]:
    """Returns the columns that an operation writes."""
    return tuple(column for column in ROW_COLUMNS if writer in column.writers)


JSON_FIELDS = frozenset(names_of(column for column in ROW_COLUMNS if column.type is SqlType.JSON))

UNCHANGED_IF_NULL_FIELDS = frozenset(names_of(column for column in ROW_COLUMNS if column.unchanged_if_null))
"""Settled fields whose stored value stays if the new value is NULL."""

_PYTHON_TYPES = {field.name: field.type for field in fields(Row)}


def is_optional(column: RowColumn) -> bool:
    """Returns True if the value may be None."""
    return type(None) in get_args(_PYTHON_TYPES[column.name])


def plain_value(column: RowColumn) -> str:
    """Returns the Python expression for the value of a column that needs no conversion, or only its enum's.

    In the expression, the row is named `row`.
    """
    value = f"row.{column.name}"
    type_ = _PYTHON_TYPES[column.name]
    if not any(isinstance(one, type) and issubclass(one, Enum) for one in (type_, *get_args(type_))):
        return value
    # `_value_` because `.value` is a descriptor call, and this runs for every row of every batch.
    return (
        f"({value}._value_ if {value} is not None else None)" if is_optional(column) else f"{value}._value_"
    )


_MAX_DISPLAY = 30
"""CPython builds a longer tuple display as a list, value by value, which takes twice as long."""


def compile_values(
    expressions: Iterable[str], *, parameters: str = "row", names: Mapping[str, Any]
) -> Callable[..., tuple[Any, ...]]:
    """Compiles a function that returns a tuple of the values of these Python expressions.

    The function has these parameters. `names` holds everything else that the expressions use. The compiled
    function is as fast as one written by hand; a loop over the columns takes several times as long.
    """
    values = list(expressions)
    parts = (values[start : start + _MAX_DISPLAY] for start in range(0, len(values), _MAX_DISPLAY))
    tuples = " + ".join(f"({', '.join(part)},)" for part in parts)
    source = f"lambda {parameters}: {tuples}"
    compiled: Callable[..., tuple[Any, ...]] = eval(source, dict(names))  # noqa: S307, from this package only
    return compiled
