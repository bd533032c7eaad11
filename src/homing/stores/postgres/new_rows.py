"""Inserts new rows into `messages`, and into `live` or `settled`.

If all ids are known to be new and no row has an event or a cause, rows are grouped by kind: the rows of one
kind share most values, which are sent only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Literal

from msgspec import Struct

from homing.core.lifecycle.claims import NewNotification, Submission
from homing.core.lifecycle.rows import Change, Row
from homing.core.lifecycle.states import LIVE
from homing.stores.common.codec import encode_lines
from homing.stores.postgres.change_recorder import WRITE_LEDGER, PostgresChangeRecorder
from homing.stores.postgres.columns import MESSAGE, NEW, message_columns, new_columns
from homing.stores.postgres.rows import queue_of
from homing.stores.postgres.statements import (
    MIN_SHARING_ROWS,
    BatchWrite,
    PostgresTransaction,
    build_insert,
    checked_queue,
    queue_parameters,
)

_MESSAGE = {"seq": "bigint", **MESSAGE}

INSERT_MESSAGES = build_insert("messages", _MESSAGE)

INSERT_UNKNOWN_MESSAGES = build_insert("messages", _MESSAGE, "ON CONFLICT (id) DO NOTHING RETURNING id::text")

INSERT_STATES = {table: build_insert(table, NEW) for table in ("live", "settled")}


NewRow = tuple[Change, str]
"""(change that creates the row, message as JSON)."""

NumberedRow = tuple[int, Change, str]
"""(seq, change that creates the row, message as JSON)."""


async def number_rows(tx: PostgresTransaction, new: Sequence[NewRow]) -> list[NumberedRow]:
    """Assigns seqs in the order of the ids, because rows that are due at the same time are sent by seq."""
    by_id = sorted(new, key=lambda one: one[0].row.id)
    return [(seq, *one) for seq, one in zip(await tx.seqs(len(by_id)), by_id, strict=True)]


def messages_of(rows: Iterable[NumberedRow]) -> list[tuple[Any, ...]]:
    """Returns the columns to insert into `messages`."""
    return [(seq, *message_columns(change.row, message)) for seq, change, message in rows]


async def states_of(tx: PostgresTransaction, rows: Sequence[NumberedRow]) -> list[BatchWrite]:
    """Returns the inserts into `live`, and into `settled` for rows that are final from the start."""
    queues = await tx.queues.find(tx, {queue_of(change.row) for _, change, _ in rows})
    columns: dict[str, list[tuple[Any, ...]]] = {"live": [], "settled": []}
    for seq, change, _ in rows:
        row = change.row
        table = "live" if row.status in LIVE else "settled"
        columns[table].append(new_columns(seq, row, queues[queue_of(row)]))
    return [(INSERT_STATES[table], written) for table, written in columns.items()]


_OWN = ("id", "batch_id", "address", "message")

_MESSAGE_COLUMNS = {name: kind for name, kind in MESSAGE.items() if name not in _OWN}

_STATE = {name: kind for name, kind in NEW.items() if name != "seq"}

_of_message = itemgetter(*(number for number, name in enumerate(MESSAGE) if name in _MESSAGE_COLUMNS))

_Form = Literal["one", "lines", "literal", "array", "uuids"]

_Shape = tuple[_Form, ...]
"""The form in which each column is sent: first the own columns, then those of the message and the state."""


class NewRowKind(Struct):
    """A set of new rows that differ only in id, batch, address and message."""

    change: Change
    """The change that creates the first of the rows."""
    columns: tuple[Any, ...] = ()
    """The values that all these rows share, from `shared_columns`."""
    number: int = 0
    """Number of rows."""


def shared_columns(row: Row, queue: int) -> tuple[Any, ...]:
    """Returns the values that rows of one kind share: first those of the message, then those of the state."""
    return (*_of_message(message_columns(row, "")), *new_columns(0, row, queue)[1:])


async def insert_new_rows(
    tx: PostgresTransaction,
    rows: Sequence[tuple[Submission, NewNotification]],
    kind_of_each: Sequence[NewRowKind],
    kinds: Sequence[NewRowKind],
    last: str,
) -> None:
    """Inserts new rows that are all waiting or leased, counts them, and runs the query `last`.

    `kind_of_each` has the kind of each row. The rows are numbered in the order of their ids.
    """
    recorder = PostgresChangeRecorder(tx)
    for kind in kinds:
        recorder.record(0, kind.change, kind.number)
    ids = [new.id for _, new in rows]
    if ids != (sorted_ids := sorted(ids)):
        order = sorted(range(len(ids)), key=ids.__getitem__)
        rows, kind_of_each = [rows[at] for at in order], [kind_of_each[at] for at in order]
        ids = sorted_ids
    batches = [submission.batch_id for submission, _ in rows]
    addresses = [new.address for _, new in rows]
    written = encode_lines([new.message for _, new in rows])
    # In binary form: to read an id from a text, the server would take 0.4 of the 10 µs that a row costs it.
    forms: list[_Form] = ["uuids"]
    parameters: list[Any] = [ids]
    for own in (batches, addresses):
        _add(forms, parameters, own, "text")
    forms.append("lines")  # encoded JSON contains no line breaks
    parameters.append(written)
    if len(kinds) == 1:  # the usual case: all rows share these columns
        forms += _ALL_SHARED
        parameters += kinds[0].columns
    else:
        shared = [len(set(column)) == 1 for column in zip(*(kind.columns for kind in kinds), strict=True)]
        few = 1 < len(rows) < MIN_SHARING_ROWS
        for number, (type_, same) in enumerate(zip(_TYPES, shared, strict=True)):
            if same and not few:
                forms.append("one")
                parameters.append(kinds[0].columns[number])
            else:
                _add(forms, parameters, [kind.columns[number] for kind in kind_of_each], type_)
    shape, ledger = WRITE_LEDGER.fitted(list(recorder.ledger()))
    checked = queue_parameters(tx.used_queues)
    await tx.rows(_statement(tuple(forms), shape, last), *parameters, *ledger, *checked)


_TYPES = (*_MESSAGE_COLUMNS.values(), *_STATE.values())

_ONE: _Form = "one"

_ALL_SHARED: _Shape = (_ONE,) * len(_TYPES)


def _add(forms: list[_Form], parameters: list[Any], column: Sequence[Any], kind: str) -> None:
    """Adds a column in the cheapest form that can represent its values."""
    form: _Form
    value: Any
    if kind not in ("text", "uuid"):
        form, value = "literal", "{" + ",".join(map(str, column)).replace("None", "NULL") + "}"
    elif None in column or not (value := "\n".join(column)) or value.count("\n") >= len(column):
        form, value = "array", list(column)
    else:
        form = "lines"
    forms.append(form)
    parameters.append(value)


@lru_cache(maxsize=256)
def _statement(forms: _Shape, ledger: tuple[bool, ...], last: str) -> str:
    """Builds the INSERT statement for columns in these forms.

    The seqs are assigned in a separate step before the inserts, or while inserting the messages if all rows
    have the same state.
    """
    kinds = ("uuid", "text", "text", "text", *_TYPES)
    given, chosen = [], []
    for number, (kind, form) in enumerate(zip(kinds, forms, strict=True), 1):
        if form == "one":
            chosen.append(f"${number}::text::uuid" if kind == "uuid" else f"${number}::{kind}")
        else:
            given.append(f"unnest({_array(number, kind, form)}) AS c{number}")
            chosen.append(f"u.c{number}::uuid" if kind == "uuid" and form != "uuids" else f"u.c{number}")
    first = len(_OWN) + len(_MESSAGE_COLUMNS)
    queue = first + list(_STATE).index("queue")
    chosen[queue] = checked_queue(chosen[queue], len(forms) + WRITE_LEDGER.parameters + 1)
    message, state = ", ".join(chosen[:first]), ", ".join(chosen[first:])
    rows, seq = f"SELECT {', '.join(given)}", "nextval('homing.seqs')"
    if all(form == "one" for form in forms[first:]):
        parts = [
            _MESSAGES.format(f"{seq}, {message}", f"({rows}) AS u"),
            _STATES.format(f"new.seq, {state}", "new"),
        ]
    else:
        parts = [
            f"u AS (SELECT {seq} AS seq, given.* FROM ({rows}) AS given)",  # noqa: S608
            _MESSAGES.format(f"u.seq, {message}", "u"),
            _STATES.format(f"u.seq, {state}", "u"),
        ]
    return f"WITH {', '.join(parts)}, counts AS ({WRITE_LEDGER.in_shape(ledger, len(forms) + 1)}) {last}"


_INTO_MESSAGES = f"INSERT INTO homing.messages (seq, {', '.join((*_OWN, *_MESSAGE_COLUMNS))})"

_INTO_LIVE = f"INSERT INTO homing.live (seq, {', '.join(_STATE)})"

_MESSAGES = f"new AS ({_INTO_MESSAGES} SELECT {{}} FROM {{}} RETURNING seq)"  # noqa: S608

_STATES = f"states AS ({_INTO_LIVE} SELECT {{}} FROM {{}})"  # noqa: S608


def _array(number: int, kind: str, form: _Form) -> str:
    match form:
        case "lines":
            return f"string_to_array(${number}::text, E'\\n')"
        case "literal":
            return f"${number}::text::{kind}[]"
        case "uuids":
            return f"${number}::uuid[]"
        case _:
            return f"${number}::text[]"
