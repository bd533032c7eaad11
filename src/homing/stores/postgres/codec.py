"""Converts database records to rows and messages, all records of a query at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from homing.core.model import Message
from homing.stores.codec import ROW_FIELDS
from homing.stores.held import Found
from homing.stores.postgres.queues import Queue
from homing.stores.postgres.statements import Record

_AS_TEXT = frozenset({"id", "resend_of", "resent_as"})
_HOLDS = 1 + ROW_FIELDS.index("holds")
_ENGAGEMENT = 1 + ROW_FIELDS.index("engagement")
_decode_counts = msgspec.json.Decoder(dict[str, int]).decode
decode_message = msgspec.json.Decoder(Message).decode
_decode_messages = msgspec.json.Decoder(list[Message]).decode

_MESSAGE_FIELDS = frozenset(
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

_LAST_CLAIMED = ROW_FIELDS.index("holds")
CLAIMED = ROW_FIELDS[3:_LAST_CLAIMED]
"""Fields of a row that a claim reads, besides `holds` and the first three, which identify the queue."""


def _column(name: str, message: str, state: str, queue: str) -> str:
    alias = queue if name in ("lane", "outlet") else message if name in _MESSAGE_FIELDS else state
    return f"{alias}.{name}::text" if name in _AS_TEXT else f"{alias}.{name}"


def selected(message: str, state: str, queue: str) -> str:
    """Returns the select list of a row, `seq` first.

    The arguments are the aliases of `messages`, of `live` or `settled`, and of `queues`.
    """
    columns = (_column(name, message, state, queue) for name in ROW_FIELDS)
    return ", ".join((f"{message}.seq", *columns))


def selected_for_claim(message: str, state: str) -> str:
    """Returns the select list of a row to be claimed: (seq, queue, …, holds, message)."""
    columns = (_column(name, message, state, "") for name in CLAIMED)
    return ", ".join((f"{state}.seq", f"{state}.queue", *columns, f"{state}.holds", f"{message}.message"))


SELECTED = selected("r", "r", "r")
"""Select list of a row from `homing.rows AS r`."""


def rows_from(records: Iterable[Record]) -> list[Found]:
    """Converts records whose first columns are those of `selected`."""
    found: list[Found] = msgspec.convert([_values(record) for record in records], list[Found])
    return found


def decode_messages(texts: Iterable[str]) -> list[Message]:
    """Decodes many messages at once."""
    return _decode_messages(f"[{','.join(texts)}]")


def rows_to_claim(records: Iterable[Record], names: Mapping[int, Queue]) -> list[Found]:
    """Converts records with the columns of `selected_for_claim`. `names` holds the queues by number."""
    values: list[tuple[int, tuple[Any, ...]]] = []
    for record in records:
        holds = () if record[-2] is None else (_decode_counts(record[-2]),)
        values.append((record[0], (*names[record[1]], *record[2:-2], *holds)))
    found: list[Found] = msgspec.convert(values, list[Found])
    return found


_WIDTH = 1 + len(ROW_FIELDS)


def _values(record: Record) -> tuple[int, list[Any]]:
    """Returns (seq, field values in the order of `ROW_FIELDS`)."""
    values = list(record[:_WIDTH])
    holds, engagement = values[_HOLDS], values[_ENGAGEMENT]
    values[_HOLDS] = _decode_counts(holds) if holds else {}
    values[_ENGAGEMENT] = _decode_counts(engagement) if engagement else {}
    return values[0], values[1:]
