"""New rows that begin to wait, as one statement: what most of them share goes to the server once.

Rows of one batch are mostly alike: those of one kind differ only in their id, batch, address and message. A
column goes as one value where all rows have the same, else as one text, which costs driver and server a
fraction of what an array costs them: texts as lines, numbers as the literal of an array. The server numbers
the rows itself, in the order in which they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Literal

import msgspec
from msgspec import Struct

from homing.core.model import Message
from homing.core.rows import Change, Row
from homing.stores.postgres.changes import WRITE_LEDGER, Book
from homing.stores.postgres.columns import MESSAGE, NEW, message_columns, new_columns
from homing.stores.postgres.statements import Tx

_OWN = ("id", "batch_id", "address", "message")
_MESSAGE = {name: kind for name, kind in MESSAGE.items() if name not in _OWN}
_STATE = {name: kind for name, kind in NEW.items() if name != "seq"}
_of_message = itemgetter(*(number for number, name in enumerate(MESSAGE) if name in _MESSAGE))
_FEW = 8
"""Fewer rows of several kinds share nothing: there is little to save, and every shape has to be prepared."""

_Form = Literal["one", "lines", "literal", "array"]
_Shape = tuple[_Form, ...]
"""How each column goes: the own ones, those of the message, those of the state."""

_encode_lines = msgspec.json.Encoder().encode_lines


class Kind(Struct):
    """New rows that differ only in what is their own."""

    change: Change
    """Of the first of them."""
    columns: tuple[Any, ...] = ()
    """All that they share: `shared_columns`."""
    number: int = 0


New = tuple[str, str, str, Message, Kind]
"""(id, batch, address, message, kind) of a row."""


def shared_columns(row: Row, queue: int) -> tuple[Any, ...]:
    """In the order of `_MESSAGE` and `_STATE`."""
    return (*_of_message(message_columns(row, "")), *new_columns(0, row, queue)[1:])


async def insert(tx: Tx, rows: Sequence[New], kinds: Sequence[Kind], last: str) -> None:
    """Writes new rows that all wait or are leased, counts them, and runs the query `last`."""
    book = Book(tx)
    for kind in kinds:
        book.record(0, kind.change, kind.number)
    ids, batches, addresses, messages, each = zip(*sorted(rows, key=itemgetter(0)), strict=True)
    written = _encode_lines(messages)[:-1].decode()
    forms: list[_Form] = []
    parameters: list[Any] = []
    for own in (ids, batches, addresses):
        _add(forms, parameters, own, "text")
    forms.append("lines")  # JSON has no line breaks but those between its texts
    parameters.append(written)
    shared = [len(set(column)) == 1 for column in zip(*(kind.columns for kind in kinds), strict=True)]
    few = 1 < len(rows) < _FEW and len(kinds) > 1
    for number, (type_, same) in enumerate(zip(_TYPES, shared, strict=True)):
        if same and not few:
            forms.append("one")
            parameters.append(kinds[0].columns[number])
        else:
            _add(forms, parameters, [kind.columns[number] for kind in each], type_)
    shape, ledger = WRITE_LEDGER.fitted(list(book.ledger()))
    await tx.rows(_statement(tuple(forms), shape, last), *parameters, *ledger)


_TYPES = (*_MESSAGE.values(), *_STATE.values())


def _add(forms: list[_Form], parameters: list[Any], column: Sequence[Any], kind: str) -> None:
    """One column in the cheapest form that can hold it."""
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
    """The rows are numbered before both tables get them, or, where all states are alike, on their way."""
    kinds = ("uuid", "text", "text", "text", *_TYPES)
    given, chosen = [], []
    for number, (kind, form) in enumerate(zip(kinds, forms, strict=True), 1):
        if form == "one":
            chosen.append(f"${number}::text::uuid" if kind == "uuid" else f"${number}::{kind}")
        else:
            given.append(f"unnest({_array(number, kind, form)}) AS c{number}")
            chosen.append(f"u.c{number}::uuid" if kind == "uuid" else f"u.c{number}")
    first = len(_OWN) + len(_MESSAGE)
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


_INTO_MESSAGES = f"INSERT INTO homing.messages (seq, {', '.join((*_OWN, *_MESSAGE))})"
_INTO_LIVE = f"INSERT INTO homing.live (seq, {', '.join(_STATE)})"
_MESSAGES = f"new AS ({_INTO_MESSAGES} SELECT {{}} FROM {{}} RETURNING seq)"  # noqa: S608
_STATES = f"states AS ({_INTO_LIVE} SELECT {{}} FROM {{}})"  # noqa: S608


def _array(number: int, kind: str, form: _Form) -> str:
    match form:
        case "lines":
            return f"string_to_array(${number}::text, E'\\n')"
        case "literal":
            return f"${number}::text::{kind}[]"
        case _:
            return f"${number}::text[]"
