"""Converts rows, attempts and causes to documents and back.

A row is one document in `notifications` under the id of its notification. A field that is None is absent, so
that partial indexes leave it out, and some fields are absent while they have their default. Dicts with keys
from outside are stored as JSON text. The message of a notification is a document of its own, because MongoDB
writes a changed document as a whole. It has the fields by which notifications are found and that never
change, because a row that is written again is written to all its indexes.

Besides the fields of `Row`, a document has three that only indexes need: `queue`, the key of the queue, while
the row waits; `rare`, the status, unless the row has one of the statuses that most rows have; and `ended_at`,
the time of the last change, while the row neither waits nor is leased. Most rows enter and leave few indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import astuple

from homing.core.lifecycle.outcomes import AttemptRecord
from homing.core.lifecycle.rows import CauseRecord, Row
from homing.core.notifications import Message, Status
from homing.stores.common.codec import (
    ATTEMPT_FIELDS,
    CAUSE_FIELDS,
    StoredAttempt,
    StoredCause,
    StoredRow,
    encode,
)
from homing.stores.common.leased_rows import SeqAndRow
from homing.stores.common.row_columns import (
    JSON_FIELDS,
    ROW_COLUMNS,
    ROW_FIELDS,
    UNCHANGED_IF_NULL_FIELDS,
    RowColumn,
    SqlType,
    Writer,
    compile_values,
    names_of,
    plain_value,
    written_by,
)

Document = dict[str, Any]

RARE_STATUSES = frozenset(Status) - {Status.PENDING, Status.SENDING, Status.SENT, Status.DELIVERED}
"""Statuses that few rows have, by which `rare` finds them."""

_RARE = {status: status.value for status in RARE_STATUSES}

_DEFAULTS = {
    field.name: None if field.default is msgspec.NODEFAULT else field.default
    for field in msgspec.structs.fields(Row)
} | {"origin": "", "pinned": False}

_ABSENT_IF_DEFAULT = frozenset(
    {
        *("origin", "pinned", "attempt_floor", "bounce_floor", "attempts_before", "failures_here", "moves"),
        *("free_move", "last_delay_ms", "cancel_requested", "overdue", "unknown_bounce"),
    }
)
"""Fields that no query compares with their default, which is empty, false or zero. Most rows have it."""

_STORED_FIELDS = tuple("_id" if name == "id" else name for name in ROW_FIELDS)

_decode_json = msgspec.json.Decoder(dict[str, int]).decode


def queue_key(lane: str, tenant: str, outlet: str) -> str:
    """Returns the key of a queue, as a JSON array."""
    return encode((lane, tenant, outlet))


def queue_of(row: Row) -> str | None:
    """Returns the key of the queue that the row waits in, or None if it is not waiting."""
    return None if row.due_at is None else queue_key(row.lane, row.tenant, row.outlet)


_decode_key = msgspec.json.Decoder(tuple[str, str, str]).decode


def read_queue_key(key: str) -> tuple[str, str, str]:
    """Returns lane, tenant and outlet of a queue."""
    return _decode_key(key)


def seq_of(id: str) -> int:
    """Returns the number by which the code that all stores share knows a notification.

    It is the value of its id. Ids are UUIDv7, so later notifications have higher numbers.
    """
    return UUID(id).int


class RowFields:
    """Some fields of a row with the index fields that follow from them, as they are written to a document."""

    def __init__(
        self, columns: Iterable[RowColumn], *, keeps: Iterable[str] = (), removes: Iterable[str] = ()
    ) -> None:
        """`keeps` are fields whose stored value stays if the new value is None. `removes` are dropped."""
        columns = [column for column in columns if column.name != "id"]
        self._names = names_of(columns)
        self._keeps = frozenset(keeps)
        self._removes = tuple(removes)
        read = compile_values(map(_value, columns), names={"encode": encode})
        self.values: Callable[[Row], tuple[Any, ...]] = lambda row: (*read(row), *_index_values(row))
        """Returns the values to write. Rows with equal values can be written by one update."""

    def update(self, values: tuple[Any, ...]) -> Document:
        """Returns the update that writes these values."""
        changed: Document = {}
        absent: Document = dict.fromkeys(self._removes, "")
        for name, value in zip((*self._names, *_INDEX_FIELDS), values, strict=True):
            if value is not None:
                changed[name] = value
            elif name not in self._keeps:
                absent[name] = ""
        return {"$set": changed, "$unset": absent}

    def document(self, row: Row) -> Document:
        """Returns the document of a new row."""
        values = zip((*self._names, *_INDEX_FIELDS), self.values(row), strict=True)
        return {"_id": row.id, **{name: value for name, value in values if value is not None}}


def changed_document(found: Document, update: Document) -> Document:
    """Returns a document as it is after an update by `RowFields.update`. `found` is the document before."""
    changed: Document = found | update["$set"]
    for name in found.keys() & update["$unset"].keys():
        del changed[name]
    return changed


COUNTED_AS = "counted_as"
"""Field of a row that a claim has leased: status and attempts by which the tallies still count it.

