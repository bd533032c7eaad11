"""Reads the rows of notifications by id or seq."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import DecodeError

from homing.core.notifications import Message
from homing.stores.common.codec import StoredRow, decode_message, decode_messages, decode_rows, encode
from homing.stores.common.leased_rows import SeqAndRow
from homing.stores.common.row_columns import LAST_SETTLED
from homing.stores.sqlite.statements import SqliteTransaction, json_row

_BY_ID = f"""
SELECT json_group_array({json_row("n")})
FROM json_each(?1) AS j CROSS JOIN homing_notifications AS n ON n.id = j.value
"""  # noqa: S608
LEASED_BY_ID = f"""
SELECT json_group_array({json_row("n", last=LAST_SETTLED)})
FROM json_each(?1) AS j CROSS JOIN homing_notifications AS n ON n.id = j.value
"""  # noqa: S608
_BY_SEQ = f"""
SELECT json_group_array({json_row("n")})
FROM json_each(?1) AS j CROSS JOIN homing_notifications AS n ON n.seq = j.value
"""  # noqa: S608

_EACH_MESSAGE = """
SELECT m.message
FROM json_each(?1) AS j CROSS JOIN homing_messages AS m ON m.seq = j.value
"""


def messages_in(tx: SqliteTransaction, seqs: Sequence[int], joined: str) -> list[Message]:
    """Decodes the messages of these rows, which were read as one JSON array.

    One that is not valid JSON makes the array invalid or too long. They are then read again one by one.
    """
    try:
        found = decode_messages(joined)
    except DecodeError:
        found = []
    if len(found) == len(seqs):
        return found
    return [decode_message(text) for (text,) in tx.cursor.execute(_EACH_MESSAGE, (encode(seqs),))]


def rows_by_id(tx: SqliteTransaction, ids: Collection[str]) -> dict[str, SeqAndRow]:
    """Returns the existing rows with these ids, of any tenant, by id."""
    return _by_id(tx, _BY_ID, ids)


def leased_by_id(tx: SqliteTransaction, ids: Collection[str]) -> dict[str, SeqAndRow]:
    """Like `rows_by_id`, but reads only the fields up to `LAST_SETTLED`. The others have their defaults."""
    return _by_id(tx, LEASED_BY_ID, ids)


def rows_by_seq(tx: SqliteTransaction, seqs: Collection[int]) -> dict[int, StoredRow]:
    """Returns the existing rows with these seqs, by seq."""
    return dict(decode_rows(tx.one(_BY_SEQ, encode(list(dict.fromkeys(seqs))))))


def _by_id(tx: SqliteTransaction, sql: str, ids: Collection[str]) -> dict[str, SeqAndRow]:
    found = decode_rows(tx.one(sql, encode(list(dict.fromkeys(ids)))))
    return {row.id: (seq, row) for seq, row in found}