A claim writes no counters, so it needs no transaction. The next change of the row in a transaction counts
the lease and removes the field, and readers of tallies add what has it. `claim` is the id of the claim.
"""

_INDEX_FIELDS = ("queue", "rare", "ended_at")


def _index_values(row: Row) -> tuple[str | None, str | None, int | None]:
    ended_at = row.updated_at if row.due_at is None and row.lease_until is None else None
    return queue_of(row), _RARE.get(row.status), ended_at


def _value(column: RowColumn) -> str:
    if column.type is SqlType.JSON:
        return f"(encode(row.{column.name}) if row.{column.name} else None)"
    if column.name in _ABSENT_IF_DEFAULT:
        return f"(row.{column.name} or None)"
    return plain_value(column)


ALL = RowFields(ROW_COLUMNS)
LEASED = RowFields(written_by(Writer.LEASE))
SETTLED = RowFields(written_by(Writer.SETTLE), keeps=UNCHANGED_IF_NULL_FIELDS, removes=(COUNTED_AS,))
MUTABLE = RowFields(written_by(Writer.COMMAND), removes=(COUNTED_AS,))


def row_document(row: Row) -> Document:
    """Returns the document of a new row."""
    return ALL.document(row)


def mutable_update(row: Row) -> Document:
    """Returns the update that writes everything of a row that can change. Its lease must be counted."""
    return MUTABLE.update(MUTABLE.values(row))


def read_row(found: Mapping[str, Any]) -> StoredRow:
    """Returns the row of a document. Unknown fields, as of a later release, are ignored."""
    return read_rows((found,))[0]


def read_rows(found: Iterable[Mapping[str, Any]]) -> list[StoredRow]:
    """Returns the rows of documents."""
    return msgspec.convert([_row_values(one, one.get) for one in found], list[StoredRow], strict=False)


def by_id(found: Iterable[Mapping[str, Any]]) -> dict[str, SeqAndRow]:
    """Returns rows by id, each with its number."""
    return {row.id: (seq_of(row.id), row) for row in read_rows(found)}


def _stored_value(name: str) -> str:
    """Returns the Python expression for the value of a field, in the document `found`."""
    if name in JSON_FIELDS:
        return f"(_decode_json(found[{name!r}]) if {name!r} in found else {{}})"
    return f"get({name!r}, {_DEFAULTS.get(name)!r})"


_row_values = compile_values(
    map(_stored_value, _STORED_FIELDS), parameters="found, get", names={"_decode_json": _decode_json}
)
"""Returns the fields of a row, given its document and the method `get` of the document."""


def attempt_document(id: str, change: int, attempt: AttemptRecord) -> Document:
    """Returns the document of an attempt. It is known by its notification and the number of the change."""
    document = {"_id": record_key(id, change), "of": id, "change": change, "receipt_rank": 0}
    for name, value in zip(ATTEMPT_FIELDS, astuple(attempt), strict=True):
        if value is not None:
            document[name] = getattr(value, "_value_", value)
    return document


def cause_document(id: str, change: int, cause: CauseRecord) -> Document:
    """Returns the document of a cause."""
    values = {name: getattr(cause, name) for name in CAUSE_FIELDS}
    kept = {name: getattr(value, "_value_", value) for name, value in values.items() if value is not None}
    return {"_id": record_key(id, change), "of": id, "change": change, **kept}


def record_key(id: str, change: int) -> str:
    """Returns the key of the attempt or cause of a change."""
    return f"{id}:{change}"


def read_attempt(found: Mapping[str, Any]) -> AttemptRecord:
    """Returns the attempt of a document."""
    return msgspec.convert([found.get(name) for name in ATTEMPT_FIELDS], StoredAttempt)


def read_cause(found: Mapping[str, Any]) -> CauseRecord:
    """Returns the cause of a document."""
    return msgspec.convert([found.get(name) for name in CAUSE_FIELDS], StoredCause)


def metadata_pairs(metadata: Mapping[str, Any] | None) -> list[str]:
    """Returns the metadata by which a notification is found: key and text of each plain value.

    A number, true or false is found by its text in JSON. Objects and arrays are left out.
    """
    pairs = []
    for key, value in (metadata or {}).items():
        if isinstance(value, str):
            pairs.append(encode((key, value)))
        elif isinstance(value, (bool, int, float)):
            pairs.append(encode((key, encode(value))))
    return pairs


def message_document(tenant: str, batch_id: str, address: str, id: str, message: Message) -> Document:
    """Returns the document of a message, with everything by which its notification is found."""
    document: Document = {
        "_id": id,
        "tenant": tenant,
        "batch_id": batch_id,
        "address": address,
        "message": encode(message),
    }
    if metadata := metadata_pairs(message.metadata):
        document["metadata"] = metadata
    if message.recipient.id is not None:
        document["recipient"] = encode((tenant, message.recipient.id))
    return document
